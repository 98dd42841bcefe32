"""Finished runs that change: what is taken out of them."""
