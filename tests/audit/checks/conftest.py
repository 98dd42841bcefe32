"""A finished run that tests of its checks damage copies of."""

from pathlib import Path

import pytest

from tests.audit import runs


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.curated(tmp_path_factory.mktemp("checked"))


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return runs.copied(whole, tmp_path / "run")
