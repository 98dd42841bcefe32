"""Where real data stands beside the checkout; absent for most users, and such tests then skip with the reason."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared" / "data"

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not beside this checkout")
