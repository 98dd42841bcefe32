"""A small input, and the working directory in it."""

from pathlib import Path

import pytest

from tests.end_to_end.runs import write_input


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_input(tmp_path, rows=120)
    monkeypatch.chdir(tmp_path)
    return tmp_path
