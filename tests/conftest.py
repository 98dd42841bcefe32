"""Puts the repository's root on the path, so that tests find the packages and one another; and finds engines."""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(scope="session")
def prism() -> str:
    """Path of a Prism binary: ALTALIGN_PRISM, or what `make prism` built."""
    found = os.environ.get("ALTALIGN_PRISM") or str(Path(__file__).parents[1] / ".cache" / "prism" / "prism")
    if not Path(found).is_file():
        pytest.skip("no Prism binary: " + ("build one with `make prism`" if shutil.which("go") else "Go is not installed, so `make prism` cannot build one"))
    return found
