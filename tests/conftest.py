"""Puts the repository's root on the path, so that tests find the packages and one another; and finds engines."""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parents[1]))

# A shell that starts us in the background has both ignored, which our children would inherit: tests of interrupts would then test nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The same examples everywhere, and no limit of time: machines are busy.
settings.register_profile("altalign", derandomize=True, deadline=None)
settings.load_profile("altalign")


@pytest.fixture(scope="session")
def prism() -> str:
    """Path of a Prism binary: ALTALIGN_PRISM, or what `make prism` built."""
    found = os.environ.get("ALTALIGN_PRISM") or str(Path(__file__).parents[1] / ".cache" / "prism" / "prism")
    if not Path(found).is_file():
        pytest.skip("no Prism binary: " + ("build one with `make prism`" if shutil.which("go") else "Go is not installed, so `make prism` cannot build one"))
    return found
