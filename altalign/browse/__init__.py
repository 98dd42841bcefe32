"""Everything a run kept and dropped, to look at, search and decide on: `altalign browse`."""

from pathlib import Path

FOLDER = Path(__file__).parent  # of templates/ and static/
