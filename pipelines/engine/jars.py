"""Job servers of Spark and Flink, in Java: where they are, and `make jars`, which brings them.

Maven puts each together as one jar, of the jars that `job_server_jars.sha256` lists and of no others: it downloads them
and the parts of its plug-ins and runs none, then they are compared, then it builds offline. Beam publishes such
jars too, but not every mirror of Maven Central has files of 300 MB: with one way, everybody runs the jar that the
tests of engines ran. The protocol between a job server and Python changes so seldom that an older job server serves.
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

from altalign.errors import AltalignError, UsageError

VARIABLES = {"spark": "SPARK_JOB_SERVER_JAR", "flink": "FLINK_JOB_SERVER_JAR"}

SPARK_VERSION = "3.5.7"  # PyPI's pyspark, whose jars a job server runs jobs with; a cluster is of the same version
FLINK_VERSION = "1.19.3"  # a cluster's: PyPI's apache-flink-libraries
_PROGRAMS = {"spark": f"pyspark=={SPARK_VERSION}", "flink": f"apache-flink-libraries=={FLINK_VERSION}"}
_DIGESTS = {  # SHA-256 of their files on PyPI
    _PROGRAMS["spark"]: "80e36514e0c5c126d35a26adf4f405cd4a69de96a8ea8a3c1e9a65fce2fb4eaa",
    _PROGRAMS["flink"]: "4a58e3a1fb7d83340bc96b6c080624c6d792d69fae5d294b96224775204a9c60",
}
_JAVA_OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.time",
    "java.util",
    "java.util.concurrent",
)
# Packages of Java 17 that Spark and Flink reach into.
OPENED = tuple(
    f"java.base/{package}"
    for package in (*_JAVA_OPENED, "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar")
)


_JAVA_VERSION = "2.62.0"  # of Beam's Java runners: the newest of which all parts could be had
_RUNNERS = {
    "spark": ("beam-runners-spark-3", "org.apache.beam.runners.spark.SparkJobServerDriver"),
    "flink": ("beam-runners-flink-1.19", "org.apache.beam.runners.flink.FlinkJobServerDriver"),
}


_LISTED = Path(__file__).with_name("job_server_jars.sha256")


def folder() -> Path:
    """Where `make jars` keeps what it brings: outside of any checkout, for it is large and serves all of them."""
    return Path(
        os.environ.get("ALTALIGN_JARS")
        or Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "altalign", "jars")
    )


def find(runner: str) -> str:
    """The jar of a runner's job server: named by the environment, or made by `make jars`.

    Raises:
        UsageError: there is none.
    """
    named = os.environ.get(VARIABLES[runner])
    path = Path(named) if named else _made(runner)
    if path.is_file():
        return str(path)
    if named:
        raise UsageError(
            f"{VARIABLES[runner]} = {named}: no such file; give the jar of a Beam job server, or unset it and run "
            "`make jars`"
        )
    raise UsageError(
        f"[engine] runner = {runner}: no job server; `make jars` brings one, or name its jar: {VARIABLES[runner]}=PATH"
    )


def _made(runner: str) -> Path:
    return folder() / f"{runner}-job-server-{_JAVA_VERSION}.jar"


def home(runner: str) -> Path:
    """The folder of an engine's own programs, which start clusters.

    `make jars` brings Spark's with its job server; Flink's come when they are asked for.
    """
    name, _, version = _PROGRAMS[runner].partition("==")
    return folder() / f"{name}-{version}" / ("pyspark" if runner == "spark" else "pyflink")


def main(arguments: Sequence[str]) -> int:
    """Bring the job servers of these runners (none named: of all), and say which they are.

    With "--clusters" also bring what clusters are started of.
    """
    for runner in [runner for runner in arguments if runner != "--clusters"] or list(_RUNNERS):
        if "--clusters" in arguments:
            _install(_PROGRAMS[runner], home(runner).parent)
            print(f"{runner}: {home(runner)}: {_PROGRAMS[runner]}")  # noqa: T201 - a program of its own
        if os.environ.get(VARIABLES[runner]):
            print(f"{runner}: {find(runner)}, named by {VARIABLES[runner]}")  # noqa: T201 - a program of its own
            continue
        if not (jar := _made(runner)).is_file():
            _bring(runner, jar)
        print(f"{runner}: {jar}: Beam's Java runner {_JAVA_VERSION}")  # noqa: T201
    return 0


def _bring(runner: str, jar: Path) -> None:
    """Have Maven download the parts of a job server and of its own plug-ins, compare them, then have it build.

    Raises:
        AltalignError: there is no Maven, it failed, or a jar is not the one that is listed.
    """
    give = f"give the job server's jar as {VARIABLES[runner]}=PATH"
    if shutil.which("mvn") is None:
        raise AltalignError(f"mvn: no such program; install Maven, or {give}")
    artifact, main_class = _RUNNERS[runner]
    jar.parent.mkdir(parents=True, exist_ok=True)
    repository = folder() / "repository"  # not that of other projects, where anything may lie
    with tempfile.TemporaryDirectory(dir=jar.parent, prefix="bringing-") as scratch:
        properties = {
            "beam": _JAVA_VERSION,
            "runner": artifact,
            "main": main_class,
            "opened": " ".join(OPENED),
            "beside": " ".join(path.absolute().as_uri() for path in (_of_spark() if runner == "spark" else ())),
            "folder": scratch,
        }
        given = [f"-D{name}={value}" for name, value in properties.items()] + [f"-Dmaven.repo.local={repository}"]
        for goal in _GOALS:
            said = _maven("-Pbring", goal, *given)
            if _NOWHERE not in said:
                why = said or "it has run a plug-in that nobody has compared"
                raise AltalignError(f"{runner}: Maven cannot bring the parts of the job server ({why}); {give}")
        check(repository)
        if said := _maven("--offline", *_GOALS, *given):
            raise AltalignError(f"{runner}: Maven cannot make the job server ({said}); {give}")
        Path(scratch, "job-server-1.jar").replace(jar)


_GOALS = ("jar:jar", "shade:shade")
_NOWHERE = "altalign:nowhere"  # what profile `bring` has each plug-in need, so that none is run


def _maven(*arguments: str) -> str:
    """Run Maven; what it fails of, in a line, empty where it does not."""
    pom = Path(__file__).with_name("job_server_pom.xml")
    done = subprocess.run(
        ["mvn", "-B", "-q", "--strict-checksums", "-Dstyle.color=never", "-f", str(pom), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    errors = re.findall(r"\[ERROR\] (.+)", done.stdout)  # codes of colours may stand before one
    return "" if done.returncode == 0 else errors[0] if errors else f"exit code {done.returncode}"


def check(repository: Path) -> None:
    """Compare every jar of a repository, plug-ins of Maven among them, with the list that is checked in.

    Raises:
        AltalignError: one is another, or is not listed; it is removed.
    """
    listed = {path: digest for digest, path in map(str.split, _LISTED.read_text(encoding="utf-8").splitlines())}
    for jar in sorted(repository.rglob("*.jar")):
        path = jar.relative_to(repository).as_posix()
        with jar.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if listed.get(path) != found:
            jar.unlink()
            why = f"its SHA-256 is {found}, not {listed[path]}" if path in listed else f"not listed, SHA-256 {found}"
            raise AltalignError(
                f"{jar}: {why} ({_LISTED.name}); removed. Run it again, and if it comes again, ask where it came from"
            )


def _of_spark() -> list[Path]:
    """Spark's own jars, which Beam's lean on."""
    _install(_PROGRAMS["spark"], home("spark").parent)
    return sorted((home("spark") / "jars").glob("*.jar"))


def _install(requirement: str, into: Path) -> None:
    """A package of PyPI, by the digest of its file, alone in a folder."""
    if into.is_dir():
        return
    into.parent.mkdir(parents=True, exist_ok=True)
    pip = [uv, "pip"] if (uv := os.environ.get("UV") or shutil.which("uv")) else [sys.executable, "-m", "pip"]
    with tempfile.TemporaryDirectory(dir=into.parent, prefix="bringing-") as scratch:
        listed = Path(scratch, "listed.txt")
        listed.write_text(f"{requirement} --hash=sha256:{_DIGESTS[requirement]}\n", encoding="utf-8")
        asked = ["install", "--quiet", "--no-deps", "--require-hashes", "--target", f"{scratch}/in", "-r", str(listed)]
        done = subprocess.run(
            [*pip, *asked],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise AltalignError(f"{requirement}: cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
        Path(scratch, "in").replace(into)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except AltalignError as error:
        sys.exit(f"make jars: {error}")
