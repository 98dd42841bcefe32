"""The stages, one file each: a pure core and a thin PTransform. They import what they hand on, and never each other."""
