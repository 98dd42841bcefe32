"""Decides which host is asked next, how often, and what happens with the answer."""
