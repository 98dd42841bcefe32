"""Jars that are there, and start nothing."""

from pathlib import Path

import pytest

from altalign.pipelines.engine import jars


@pytest.fixture
def jars_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Files where the job servers' jars are meant to be; no job server is started here."""
    monkeypatch.setenv("ALTALIGN_JARS", str(tmp_path))
    for runner, variable in jars.VARIABLES.items():
        monkeypatch.delenv(variable, raising=False)
        (tmp_path / f"{runner}-job-server-2.62.0.jar").touch()
    return tmp_path
