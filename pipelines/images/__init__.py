"""What is measured of an image, how it is stored, and the models that look at it."""
