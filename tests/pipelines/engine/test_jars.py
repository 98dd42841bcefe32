"""Job servers of Java: which is found, and how Maven is asked for them."""

import re
from pathlib import Path

import pytest

from altalign.errors import AltalignError, UsageError
from altalign.pipelines.engine import jars


@pytest.fixture(autouse=True)
def _nothing_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*jars.VARIABLES.values(), "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALTALIGN_JARS", str(tmp_path / "jars"))


@pytest.mark.parametrize("runner", ["spark", "flink"])
def test_a_job_server_is_the_one_that_is_named_else_the_one_that_was_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runner: str
) -> None:
    with pytest.raises(
        UsageError,
        match=(
            rf"runner = {runner}: no job server; `make jars` brings one, or name its jar: "
            rf"{jars.VARIABLES[runner]}=PATH"
        ),
    ):
        jars.find(runner)
    made = tmp_path / "jars" / f"{runner}-job-server-2.62.0.jar"
    made.parent.mkdir()
    made.touch()
    assert jars.find(runner) == str(made)
    named = tmp_path / "mine.jar"
    monkeypatch.setenv(jars.VARIABLES[runner], str(named))
    with pytest.raises(UsageError, match=r"mine\.jar: no such file"):
        jars.find(runner)
    named.touch()
    assert jars.find(runner) == str(named)


def maven(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """A Maven that runs these lines of a shell; `$folder` is where it is to write."""
    path = folder / "bin" / "mvn"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\nfor each; do case $each in -Dfolder=*) folder=${{each#*=}};; esac; done\n{program}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent))


def test_maven_makes_a_jar_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maven(tmp_path, monkeypatch, f'echo "$@" >> {tmp_path}/given; echo made > "$folder/job-server-1.jar"')
    for _ in range(2):
        assert jars.main(["flink"]) == 0
        made = Path(jars.find("flink"))
        assert capsys.readouterr().out == f"flink: {made}: Beam's Java runner {made.stem.rpartition('-')[2]}\n"
    assert made.read_text() == "made\n"
    assert list(made.parent.iterdir()) == [made]
    (given,) = (tmp_path / "given").read_text().splitlines()
    pom = (Path(jars.__file__).parent / "job_server_pom.xml").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{(\w+)\}", pom)) == set(re.findall(r"-D(\w+)=", given))
    assert "-Drunner=beam-runners-flink-1.19 -Dmain=org.apache.beam.runners.flink.FlinkJobServerDriver" in given


def test_what_maven_fails_of_is_one_line_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    maven(tmp_path, monkeypatch, 'echo half > "$folder/job-server-1.jar"; echo "[ERROR] no such part"; exit 1')
    with pytest.raises(
        AltalignError, match=r"flink: Maven cannot make the job server \(no such part\); .* FLINK_JOB_SERVER_JAR=PATH"
    ):
        jars.main(["flink"])
    assert list(jars.folder().iterdir()) == []


def test_a_named_jar_is_not_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = tmp_path / "mine.jar"
    named.touch()
    monkeypatch.setenv("SPARK_JOB_SERVER_JAR", str(named))
    assert jars.main(["spark"]) == 0
    assert capsys.readouterr().out == f"spark: {named}, named by SPARK_JOB_SERVER_JAR\n"


def test_without_maven_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(
        AltalignError,
        match=r"mvn: no such program; install Maven, or give the job server's jar as SPARK_JOB_SERVER_JAR",
    ):
        jars.main(["spark"])
