"""A small input, and the working directory in it; a finished run that others are compared with."""

from pathlib import Path

import pytest

from tests.end_to_end.runs import Finished, altalign, listed, tree, write_input


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_input(tmp_path, rows=120)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of the small input inside one process."""
    folder = tmp_path_factory.mktemp("embedded")
    write_input(folder)
    done = altalign(folder, "curate", "config.toml")
    assert done.returncode == 0, done.stderr
    return Finished(folder, tree(folder / "run"), listed(folder / "run"))
