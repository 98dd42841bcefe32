"""Tars: their members, and WebDataset samples."""
