"""Jars that are there, and start nothing."""

from pathlib import Path

import pytest

from altalign.pipelines.engine import options


@pytest.fixture
def jars_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Files where the job servers' jars are meant to be; no job server is started here."""
    monkeypatch.setenv("ALTALIGN_JARS", str(tmp_path))
    for runner in ("spark", "flink"):
        monkeypatch.delenv(f"{runner.upper()}_JOB_SERVER_JAR", raising=False)
        (tmp_path / f"{runner}-job-server-{options.JOB_SERVER_VERSION}.jar").touch()
    return tmp_path
