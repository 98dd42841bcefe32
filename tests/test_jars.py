"""Job servers of Java: how Maven is asked for them."""

import hashlib
import re
from pathlib import Path

import pytest

from altalign.pipelines.engine.options import JOB_SERVER_VERSION
from tools import jars


@pytest.fixture(autouse=True)
def _nothing_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*jars.VARIABLES.values(), "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALTALIGN_JARS", str(tmp_path / "jars"))


MAVEN = """#!/bin/sh
echo "$@" >> {folder}/given
for each; do case $each in
  -Dfolder=*) folder=${{each#*=}};; -Dmaven.repo.local=*) repository=${{each#*=}};; --offline) offline=yes;;
esac; done
/bin/mkdir -p "$repository/org/a"; cd "$repository/org/a"
if [ $offline ]; then {makes}; exit; fi
{brings}
printf "\\033[0m[ERROR] no altalign:nowhere:jar:1\\n[ERROR] \\n"
exit 1
"""


def maven(folder: Path, patch: pytest.MonkeyPatch, *, brings: str = ":", makes: str = "made") -> None:
    """A Maven that runs these lines of a shell, where it downloads and where it builds.

    `$folder` is where it writes, `$repository` where it keeps jars; what it was given is in `given`.
    """
    path = folder / "bin" / "mvn"
    path.parent.mkdir()
    makes = makes.replace("made", 'echo made > "$folder/job-server-1.jar"')
    path.write_text(MAVEN.format(folder=folder, makes=makes, brings=brings))
    path.chmod(0o755)
    patch.setenv("PATH", str(path.parent))


def given(folder: Path) -> list[str]:
    """What Maven was given, and nothing from then on."""
    found = (folder / "given").read_text().splitlines()
    (folder / "given").unlink()
    return found


def test_maven_makes_a_jar_once_of_parts_that_it_has_brought_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maven(tmp_path, monkeypatch)
    made = jars.folder() / f"flink-job-server-{JOB_SERVER_VERSION}.jar"
    for _ in range(2):
        assert jars.main(["flink"]) == 0
        assert capsys.readouterr().out == f"flink: {made}: Beam's Java runner {made.stem.rpartition('-')[2]}\n"
    assert made.read_text() == "made\n"
    assert list(made.parent.glob("*.jar")) == [made]
    assert not list(made.parent.glob("bringing-*"))
    first, second, last = given(tmp_path)
    assert " -Pbring jar:jar -D" in first
    assert " -Pbring shade:shade -D" in second
    assert " --offline jar:jar shade:shade -D" in last
    pom = jars.POM.read_text(encoding="utf-8")
    for each in (first, second, last):
        assert set(re.findall(r"\$\{(\w+)\}", pom)) == set(re.findall(r"-D(\w+)=", each))
        assert "-Drunner=beam-runners-flink-1.19 -Dmain=org.apache.beam.runners.flink.FlinkJobServerDriver" in each


@pytest.mark.parametrize(
    ("lines", "why", "calls"),
    [
        ({"brings": 'echo "[ERROR] no such server"; exit 1'}, r"bring the parts .* \(no such server\)", 1),
        ({"brings": "exit 0"}, r"bring the parts .* \(it has run a plug-in that nobody has compared\)", 1),
        ({"makes": 'made; echo "[ERROR] no such part"; exit 1'}, r"make the job server \(no such part\)", 3),
    ],
)
def test_what_maven_fails_of_is_one_line_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: dict[str, str], why: str, calls: int
) -> None:
    maven(tmp_path, monkeypatch, **lines)
    with pytest.raises(jars.JarsError, match=rf"flink: Maven cannot {why}; .* FLINK_JOB_SERVER_JAR=PATH"):
        jars.main(["flink"])
    assert [path.name for path in jars.folder().iterdir()] == ["repository"]
    assert len(given(tmp_path)) == calls


@pytest.mark.parametrize("listed", [None, "0" * 64])
def test_a_jar_that_is_not_the_one_that_is_listed_stops_it_before_maven_builds_and_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listed: str | None
) -> None:
    maven(tmp_path, monkeypatch, brings="echo good > a.jar; echo evil > b.jar")
    names = tmp_path / "listed.sha256"
    good, evil = (hashlib.sha256(f"{what}\n".encode()).hexdigest() for what in ("good", "evil"))
    names.write_text(f"{good}  org/a/a.jar\n" + (f"{listed}  org/a/b.jar\n" if listed else ""))
    monkeypatch.setattr(jars, "LISTED", names)
    what = f"its SHA-256 is {evil}, not {listed}" if listed else f"not listed, SHA-256 {evil}"
    with pytest.raises(jars.JarsError, match=rf"org/a/b\.jar: {what} \(listed\.sha256\); removed"):
        jars.main(["flink"])
    assert [path.name for path in jars.folder().rglob("*.jar")] == ["a.jar"]
    assert not [each for each in given(tmp_path) if "--offline" in each]
    names.write_text(f"{good}  org/a/a.jar\n{evil}  org/a/b.jar\n")
    assert jars.main(["flink"]) == 0


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
        jars.JarsError,
        match=r"mvn: no such program; install Maven, or give the job server's jar as SPARK_JOB_SERVER_JAR",
    ):
        jars.main(["spark"])
