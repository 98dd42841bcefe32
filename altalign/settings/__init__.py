"""Settings of `curate` and `score`: every threshold and its one default."""
