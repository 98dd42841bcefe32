"""The Beam options of each runner, and what it refuses before any work."""

import io
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
    SparkRunnerOptions,
)

from altalign.errors import UsageError
from altalign.machine.cores import cores
from altalign.pipelines.engine import dataflow
from altalign.settings.curate import CurateConfig, EngineSettings

JOB_SERVER_VERSION = (
    "2.62.0"  # of Beam's Java runners that `make jars` brings: the newest of which all parts could be had
)
KEEP_WORKERS_MS = 60_000  # otherwise Spark starts Python again for every stage of every pipeline
MASTER_FLAGS = {"spark": "spark_master_url", "flink": "flink_master"}  # of the runners that have a job server on Java

_RUNNERS = {"prism": "PrismRunner", "spark": "SparkRunner", "flink": "FlinkRunner"}  # Beam's
_JARS = {"spark": "SPARK_JOB_SERVER_JAR", "flink": "FLINK_JOB_SERVER_JAR"}  # variables that name one
# Beam would ask pip, which may be missing, for all that is installed.
_PORTABLE = ("--requirements_cache=skip", "--experiments=disable_logging_submission_environment")
_LOCAL = {"spark": re.compile(r"local(\[.+\])?"), "flink": re.compile(r"\[(local|auto|collection)\]")}


class Options(PipelineOptions):
    """Beam's options. Beam asks for views of them hundreds of times a run, and would build a parser for each."""

    def view_as(self, cls: type[Any]) -> Any:
        """The options as those of `cls`; all views share their values."""
        views = _VIEWS.setdefault(self, {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]


_VIEWS = WeakKeyDictionary[Options, dict[type[Any], Any]]()  # beside the options, which are pickled


def options(engine: EngineSettings, flags: list[str]) -> PipelineOptions:
    """Beam options of a runner; `flags` are the user's own, after `--`.

    Raises:
        UsageError: the runner cannot be had, or cannot honour a setting or a flag.
    """
    _check_flags(flags)
    if "runner" in _named(flags):
        raise UsageError("-- --runner: the runner is a setting; give --set engine.runner=NAME")
    # those of Spark and Flink are asked
    if engine.runner not in MASTER_FLAGS and (unknown := unknown_flags(PipelineOptions(flags))):
        raise UsageError(f"-- --{unknown[0]}: Beam has no such flag; what it has are its pipeline options")
    match engine.runner:
        case "embedded":
            # In memory and one worker: threads are ours. "DirectRunner" would look for Prism first.
            return Options(["--runner=FnApiRunner", *flags])
        case "prism":
            prism()
            if engine.workers:
                why = "Prism decides itself how many work at once"
                raise UsageError(f"[engine] workers = {engine.workers}: {why}; leave it 0")
            own = [f"--prism_location={prism()}", "--prism_log_level=warn", "--prism_log_kind=text"]
            return Options(["--runner=PrismRunner", "--environment_type=LOOPBACK", *_PORTABLE, *own, *flags])
        case "spark" | "flink":
            return _of_cluster(engine, flags)
        case "dataflow":
            return dataflow.options(engine, flags)


def check_places(config: CurateConfig) -> None:
    """Refuse files that workers of the engine would not see.

    Raises:
        UsageError: the error names the first such file and its setting.
    """
    if config.engine.runner == "dataflow":
        dataflow.check_places(config)


def _check_flags(flags: list[str]) -> None:
    """Refuse what Beam's parser would end the command for, with a page of usage or a trace."""
    wrong = [flag for flag in flags[:1] if not flag.startswith("--")]
    if wrong := wrong or [flag for flag in flags if re.match(r"--(\W|$)", flag)]:
        raise UsageError(f"-- {wrong[0]}: no flag of Beam, which are --NAME or --NAME=VALUE")
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            PipelineOptions(flags).get_all_options()
    except SystemExit as ended:
        if not ended.code:  # --help
            raise
        why = said.getvalue().strip().rpartition("error: argument ")[2]
        raise UsageError(f"-- {why}; give a value that Beam takes") from None


def _named(flags: Sequence[str]) -> list[str]:
    return [flag.split("=")[0].removeprefix("--") for flag in flags if flag.startswith("--")]


def unknown_flags(given: PipelineOptions) -> list[str]:
    """Names of the flags that Beam does not know; a job server may."""
    return sorted(given.get_all_options(retain_unknown_options=True).keys() - given.get_all_options().keys())


def _of_cluster(engine: EngineSettings, flags: list[str]) -> PipelineOptions:
    """Spark or Flink: inside the job server's process, or a cluster, when a flag names its master."""
    runner = engine.runner
    count = engine.workers or cores()
    named = _named(flags)
    default = f"--{MASTER_FLAGS[runner]}=" + (f"local[{count}]" if runner == "spark" else "[local]")
    added = [f"--runner={_RUNNERS[runner]}", *_PORTABLE, *([] if MASTER_FLAGS[runner] in named else [default])]
    if "job_endpoint" not in named:
        jar = jar_of(runner, PipelineOptions(flags))
        added += [f"--{runner}_job_server_jar={jar}"]
        # Else every jar of its class path, 300 MB of Spark's own, goes to each executor of each job.
        added += [] if "files_to_stage" in named else [f"--files_to_stage={jar}"]
    given = Options([*added, *flags])
    master = given.get_all_options()[MASTER_FLAGS[runner]]
    portable = given.view_as(PortableOptions)
    if "environment_cache_millis" not in named:
        portable.environment_cache_millis = KEEP_WORKERS_MS
    if _LOCAL[runner].fullmatch(master):
        portable.environment_type = portable.environment_type or "LOOPBACK"
        if runner == "flink" and "parallelism" not in named:
            given.view_as(FlinkRunnerOptions).parallelism = count
    else:
        if engine.workers:
            why = f"how many work at once is the cluster's to say ({master})"
            raise UsageError(f"[engine] workers = {engine.workers}: {why}; leave it 0")
        if not portable.environment_type:
            raise UsageError(
                f"-- --{MASTER_FLAGS[runner]}={master}: how Python starts on its machines is not said; "
                "give --environment_type=EXTERNAL --environment_config=localhost:PORT "
                "with `python -m altalign.pipelines.engine.worker_pool --port PORT` on each of them, "
                "or DOCKER or PROCESS"
            )
    if not portable.job_endpoint:
        java(given)
    return given


def jar_of(runner: str, given: PipelineOptions) -> str:
    """The path of the job server's jar: named by a flag or the environment, or made by `make jars`.

    Raises:
        UsageError: there is none.
    """
    spark, flink = given.view_as(SparkRunnerOptions), given.view_as(FlinkRunnerOptions)
    flag = spark.spark_job_server_jar if runner == "spark" else flink.flink_job_server_jar
    variable = os.environ.get(_JARS[runner])
    if path := flag or variable:
        if Path(path).is_file():
            return path
        where = f"-- --{runner}_job_server_jar={path}" if flag else f"{_JARS[runner]} = {path}"
        raise UsageError(f"{where}: no such file; give the jar of a Beam job server, or none and run `make jars`")
    if (made := jars() / f"{runner}-job-server-{JOB_SERVER_VERSION}.jar").is_file():
        return str(made)
    raise UsageError(
        f"[engine] runner = {runner}: no job server; `make jars` brings one, or name its jar: {_JARS[runner]}=PATH"
    )


def jars() -> Path:
    """Where `make jars` keeps what it brings: outside of any checkout, for it is large and serves all of them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return Path(os.environ.get("ALTALIGN_JARS") or cache / "altalign" / "jars")


def is_on_cluster(runner: str, given: PipelineOptions) -> bool:
    """Whether the runner is Spark or Flink on a cluster, not inside the job server's process."""
    return runner in MASTER_FLAGS and not _LOCAL[runner].fullmatch(given.get_all_options()[MASTER_FLAGS[runner]])


def java(given: PipelineOptions) -> str:
    """The path of the program that job servers of Spark and Flink run on.

    Raises:
        UsageError: there is no such program.
    """
    launcher = given.view_as(JobServerOptions).job_server_java_launcher
    found = shutil.which(launcher)
    if found is None:
        repair = "install Java 11 or 17, or give -- --job_server_java_launcher=PATH"
        raise UsageError(f"{launcher}: no such program, and job servers of Spark and Flink run on Java; {repair}")
    return found


def prism() -> str:
    """The path of the Prism binary, from the environment.

    Raises:
        UsageError: it is not named, or is no program.
    """
    location = os.environ.get("ALTALIGN_PRISM", "")
    if not location:
        repair = "build one with `make prism` and set ALTALIGN_PRISM to its path"
        raise UsageError(f"[engine] runner = prism: no Prism binary; {repair}")
    if not os.access(location, os.X_OK) or Path(location).is_dir():
        repair = "build Prism with `make prism` and give the path of its binary"
        raise UsageError(f"ALTALIGN_PRISM = {location}: no program; {repair}")
    return location
