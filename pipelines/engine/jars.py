"""Job servers of Spark and Flink, in Java: where they are, and `make jars`, which brings them.

Beam publishes one jar for each runner and version. Where it cannot be had, the newest version of which all parts can be
had is put together by Maven; the protocol between a job server and Python changes so seldom that an older one serves
(the tests of engines say whether it does).
"""

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from altalign.errors import AltalignError, UsageError

VARIABLES = {"spark": "SPARK_JOB_SERVER_JAR", "flink": "FLINK_JOB_SERVER_JAR"}

SPARK_VERSION = "3.5.7"  # PyPI's pyspark, whose jars a job server runs jobs with; a cluster is of the same version
FLINK_VERSION = "1.19.3"  # a cluster's: PyPI's apache-flink-libraries
_PROGRAMS = {"spark": f"pyspark=={SPARK_VERSION}", "flink": f"apache-flink-libraries=={FLINK_VERSION}"}
REPOSITORY = "https://repo.maven.apache.org/maven2"
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


class _JobServer(NamedTuple):
    published: str  # the artifact of all in one
    parts: tuple[str, ...]  # the artifacts it can be made of
    main_class: str


_SERVERS = {
    "spark": _JobServer(
        "beam-runners-spark-3-job-server",
        ("beam-runners-spark-3", "beam-runners-java-job-service"),
        "org.apache.beam.runners.spark.SparkJobServerDriver",
    ),
    "flink": _JobServer(
        "beam-runners-flink-1.19-job-server",
        ("beam-runners-flink-1.19", "beam-runners-java-job-service"),
        "org.apache.beam.runners.flink.FlinkJobServerDriver",
    ),
}
# A service that is left out: it reads gs://, which we have no need of, and works with no Guava as old as that of
# Spark's executors, where the first task of every job would fail.
_LEFT_OUT = b"org.apache.beam.sdk.extensions.gcp.storage.GcsFileSystemRegistrar"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>altalign</groupId><artifactId>job-server</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{}</dependencies>
</project>
"""
_PART = "<dependency><groupId>org.apache.beam</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


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
            f"{VARIABLES[runner]} = {named}: no such file; give the jar of a Beam job server, or unset it and run `make jars`"
        )
    raise UsageError(
        f"[engine] runner = {runner}: no job server; `make jars` brings one, or name its jar: {VARIABLES[runner]}=PATH"
    )


def _made(runner: str) -> Path:
    return folder() / f"{runner}-job-server.jar"


def home(runner: str) -> Path:
    """Where an engine's own programs are, of which clusters are started: with Spark's, `make jars` brings its jars; Flink's come when they are asked for."""
    name, _, version = _PROGRAMS[runner].partition("==")
    return folder() / f"{name}-{version}" / ("pyspark" if runner == "spark" else "pyflink")


def main(arguments: Sequence[str]) -> int:
    """Bring the job servers of these runners (none named: of all), and say which they are; with "--clusters" also what clusters are started of."""
    for runner in [runner for runner in arguments if runner != "--clusters"] or list(_SERVERS):
        if "--clusters" in arguments:
            _install(_PROGRAMS[runner], home(runner).parent)
            print(f"{runner}: {home(runner)}: {_PROGRAMS[runner]}")  # noqa: T201 - a program of its own
        if os.environ.get(VARIABLES[runner]):
            print(f"{runner}: {find(runner)}, named by {VARIABLES[runner]}")  # noqa: T201 - a program of its own
            continue
        jar = _made(runner)
        if not jar.is_file() or not jar.with_suffix(".json").is_file():
            _bring(runner, jar)
        facts = json.loads(jar.with_suffix(".json").read_text(encoding="utf-8"))
        print(f"{runner}: {jar}: Beam's Java runner {facts['version']} ({facts['form']}), sha256 {facts['sha256']}")  # noqa: T201
    return 0


def _bring(runner: str, jar: Path) -> None:
    """The published jar of Beam's own version, else one put together; its facts beside it, last."""
    beam_version = importlib.metadata.version("apache-beam")
    jar.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jar.parent, prefix="bringing-") as scratch:
        published = _SERVERS[runner].published
        if (
            _maven(
                "dependency:copy",
                f"-Dartifact=org.apache.beam:{published}:{beam_version}",
                f"-DoutputDirectory={scratch}/published",
            )
            is None
        ):
            found = Path(scratch, "published", f"{published}-{beam_version}.jar")
            version, form, parts = beam_version, "published", [found]
        else:
            version, parts = _parts(runner, beam_version, Path(scratch))
            form, found = (
                f"put together of {len(parts)} jars, for {published} {beam_version} cannot be had",
                Path(scratch, "job-server.jar"),
            )
            join_jars(found, parts, _SERVERS[runner].main_class, _of_spark() if runner == "spark" else ())
        facts = {
            "form": form,
            "version": version,
            "sha256": _sha256(found),
            "parts": {part.name: _sha256(part) for part in parts},
        }
        jar.with_suffix(".json").unlink(missing_ok=True)
        found.replace(jar)
    jar.with_suffix(".json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _parts(runner: str, newest: str, scratch: Path) -> tuple[str, list[Path]]:
    """The newest version, not above this one, of which Maven finds everything; and its jars."""
    artifacts = _SERVERS[runner].parts
    versions = sorted(set.intersection(*(_versions(artifact) for artifact in artifacts)), reverse=True)
    said: str | None = "no version that has all of it"
    for version in (version for version in versions if version <= _numbers(newest)):
        name = ".".join(map(str, version))
        pom = scratch / "pom.xml"
        pom.write_text(_POM.format("".join(_PART.format(artifact, name) for artifact in artifacts)), encoding="utf-8")
        out = scratch / name
        said = _maven(
            "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={out}", "-DincludeScope=runtime"
        )
        if said is None:
            return name, sorted(out.glob("*.jar"))
    raise AltalignError(
        f"{runner}: no job server can be had from {REPOSITORY} ({said}); give its jar as {VARIABLES[runner]}=PATH"
    )


def _versions(artifact: str) -> set[tuple[int, ...]]:
    address = f"{REPOSITORY}/org/apache/beam/{artifact}/maven-metadata.xml"
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return {_numbers(version) for version in re.findall(r"<version>([\d.]+)</version>", answer.read().decode())}
    except OSError as error:
        raise AltalignError(
            f"{address}: {error}; look to the network, or give a job server's jar as {' or '.join(VARIABLES.values())}"
        ) from None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split(".") if number.isdecimal())


def _maven(*arguments: str) -> str | None:
    """Run Maven; None, or the line that says why it failed."""
    if shutil.which("mvn") is None:
        raise AltalignError(
            "mvn: no such program; install Maven, or give job servers' jars as "
            + " and ".join(f"{name}=PATH" for name in VARIABLES.values())
        )
    done = subprocess.run(
        ["mvn", "-B", "-q", "-Dstyle.color=never", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return None
    return next(
        (line for line in done.stdout.splitlines() if line.startswith("[ERROR]")), f"exit code {done.returncode}"
    ).removeprefix("[ERROR] ")


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


def join_jars(out: Path, parts: Iterable[Path], main_class: str, beside: Iterable[Path]) -> None:
    """One jar of all: of files of one name the first, but the lists of services whole. `beside` comes after it on the class path.

    One, for Spark copies each jar of a class path to every executor of every job.
    """
    services: dict[str, list[bytes]] = {}
    taken = {"META-INF/MANIFEST.MF"}
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as joined:
        entries = {
            "Manifest-Version": "1.0",
            "Main-Class": main_class,
            "Add-Opens": " ".join(OPENED),
            "Class-Path": " ".join(path.absolute().as_uri() for path in beside),
        }
        joined.writestr(
            "META-INF/MANIFEST.MF",
            "".join(f"{_folded(f'{name}: {value}')}\r\n" for name, value in entries.items() if value) + "\r\n",
        )
        for part in parts:
            with zipfile.ZipFile(part) as source:
                for name in source.namelist():
                    if name.startswith("META-INF/services/") and not name.endswith("/"):
                        services.setdefault(name, []).append(source.read(name))
                    elif name not in taken and not _is_of_its_jar_alone(name):
                        taken.add(name)
                        joined.writestr(name, source.read(name))
        for name, lists in services.items():
            joined.writestr(name, b"\n".join(lists).replace(_LEFT_OUT, b""))


def _is_of_its_jar_alone(name: str) -> bool:
    """Folders, modules' names, signatures, an index of classes: they say something of one jar, and would be wrong of all."""
    return (
        name.endswith(("/", "module-info.class"))
        or re.fullmatch(r"META-INF/(INDEX\.LIST|[^/]*\.(SF|RSA|DSA))", name, re.IGNORECASE) is not None
    )


def _folded(line: str) -> str:
    """A line of a manifest, which holds at most 72 bytes; it goes on after a space."""
    return "\r\n ".join([line[:70], *(line[at : at + 69] for at in range(70, len(line), 69))])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except AltalignError as error:
        sys.exit(f"make jars: {error}")
