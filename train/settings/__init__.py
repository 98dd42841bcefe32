"""Settings of a training: a module for each part."""
