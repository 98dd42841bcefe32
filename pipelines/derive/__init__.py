"""Runs that are made of other runs: which pairs, and their shards, without touching a pixel."""
