"""What each runner needs. The only place that knows runners by name."""

import functools
import hashlib
import io
import json
import os
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, suppress
from pathlib import Path
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
    SparkRunnerOptions,
)
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.runner import PipelineResult
from apache_beam.runners.worker import sdk_worker

from altalign import storage, terminal
from altalign.curation import CurateConfig, EngineSettings
from altalign.errors import AltalignError, UsageError
from altalign.machine import interrupts
from altalign.machine.cores import cores
from altalign.pipelines.engine import dataflow, flink, jars, unit_errors
from altalign.pipelines.engine.servers import Server, serving
from altalign.pipelines.run.units import Run, Unit

# written into a job itself; more are read from a file, for the request of a job is bounded (Dataflow: 20 MB)
ELEMENTS_AT_MOST = 1_000
WORKER_BEGINS_WITHIN_S = 300.0  # on a cluster, where nobody says that none ever will
MARKS_SHOW_WITHIN_S = 90.0  # on a cluster, to the command's machine
JOBS_OF_A_STEP_AT_MOST = 3  # on a cluster that gives them up
KEEP_WORKERS_MS = 60_000  # else Spark starts Python anew for every stage of every pipeline

# For any job server: the one of Beam's portable runners that does not ask pip, which may not be there, for all that is
# installed.
_PORTABLE = ("--runner=PrismRunner", "--requirements_cache=skip")
# No web page at a port that may be taken; and one application for all pipelines of a run: each would take half a minute
# to start on a cluster.
_OF_SPARK = ("-Dspark.ui.enabled=false", "-Dbeam.spark.test.reuseSparkContext=true")
# An executor whose Python worker has died keeps it to the end of the job, and so fails whatever comes: a task that
# fails is done elsewhere, also on the same machine. Where there is no other executor Spark gives the job up.
_OF_SPARK_CLUSTER = (
    "-Dspark.excludeOnFailure.enabled=true",
    "-Dspark.excludeOnFailure.task.maxTaskAttemptsPerNode=3",
    "-Dspark.excludeOnFailure.stage.maxFailedExecutorsPerNode=1000",
    "-Dspark.excludeOnFailure.application.maxFailedExecutorsPerNode=1000",
    "-Dspark.excludeOnFailure.application.maxFailedTasksPerExecutor=1000000",
)
_LOCAL = {"spark": re.compile(r"local(\[.+\])?"), "flink": re.compile(r"\[(local|auto|collection)\]")}
_MASTER = {"spark": "spark_master_url", "flink": "flink_master"}


def threads(engine: EngineSettings) -> int:
    """Units that one process works on at a time."""
    if engine.runner == "embedded":
        return engine.workers or cores()
    return 1


# Options --------------------------------------------------------------------------------------------------------------


def options(engine: EngineSettings, flags: list[str]) -> PipelineOptions:
    """Beam options of a runner; `flags` are the user's own, after `--`.

    Raises:
        UsageError: the runner cannot be had, or cannot honour a setting or a flag.
    """
    _check_flags(flags)
    if "runner" in _named(flags):
        raise UsageError("-- --runner: the runner is a setting; give --set engine.runner=NAME")
    # those of Spark and Flink are asked
    if engine.runner not in _MASTER and (unknown := _unknown(PipelineOptions(flags))):
        raise UsageError(f"-- --{unknown[0]}: Beam has no such flag; what it has are its pipeline options")
    match engine.runner:
        case "embedded":
            # In memory and one worker: threads are ours. "DirectRunner" would look for Prism first.
            return PipelineOptions(["--runner=FnApiRunner", *flags])
        case "prism":
            _prism()
            if engine.workers:
                raise UsageError(
                    f"[engine] workers = {engine.workers}: Prism decides itself how many work at once; leave it 0"
                )
            return PipelineOptions([*_PORTABLE, "--environment_type=LOOPBACK", *flags])
        case "spark" | "flink":
            return _of_cluster(engine, flags)
        case "dataflow":
            return dataflow.options(engine, flags)


def check_places(config: CurateConfig) -> None:
    """Refuse files that workers of the engine would not see.

    Raises:
        UsageError: naming the first, and where it is named.
    """
    if config.engine.runner == "dataflow":
        dataflow.check_places(config)


def _check_flags(flags: list[str]) -> None:
    """Refuse what Beam's parser would end the command for, with a page of usage or a trace."""
    if wrong := [flag for flag in flags[:1] if not flag.startswith("--")] or [
        flag for flag in flags if re.match(r"--(\W|$)", flag)
    ]:
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


def _unknown(given: PipelineOptions) -> list[str]:
    return sorted(given.get_all_options(retain_unknown_options=True).keys() - given.get_all_options().keys())


def _of_cluster(engine: EngineSettings, flags: list[str]) -> PipelineOptions:
    """Spark or Flink: inside the job server's process, or a cluster, when a flag names its master."""
    runner = engine.runner
    count = engine.workers or cores()
    named = _named(flags)
    default = f"--{_MASTER[runner]}=" + (f"local[{count}]" if runner == "spark" else "[local]")
    added = [*_PORTABLE, *([] if _MASTER[runner] in named else [default])]
    if not {"job_endpoint", "files_to_stage"} & {*named}:
        # Else every jar of its class path, 300 MB of Spark's own, goes to each executor of each job.
        added += [f"--files_to_stage={_jar(runner, PipelineOptions(flags))}"]
    given = PipelineOptions([*added, *flags])
    master = given.get_all_options()[_MASTER[runner]]
    portable = given.view_as(PortableOptions)
    if "environment_cache_millis" not in named:
        portable.environment_cache_millis = KEEP_WORKERS_MS
    if _LOCAL[runner].fullmatch(master):
        portable.environment_type = portable.environment_type or "LOOPBACK"
        if runner == "flink" and "parallelism" not in named:
            given.view_as(FlinkRunnerOptions).parallelism = count
    else:
        if engine.workers:
            raise UsageError(
                f"[engine] workers = {engine.workers}: how many work at once is the cluster's to say ({master}); leave it 0"
            )
        if not portable.environment_type:
            raise UsageError(
                f"-- --{_MASTER[runner]}={master}: how Python starts on its machines is not said; give --environment_type=EXTERNAL "
                "--environment_config=localhost:PORT with `python -m altalign.pipelines.engine.worker_pool --port PORT` on each of them, or DOCKER or PROCESS"
            )
        if runner == "flink":
            flink.check_restarts(master)
    if not portable.job_endpoint:
        _java(given)
    return given


def _jar(runner: str, given: PipelineOptions) -> str:
    """The job server's jar: named by a flag, by the environment, or made by `make jars`."""
    named = (
        given.view_as(SparkRunnerOptions).spark_job_server_jar
        if runner == "spark"
        else given.view_as(FlinkRunnerOptions).flink_job_server_jar
    )
    if named and not Path(named).is_file():
        raise UsageError(f"-- --{runner}_job_server_jar={named}: no such file")
    return named or jars.find(runner)


def _is_on_cluster(runner: str, given: PipelineOptions) -> bool:
    """Whether it is Spark or Flink, and not inside the job server's process."""
    return runner in _MASTER and not _LOCAL[runner].fullmatch(given.get_all_options()[_MASTER[runner]])


def _java(given: PipelineOptions) -> str:
    java = given.view_as(JobServerOptions).job_server_java_launcher
    found = shutil.which(java)
    if found is None:
        raise UsageError(
            f"{java}: no such program, and job servers of Spark and Flink run on Java; install Java 11 or 17, or give -- --job_server_java_launcher=PATH"
        )
    return found


def _prism() -> str:
    location = os.environ.get("ALTALIGN_PRISM", "")
    if not location:
        raise UsageError(
            "[engine] runner = prism: no Prism binary; build one with `make prism` and set ALTALIGN_PRISM to its path"
        )
    if not os.access(location, os.X_OK) or Path(location).is_dir():
        raise UsageError(
            f"ALTALIGN_PRISM = {location}: no program; build Prism with `make prism` and give the path of its binary"
        )
    return location


# What has to be there for the pipelines of a run ----------------------------------------------------------------------


@contextmanager
def started(run: Run, given: PipelineOptions) -> Iterator[None]:
    """The job server of a run's pipelines, where its engine has one and the user named none.

    Raises:
        UsageError: it knows a flag of the user's as little as Beam does.
    """
    portable = given.view_as(PortableOptions)
    runner = run.config.engine.runner
    if runner == "flink" and _is_on_cluster(runner, given):
        # with Spark a job ends with its command
        flink.cancel(given.get_all_options()[_MASTER[runner]], _job_name(run))
    is_ours = runner in ("prism", *_MASTER) and not portable.job_endpoint
    with _served(run, given) if is_ours else nullcontext():
        yield
    if runner != "embedded":
        # halves of files of workers that were killed; what an engine had put into the run has come to rest
        storage.sweep(run.folder)


@contextmanager
def _served(run: Run, given: PipelineOptions) -> Iterator[None]:
    """A job server of our own, named in the options."""
    portable, runner = given.view_as(PortableOptions), run.config.engine.runner
    _silence_beam()
    _go_past_proxies()
    with serving(_server(runner, given), storage.local_file(run.path("log", f"{runner}.log"))) as endpoint:
        if runner in _MASTER:
            _check_known(given, endpoint)
        portable.job_endpoint = endpoint
        try:
            yield
        finally:
            portable.job_endpoint = None


def _silence_beam() -> None:
    """Threads that speak with a server that is gone say so in many lines, and a worker in this process prints the trace of what fails; we say it in one.

    From now on, for threads that end after the server are silent too: nobody can wait for them.
    """
    sdk_worker.print = lambda *_, **_named: None  # type: ignore[attr-defined] - the module's own name for it, found before the builtin
    before = threading.excepthook

    def hook(failed: threading.ExceptHookArgs) -> None:
        if not isinstance(failed.exc_value, grpc.RpcError):
            before(failed)

    threading.excepthook = hook


def _go_past_proxies() -> None:
    """Else gRPC takes the proxy that http_proxy names to this machine too, which the proxy does not find, and a job waits without end."""
    named = next((value for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY") if (value := os.environ.get(name))), "")
    os.environ["no_grpc_proxy"] = ",".join(filter(None, dict.fromkeys([*named.split(","), "localhost", "127.0.0.1"])))  # noqa: SIM112 - the name that gRPC reads


def _server(runner: str, given: PipelineOptions) -> Server:
    if runner == "prism":
        return Server(
            "Prism",
            lambda port: [_prism(), f"--job_port={port}", "--serve_http=false", "--log_level=warn", "--log_kind=text"],
            60.0,
        )
    jar = _jar(runner, given)
    own = given.view_as(JobServerOptions)
    temporary = tempfile.gettempdir()
    master = given.get_all_options()[_MASTER[runner]]
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in jars.OPENED]
    of_java = [
        *opened,
        f"-Djava.io.tmpdir={temporary}",
        f"-Dspark.local.dir={temporary}",
        "-XX:-UsePerfData",  # a file in /tmp, wherever temporary files are
        *(_OF_SPARK if runner == "spark" else ()),
        *(_OF_SPARK_CLUSTER if runner == "spark" and _is_on_cluster(runner, given) else ()),
        *own.job_server_jvm_properties,
    ]
    artifacts = own.artifacts_dir or str(Path(temporary, "artifacts"))

    def command(port: int) -> list[str]:
        ports = [f"--job-port={port}", f"--artifact-port={own.artifact_port}", "--expansion-port=0"]
        return [
            _java(given),
            *of_java,
            "-jar",
            jar,
            f"--{_MASTER[runner].replace('_', '-')}={master}",
            f"--artifacts-dir={artifacts}",
            *ports,
        ]

    return Server(f"the job server of {runner.capitalize()}", command, 120.0)


def _check_known(given: PipelineOptions, endpoint: str) -> None:
    """Flags that neither Beam nor the job server knows are refused; Beam would drop them with a warning."""
    with grpc.insecure_channel(endpoint) as channel:
        asked = beam_job_api_pb2.DescribePipelineOptionsRequest()
        said = beam_job_api_pb2_grpc.JobServiceStub(channel).DescribePipelineOptions(
            asked, timeout=60, wait_for_ready=True
        )
    known = {option.name for option in said.options}
    unknown = [name for name in _unknown(given) if name not in known]
    if unknown:
        raise UsageError(
            f"-- --{unknown[0]}: neither Beam nor its job server has such a flag; what they have are pipeline options"
        )


# Pipelines ------------------------------------------------------------------------------------------------------------


def create(run: Run, elements: Sequence[Any]) -> beam.PTransform[Any, Any]:
    """A small collection by name, spread over the workers where there is more than one process; a reshuffle costs most of a pipeline's start."""
    if run.config.engine.runner == "embedded":
        return beam.Create(elements, reshuffle=False)
    if len(elements) <= ELEMENTS_AT_MOST:
        return beam.Create(elements)
    return _CreateFromFile(run, elements)


class _CreateFromFile(beam.PTransform[Any, Any]):
    """Elements (JSON) that workers read from a file of the run; the job holds the places of a few at a time."""

    def __init__(self, run: Run, elements: Sequence[Any]):
        super().__init__()
        lines = [json.dumps(element).encode() + b"\n" for element in elements]
        self._path = run.work("elements", f"{hashlib.sha256(b''.join(lines)).hexdigest()[:16]}.jsonl")
        storage.write_bytes(self._path, b"".join(lines))
        self._places: list[tuple[int, int]] = []
        at, together = 0, -(-len(lines) // ELEMENTS_AT_MOST)
        for first in range(0, len(lines), together):
            size = sum(map(len, lines[first : first + together]))
            self._places.append((at, size))
            at += size

    def expand(self, input_or_inputs: Any) -> Any:
        """Read the elements, and spread them."""
        read = functools.partial(_read, storage.absolute(self._path))
        return input_or_inputs | "Places" >> beam.Create(self._places) | "Read" >> beam.FlatMap(read) | beam.Reshuffle()


def _read(path: str, place: tuple[int, int]) -> list[Any]:
    return [json.loads(line) for line in storage.read_range(path, *place).splitlines()]


@contextmanager
def pipeline(run: Run, step: str, given: PipelineOptions) -> Iterator[beam.Pipeline]:
    """A pipeline that runs to its end when the block is over. Whatever ends the waiting ends the job on its engine.

    A job that a cluster gives up when workers have begun, and none of its units says why, is begun again: it goes on
    with those that are not finished.

    Raises:
        AltalignError: no worker has begun to work within the time that one takes.
    """
    runner = run.config.engine.runner
    if runner in (*_MASTER, "dataflow"):
        given.view_as(GoogleCloudOptions).job_name = f"{_job_name(run)}-{step.replace('/', '-').replace('_', '-')}"
    built = beam.Pipeline(options=given)
    yield built
    for jobs_left in reversed(range(JOBS_OF_A_STEP_AT_MOST if _is_on_cluster(runner, given) else 1)):
        try:
            _run_to_its_end(run, step, built)
            return
        except RuntimeError as error:  # what is wrong with the job, from its engine
            if not jobs_left or unit_errors.is_left(run) or not storage.names(_workers(run)):
                raise
            said = f"{step}: {runner.capitalize()} gave the job up ({unit_errors.gist(error)}); it is begun again"
            terminal.stderr().print(terminal.shown(said), soft_wrap=True)


def _run_to_its_end(run: Run, step: str, built: beam.Pipeline) -> None:
    runner = run.config.engine.runner
    storage.delete(_workers(run))
    result = dataflow.submit(run, step, built) if runner == "dataflow" else built.run()
    with _worker_awaited(run, result) if runner in _MASTER else nullcontext():
        try:
            result.wait_until_finish()
        except BaseException:
            with suppress(Exception):
                result.cancel()
            raise


def check_marks(run: Run, step: str, units: Sequence[Unit]) -> None:
    """Whether a pipeline that ended well has left all marks where this command looks, which it cannot know of workers of another machine.

    On other machines a file system of the network may show them late: the clients of NFS believe what they know of a
    folder for a minute.

    Raises:
        AltalignError: marks are missing.
    """
    end = time.monotonic() + (MARKS_SHOW_WITHIN_S if run.config.engine.runner in _MASTER else 0.0)
    while missing := {unit["name"] for unit in units}.difference(run.finished(step)):
        if time.monotonic() >= end:
            raise AltalignError(
                f"{run.folder}: {step}: {run.config.engine.runner} says that it is done, but {len(missing)} of {len(units)} units have left no mark in "
                f"{run.work(step)}; let workers see the run folder under the same absolute path as this command, and run the same command again, it continues"
            )
        interrupts.check()
        time.sleep(1.0)


@contextmanager
def _worker_awaited(run: Run, result: PipelineResult) -> Iterator[None]:
    """Around waiting for a job: it is cancelled when no worker begins, for engines wait for workers that cannot start as long as it takes."""
    over, is_given_up = threading.Event(), threading.Event()

    def watch() -> None:
        end = time.monotonic() + WORKER_BEGINS_WITHIN_S
        while not over.wait(1.0) and not _have_begun(run):
            if time.monotonic() > end:
                is_given_up.set()
                result.cancel()
                return

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    except Exception as error:
        if is_given_up.is_set():
            raise AltalignError(
                f"{run.folder}: no worker has begun within {WORKER_BEGINS_WITHIN_S:.0f} s; look whether {run.config.engine.runner} has free machines, and "
                f"whether Python starts on them with altalign installed (environment_type); {run.path('log')} has what the job server said"
            ) from error
        raise
    finally:
        over.set()
        watching.join()


def _have_begun(run: Run) -> bool:
    with suppress(OSError, AltalignError):  # a store that does not answer now may do so the next time
        return bool(storage.names(_workers(run)))
    return False


def _workers(run: Run) -> str:
    return run.path("log", "workers")


@contextmanager
def working(run: Run, folder: str) -> Iterator[None]:
    """Around the work of one worker of a cluster: in the folder that the command was called in; that it has begun can be seen in the run."""
    if run.config.engine.runner in _MASTER:
        with suppress(FileNotFoundError):  # a machine that has no such folder can work on absolute paths
            os.chdir(folder)
        storage.write_bytes(storage.join(_workers(run), f"{socket.gethostname()}-{os.getpid()}"), b"")
    yield


def _job_name(run: Run) -> str:
    return f"altalign-{hashlib.sha256(storage.absolute(run.folder).encode()).hexdigest()[:8]}"
