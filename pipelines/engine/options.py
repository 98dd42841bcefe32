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
    DebugOptions,
    FlinkRunnerOptions,
    GoogleCloudOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
    SetupOptions,
    SparkRunnerOptions,
    StandardOptions,
    WorkerOptions,
)

from altalign import storage
from altalign.errors import UsageError, bring
from altalign.machine.cores import cores
from altalign.pipelines.run.units import files_named
from altalign.settings.curate import CurateConfig, EngineSettings

JOB_SERVER_VERSION = "2.62.0"  # of Beam's Java runners: the newest of which `make jars` could get all parts
KEEP_WORKERS_MS = 60_000  # otherwise Spark starts Python again for every stage of every pipeline
MASTER_FLAGS = {"spark": "spark_master_url", "flink": "flink_master"}  # of the runners that have a job server on Java

# A process each vCPU does one unit at a time in 0.5 to 1.2 GB (docs/concepts/scale.md), so that 4 GB a vCPU leave room
# for mapped tables and large images; four processes share one copy of the tables.
MACHINE_TYPE = "n2-standard-4"
# The system and the image 15, copies of tables and test side at most 3, a shard or a file of images that each of four
# processes is writing 4 x 5 (10,000 images of 500 KB); Dataflow's own 25 would not hold that.
DISK_GB = 50
MIN_RAM = "min_ram=4GB"  # of a worker of Dataflow Prime, which chooses machines itself; others do not look at it

_RUNNERS = {"prism": "PrismRunner", "spark": "SparkRunner", "flink": "FlinkRunner"}  # Beam's
_JARS = {"spark": "SPARK_JOB_SERVER_JAR", "flink": "FLINK_JOB_SERVER_JAR"}  # variables that name one
# Beam would ask pip, which may be missing, for all that is installed.
_PORTABLE = ("--requirements_cache=skip", "--experiments=disable_logging_submission_environment")
_LOCAL = {"spark": re.compile(r"local(\[.+\])?"), "flink": re.compile(r"\[(local|auto|collection)\]")}
_STORES = ("gs://", "s3://")  # what workers of Dataflow see
NEEDED = ("project", "region", "temp_location", "sdk_container_image")


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
    """Beam options of a runner; `flags` are the user's own, after `--`."""
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
            location = os.environ.get("ALTALIGN_PRISM", "")
            if not os.access(location, os.X_OK) or Path(location).is_dir():
                repair = "build Prism with `make prism` and give the path of its binary"
                raise UsageError(f"ALTALIGN_PRISM = {location or '(not set)'}: no program; {repair}")
            _check_no_workers(engine, "Prism decides itself how many work at once; leave it 0")
            own = [f"--prism_location={location}", "--prism_log_level=warn", "--prism_log_kind=text"]
            return Options(["--runner=PrismRunner", "--environment_type=LOOPBACK", *_PORTABLE, *own, *flags])
        case "spark" | "flink":
            return _of_cluster(engine, flags)
        case "dataflow":
            return _of_dataflow(engine, flags)


def check_places(config: CurateConfig) -> None:
    """Refuse files that workers of Dataflow would not see."""
    if config.engine.runner != "dataflow":
        return
    read_or_written = [("[run] folder", config.run.folder)]
    read_or_written += [("[input] paths", pattern) for settings in config.input for pattern in settings.paths]
    read_or_written += [("[decontaminate] test_sets", each.path) for each in config.decontaminate.named_sets]
    for setting, path in read_or_written:
        if not (path.startswith(_STORES) or storage.is_of_web(path)):
            raise UsageError(
                f'{setting}: {path}: on this machine\'s disk, which workers of engine.runner = "dataflow" do not see; '
                "give gs://BUCKET/PATH"
            )
    single = filter(None, (config.decontaminate.calibration, config.fetch.signing_key))
    for path in (*files_named(config), *config.fetch.blocked_domains, *single):
        if not (path.startswith(_STORES) or Path(path).is_absolute()):
            raise UsageError(
                f'{path}: workers of engine.runner = "dataflow" are not in this folder; give gs://BUCKET/PATH, or an '
                "absolute path that the image has"
            )


def _check_flags(flags: list[str]) -> None:
    """Refuse what Beam's parser would end the command for, with a page of usage or a trace."""
    wrong = [flag for flag in flags[:1] if not flag.startswith("--")]
    if wrong := wrong or [flag for flag in flags if re.match(r"--(\W|$)", flag)]:
        raise UsageError(f"-- {wrong[0]}: no flag of Beam, which are --NAME or --NAME=VALUE")
    message = io.StringIO()
    try:
        with redirect_stderr(message):
            PipelineOptions(flags).get_all_options()
    except SystemExit as ended:
        if not ended.code:  # --help
            raise
        why = message.getvalue().strip().rpartition("error: argument ")[2]
        raise UsageError(f"-- {why}; give a value that Beam takes") from None


def _check_no_workers(engine: EngineSettings, why: str) -> None:
    if engine.workers:
        raise UsageError(f"[engine] workers = {engine.workers}: {why}")


def _named(flags: Sequence[str]) -> list[str]:
    return [flag.split("=")[0].removeprefix("--") for flag in flags if flag.startswith("--")]


def unknown_flags(given: PipelineOptions) -> list[str]:
    """Names of the flags that Beam does not know; a job server may."""
    return sorted(given.get_all_options(retain_unknown_options=True).keys() - given.get_all_options().keys())


def _of_cluster(engine: EngineSettings, flags: list[str]) -> PipelineOptions:
    """Spark or Flink: inside the job server's process, or a cluster, when a flag names its master."""
    runner = engine.runner
    count, named = engine.workers or cores(), _named(flags)
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
    if not is_on_cluster(runner, given):
        portable.environment_type = portable.environment_type or "LOOPBACK"
        if runner == "flink" and "parallelism" not in named:
            given.view_as(FlinkRunnerOptions).parallelism = count
    else:
        _check_no_workers(engine, f"how many work at once is the cluster's to say ({master}); leave it 0")
    if not portable.environment_type:
        raise UsageError(
            f"-- --{MASTER_FLAGS[runner]}={master}: how Python starts on its machines is not said; "
            "give --environment_type=EXTERNAL --environment_config=localhost:PORT "
            "with `python -m altalign.pipelines.engine.worker_pool --port PORT` on each of them, "
            "or DOCKER or PROCESS"
        )
    launcher = given.view_as(JobServerOptions).job_server_java_launcher
    if not portable.job_endpoint and shutil.which(launcher) is None:
        repair = "install Java 11 or 17, or give -- --job_server_java_launcher=PATH"
        raise UsageError(f"{launcher}: no such program, and job servers of Spark and Flink run on Java; {repair}")
    return given


def jar_of(runner: str, given: PipelineOptions) -> str:
    """The path of the job server's jar: named by a flag or the environment, or made by `make jars`."""
    spark, flink = given.view_as(SparkRunnerOptions), given.view_as(FlinkRunnerOptions)
    flag = spark.spark_job_server_jar if runner == "spark" else flink.flink_job_server_jar
    variable = os.environ.get(_JARS[runner])
    if path := flag or variable:
        if Path(path).is_file():
            return path
        where = f"-- --{runner}_job_server_jar={path}" if flag else f"{_JARS[runner]} = {path}"
        raise UsageError(f"{where}: no such file; give the jar of a Beam job server, or none and run `make jars`")
    # where `make jars` keeps what it brings: outside of any checkout, for it is large and serves all of them
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    folder = Path(os.environ.get("ALTALIGN_JARS") or cache / "altalign" / "jars")
    if (made := folder / f"{runner}-job-server-{JOB_SERVER_VERSION}.jar").is_file():
        return str(made)
    raise UsageError(
        f"[engine] runner = {runner}: no job server; `make jars` brings one, or name its jar: {_JARS[runner]}=PATH"
    )


def is_on_cluster(runner: str, given: PipelineOptions) -> bool:
    """Whether the runner is Spark or Flink on a cluster, not inside the job server's process."""
    return runner in MASTER_FLAGS and not _LOCAL[runner].fullmatch(given.get_all_options()[MASTER_FLAGS[runner]])


def _of_dataflow(engine: EngineSettings, flags: list[str]) -> PipelineOptions:
    """Jobs on Google Cloud's Dataflow: the options that the user has not given."""
    where = '[engine] runner = "dataflow"'
    why = "how many work at once is Dataflow's to say; leave it 0, and bound its machines by -- --max_num_workers=N"
    _check_no_workers(engine, why)
    given = PipelineOptions(["--runner=DataflowRunner", *flags])
    values = given.get_all_options()
    if missing := [f"--{name}" for name in NEEDED if not values[name]]:
        raise UsageError(
            f"{where}: {', '.join(missing)} not given; `altalign curate CONFIG -- --project=ID --region=REGION "
            "--temp_location=gs://BUCKET/tmp --sdk_container_image=IMAGE` has them all, "
            "and `altalign retry` and `altalign add --test-set` take the same"
        )
    if not re.fullmatch(r"gs://[^/]{3,}/.+", values["temp_location"]):  # Beam would make a bucket of its own
        raise UsageError(f"-- --temp_location={values['temp_location']}: give gs://BUCKET/PATH, of your own bucket")
    try:
        from apache_beam.runners.dataflow.internal import apiclient  # noqa: F401 - a job cannot be made without
    except ImportError as error:
        raise UsageError(f"{where}: Beam is here without Google Cloud ({error}); {bring('dataflow')}") from None
    setup, worker = given.view_as(SetupOptions), given.view_as(WorkerOptions)
    debug, standard = given.view_as(DebugOptions), given.view_as(StandardOptions)
    if setup.sdk_location == "default":
        # Beam is in the image; else it is fetched from PyPI and installed anew on every worker
        setup.sdk_location = "container"
    if setup.save_main_session is None:
        # else, where pickles are cloudpickle's, the command's own process is sent along
        setup.save_main_session = False
    # nor is pip asked, for every job, what is installed here
    debug.add_experiment("disable_logging_submission_environment")
    # a process each vCPU has one unit in memory, not twelve
    debug.number_of_worker_harness_threads = debug.number_of_worker_harness_threads or 1
    worker.disk_size_gb = worker.disk_size_gb or DISK_GB
    if "enable_prime" not in (given.view_as(GoogleCloudOptions).dataflow_service_options or []):
        worker.machine_type = worker.machine_type or MACHINE_TYPE
    hints = standard.resource_hints or []
    if not any(hint.startswith("min_ram") for hint in hints):
        standard.resource_hints = [*hints, MIN_RAM]
    return given
