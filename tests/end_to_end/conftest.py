"""A small input, and the working directory in it; a web server of four addresses; a run with scores."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.scored import scored_run
from tests.support.curations import Finished, write_input
from tests.web_server.running import WebServer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_input(tmp_path, rows=120)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    addresses = [f"127.0.0.{number}" for number in range(1, 5)]
    with WebServer(tmp_path_factory.mktemp("server"), addresses=addresses) as running:
        yield running


@pytest.fixture(scope="session")
def scored(embedded: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its scores; read only."""
    return scored_run(embedded, tmp_path_factory)
