"""Job servers of Spark and Flink, in Java: where they are, and `make jars`, which brings them.

Maven puts each together as one jar. Beam publishes such jars too, but not every mirror of Maven Central has files of
300 MB: with one way, everybody runs the jar that the tests of engines ran. The protocol between a job server and Python
changes so seldom that an older job server serves.
"""

import os
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
    """Where an engine's own programs are, of which clusters are started.

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
    """Have Maven put a job server together.

    Raises:
        AltalignError: there is no Maven, or it failed.
    """
    give = f"give the job server's jar as {VARIABLES[runner]}=PATH"
    if shutil.which("mvn") is None:
        raise AltalignError(f"mvn: no such program; install Maven, or {give}")
    artifact, main_class = _RUNNERS[runner]
    jar.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jar.parent, prefix="bringing-") as scratch:
        properties = {
            "beam": _JAVA_VERSION,
            "runner": artifact,
            "main": main_class,
            "opened": " ".join(OPENED),
            "beside": " ".join(path.absolute().as_uri() for path in (_of_spark() if runner == "spark" else ())),
            "folder": scratch,
        }
        given = [f"-D{name}={value}" for name, value in properties.items()]
        pom = Path(__file__).with_name("job_server_pom.xml")
        done = subprocess.run(
            ["mvn", "-B", "-q", "-Dstyle.color=never", "-f", str(pom), "jar:jar", "shade:shade", *given],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            errors = (line for line in done.stdout.splitlines() if line.startswith("[ERROR] "))
            said = next(errors, f"exit code {done.returncode}").removeprefix("[ERROR] ")
            raise AltalignError(f"{runner}: Maven cannot make the job server ({said}); {give}")
        Path(scratch, "job-server-1.jar").replace(jar)


def _of_spark() -> list[Path]:
    """Spark's own jars, which Beam's lean on."""
    _install(_PROGRAMS["spark"], home("spark").parent)
    return sorted((home("spark") / "jars").glob("*.jar"))


def _install(requirement: str, into: Path) -> None:
    """A package of PyPI, alone in a folder."""
    if into.is_dir():
        return
    into.parent.mkdir(parents=True, exist_ok=True)
    pip = [uv, "pip"] if (uv := os.environ.get("UV") or shutil.which("uv")) else [sys.executable, "-m", "pip"]
    with tempfile.TemporaryDirectory(dir=into.parent, prefix="bringing-") as scratch:
        done = subprocess.run(
            [*pip, "install", "--quiet", "--no-deps", "--target", f"{scratch}/in", requirement],
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
