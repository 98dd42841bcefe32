"""Puts the repository's root on the path, so that tests find the packages and one another."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
