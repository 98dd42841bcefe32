"""A run: its units and marks, the pool, progress."""
