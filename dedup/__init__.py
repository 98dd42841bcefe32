"""Pure: exact counts of hashes, and their tables."""
