"""A finished run that tests of its checks damage copies of."""

from pathlib import Path

import pytest

from tests.support import finished_runs as runs
from tests.support.curations import Finished


@pytest.fixture
def whole(embedded: Finished) -> Path:
    return embedded.folder / "run"


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return runs.copied(whole, tmp_path / "run")
