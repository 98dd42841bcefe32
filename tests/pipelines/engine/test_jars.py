"""Job servers of Java: which is found, and one jar of many."""

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from altalign.errors import AltalignError, UsageError
from altalign.pipelines.engine import jars


@pytest.fixture(autouse=True)
def _nothing_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*jars.VARIABLES.values(), "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALTALIGN_JARS", str(tmp_path / "jars"))


def jar_of(path: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as jar:
        for name, data in entries.items():
            jar.writestr(name, data)
    return path


@pytest.mark.parametrize("runner", ["spark", "flink"])
def test_a_job_server_is_the_one_that_is_named_else_the_one_that_was_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runner: str
) -> None:
    with pytest.raises(
        UsageError,
        match=rf"runner = {runner}: no job server; `make jars` brings one, or name its jar: {jars.VARIABLES[runner]}=PATH",
    ):
        jars.find(runner)
    made = tmp_path / "jars" / f"{runner}-job-server.jar"
    made.parent.mkdir()
    made.touch()
    assert jars.find(runner) == str(made)
    named = tmp_path / "mine.jar"
    monkeypatch.setenv(jars.VARIABLES[runner], str(named))
    with pytest.raises(UsageError, match=r"mine\.jar: no such file"):
        jars.find(runner)
    named.touch()
    assert jars.find(runner) == str(named)


def test_one_jar_has_the_first_of_each_file_all_services_and_nothing_that_speaks_of_one_jar(tmp_path: Path) -> None:
    first = jar_of(
        tmp_path / "a.jar",
        {
            "META-INF/MANIFEST.MF": b"Main-Class: Other\r\n",
            "META-INF/A.SF": b"signed",
            "META-INF/INDEX.LIST": b"only my classes",
            "META-INF/services/Codec": b"one",
            "x/A.class": b"first",
            "module-info.class": b"a",
        },
    )
    second = jar_of(tmp_path / "b.jar", {"META-INF/services/Codec": b"two", "x/A.class": b"second", "x/B.class": b"b"})
    jars.join_jars(tmp_path / "all.jar", [first, second], "x.Main", [tmp_path / f"beside-{i}.jar" for i in range(9)])
    with zipfile.ZipFile(tmp_path / "all.jar") as joined:
        assert sorted(joined.namelist()) == [
            "META-INF/MANIFEST.MF",
            "META-INF/services/Codec",
            "x/A.class",
            "x/B.class",
        ]
        assert joined.read("x/A.class") == b"first"
        assert joined.read("META-INF/services/Codec").split() == [b"one", b"two"]
        manifest = joined.read("META-INF/MANIFEST.MF").decode()
    assert all(len(line.encode()) <= 72 for line in manifest.split("\r\n"))
    whole = dict(line.split(": ", 1) for line in manifest.replace("\r\n ", "").split("\r\n") if line)
    assert whole["Main-Class"] == "x.Main"
    assert whole["Class-Path"].split() == [(tmp_path / f"beside-{i}.jar").as_uri() for i in range(9)]
    assert whole["Add-Opens"].split() == list(jars.OPENED)


@pytest.mark.skipif(
    not (shutil.which("javac") and shutil.which("jar")),
    reason="javac is not installed, which makes a jar that can be run",
)
def test_a_joined_jar_runs_with_what_lies_beside_it(tmp_path: Path) -> None:
    """A real program whose other half is in a jar on the class path of the manifest, whose name is long enough to be folded."""
    (tmp_path / "Main.java").write_text(
        "class Main { public static void main(String[] a) { System.out.println(Other.said()); } }"
    )
    (tmp_path / "Other.java").write_text('class Other { static String said() { return "both"; } }')
    subprocess.run(["javac", "-d", ".", "Main.java", "Other.java"], cwd=tmp_path, check=True)
    beside = tmp_path / ("a long name " * 9 + ".jar")
    jar_of(beside, {"Other.class": (tmp_path / "Other.class").read_bytes()})
    jars.join_jars(
        tmp_path / "main.jar",
        [jar_of(tmp_path / "half.jar", {"Main.class": (tmp_path / "Main.class").read_bytes()})],
        "Main",
        [beside],
    )
    done = subprocess.run(["java", "-jar", tmp_path / "main.jar"], capture_output=True, text=True, check=False)
    assert done.stdout == "both\n", done.stderr


def test_what_is_made_is_said_and_a_named_one_is_not_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = tmp_path / "mine.jar"
    named.touch()
    monkeypatch.setenv("SPARK_JOB_SERVER_JAR", str(named))
    assert jars.main(["spark"]) == 0
    assert capsys.readouterr().out == f"spark: {named}, named by SPARK_JOB_SERVER_JAR\n"
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "flink-job-server.jar").touch()
    (folder / "flink-job-server.json").write_text(
        '{"version": "2.62.0", "form": "published", "sha256": "ab", "parts": {}}'
    )
    assert jars.main(["flink"]) == 0
    assert "Beam's Java runner 2.62.0 (published), sha256 ab" in capsys.readouterr().out


def test_without_maven_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(
        AltalignError,
        match=r"mvn: no such program; install Maven, or give job servers' jars as SPARK_JOB_SERVER_JAR=PATH and FLINK_JOB",
    ):
        jars.main(["spark"])
