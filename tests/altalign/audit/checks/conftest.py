"""A finished run that tests of its checks damage copies of."""

from pathlib import Path

import pytest

from tests.altalign.audit import runs
from tests.end_to_end.runs import Finished


@pytest.fixture
def whole(embedded: Finished) -> Path:
    return embedded.folder / "run"


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return runs.copied(whole, tmp_path / "run")
