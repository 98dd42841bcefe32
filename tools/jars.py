"""`make jars`: brings the job servers of Spark and Flink, and with --clusters the engines' own programs.

    python tools/jars.py [spark] [flink] [--clusters]

Maven puts each together as one jar, of the jars that `job_server_jars.sha256` lists and of no others: it downloads them
and the parts of its plug-ins and runs none, then they are compared, then it builds offline. Beam publishes such jars
too, but not every mirror of Maven Central has files of 300 MB: with one way, everybody runs the jar that the tests of
engines ran. The protocol between a job server and Python changes so seldom that an older job server serves.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
POM, LISTED = HERE / "job_server_pom.xml", HERE / "job_server_jars.sha256"
VARIABLES = {"spark": "SPARK_JOB_SERVER_JAR", "flink": "FLINK_JOB_SERVER_JAR"}
VERSION = "2.62.0"  # of Beam's Java runners, as altalign/pipelines/engine/options.py looks for it
RUNNERS = {
    "spark": ("beam-runners-spark-3", "org.apache.beam.runners.spark.SparkJobServerDriver"),
    "flink": ("beam-runners-flink-1.19", "org.apache.beam.runners.flink.FlinkJobServerDriver"),
}
# On PyPI: Spark's jars, which a job server runs jobs with, and what clusters of the same versions are started of; and
# the SHA-256 of their files.
PROGRAMS = {"spark": "pyspark==3.5.7", "flink": "apache-flink-libraries==1.19.3"}
DIGESTS = {
    "spark": "80e36514e0c5c126d35a26adf4f405cd4a69de96a8ea8a3c1e9a65fce2fb4eaa",
    "flink": "4a58e3a1fb7d83340bc96b6c080624c6d792d69fae5d294b96224775204a9c60",
}
GOALS = ("jar:jar", "shade:shade")
NOWHERE = "altalign:nowhere"  # what profile `bring` has each plug-in need, so that none is run


class JarsError(Exception):
    """What could not be brought, and why."""


def folder() -> Path:
    """Where all of it is kept: outside of any checkout, for it is large and serves all of them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return Path(os.environ.get("ALTALIGN_JARS") or cache / "altalign" / "jars")


def home(runner: str) -> Path:
    """The folder of an engine's own programs."""
    return folder() / PROGRAMS[runner].replace("==", "-") / ("pyspark" if runner == "spark" else "pyflink")


def main(arguments: Sequence[str]) -> int:
    """Bring the job servers of these runners (none named: of all), and say which they are."""
    for runner in [runner for runner in arguments if runner != "--clusters"] or list(RUNNERS):
        if "--clusters" in arguments:
            _install(runner)
            print(f"{runner}: {home(runner)}: {PROGRAMS[runner]}")
        jar = folder() / f"{runner}-job-server-{VERSION}.jar"
        if path := os.environ.get(VARIABLES[runner]):
            print(f"{runner}: {path}, named by {VARIABLES[runner]}")
            continue
        if not jar.is_file():
            _bring(runner, jar)
        print(f"{runner}: {jar}: Beam's Java runner {VERSION}")
    return 0


def _bring(runner: str, jar: Path) -> None:
    """Have Maven download the parts of a job server and of its own plug-ins, compare them, then have it build.

    Raises:
        JarsError: there is no Maven, it failed, or a jar is not the one that is listed.
    """
    give = f"give the job server's jar as {VARIABLES[runner]}=PATH"
    if shutil.which("mvn") is None:
        raise JarsError(f"mvn: no such program; install Maven, or {give}")
    if runner == "spark":
        _install("spark")
    artifact, main_class = RUNNERS[runner]
    jar.parent.mkdir(parents=True, exist_ok=True)
    repository = folder() / "repository"  # not that of other projects, where anything may lie
    with tempfile.TemporaryDirectory(dir=jar.parent, prefix="bringing-") as scratch:
        beside = sorted((home("spark") / "jars").glob("*.jar")) if runner == "spark" else []  # Beam's lean on them
        properties = {
            "beam": VERSION,
            "runner": artifact,
            "main": main_class,
            "beside": " ".join(path.absolute().as_uri() for path in beside),
            "folder": scratch,
            "maven.repo.local": str(repository),
        }
        given = [f"-D{name}={value}" for name, value in properties.items()]
        for goal in GOALS:
            error = _maven("-Pbring", goal, *given)
            if NOWHERE not in error:
                why = error or "it has run a plug-in that nobody has compared"
                raise JarsError(f"{runner}: Maven cannot bring the parts of the job server ({why}); {give}")
        check(repository)
        if error := _maven("--offline", *GOALS, *given):
            raise JarsError(f"{runner}: Maven cannot make the job server ({error}); {give}")
        Path(scratch, "job-server-1.jar").replace(jar)


def _maven(*arguments: str) -> str:
    """Run Maven; its error in a line, empty where there is none."""
    command = ["mvn", "-B", "-q", "--strict-checksums", "-Dstyle.color=never", "-f", str(POM), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = re.findall(r"\[ERROR\] (.+)", done.stdout)  # codes of colours may stand before one
    return "" if done.returncode == 0 else errors[0] if errors else f"exit code {done.returncode}"


def check(repository: Path) -> None:
    """Compare every jar of a repository, plug-ins of Maven among them, with the list that is checked in.

    Raises:
        JarsError: one is another, or is not listed; it is removed.
    """
    listed = {path: digest for digest, path in map(str.split, LISTED.read_text(encoding="utf-8").splitlines())}
    for jar in sorted(repository.rglob("*.jar")):
        path = jar.relative_to(repository).as_posix()
        with jar.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if listed.get(path) != digest:
            jar.unlink()
            why = f"its SHA-256 is {digest}, not {listed[path]}" if path in listed else f"not listed, SHA-256 {digest}"
            raise JarsError(
                f"{jar}: {why} ({LISTED.name}); removed. Run it again, and if it comes again, ask where it came from"
            )


def _install(runner: str) -> None:
    """A package of PyPI, by the digest of its file, alone in a folder."""
    requirement, into = PROGRAMS[runner], home(runner).parent
    if into.is_dir():
        return
    into.parent.mkdir(parents=True, exist_ok=True)
    uv = os.environ.get("UV") or shutil.which("uv")
    pip = [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
    with tempfile.TemporaryDirectory(dir=into.parent, prefix="bringing-") as scratch:
        listed = Path(scratch, "listed.txt")
        listed.write_text(f"{requirement} --hash=sha256:{DIGESTS[runner]}\n", encoding="utf-8")
        options = ["--quiet", "--no-deps", "--require-hashes", "--target", f"{scratch}/in", "-r", str(listed)]
        done = subprocess.run([*pip, "install", *options], capture_output=True, text=True, check=False)
        if done.returncode:
            raise JarsError(f"{requirement}: cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
        Path(scratch, "in").replace(into)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except JarsError as error:
        sys.exit(f"make jars: {error}")
