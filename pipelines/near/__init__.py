"""Near-duplicates: of test images, and within the pool."""
