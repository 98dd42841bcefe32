"""Claims of papers, tried in small: NAME.toml has the runs, NAME.py what they train on.

`make experiment NAME=…` trains them and writes docs/experiments/NAME.md.
"""
