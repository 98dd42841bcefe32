"""Captions that a trained model writes: decoding, and the table of all pairs."""
