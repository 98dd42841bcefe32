"""Runs the pipelines of a run as jobs of its engine, and waits for them.

Prism, Spark and Flink get jobs through a job server, a child: Beam says how each is started. What Beam starts itself
outlives a killed command, and its handler of Ctrl-C can wait for itself: ours end with the command, in a session of
their own, so that Ctrl-C at a terminal is for the command.
"""

import functools
import hashlib
import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import apache_beam as beam
import grpc
from apache_beam import pipeline as beam_pipeline
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
)
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.portability.flink_runner import FlinkJarJobServer
from apache_beam.runners.portability.job_server import SubprocessJobServer
from apache_beam.runners.portability.prism_runner import PrismJobServer
from apache_beam.runners.portability.spark_runner import SparkJarJobServer
from apache_beam.runners.runner import PipelineResult
from apache_beam.runners.worker import sdk_worker
from apache_beam.utils import interactive_utils

from altalign import storage, terminal
from altalign.errors import AltalignError, UsageError
from altalign.machine import children, interrupts
from altalign.pipelines.engine import unit_errors
from altalign.pipelines.engine.options import MASTER_FLAGS, is_on_cluster, unknown_flags
from altalign.pipelines.run.units import Run, Unit

# A job itself holds this many elements; more are read from a file, because requests are bounded (Dataflow: 20 MB), and
# Beam takes longer to hold 100,000 than other work before the first unit.
ELEMENTS_AT_MOST = 1_000
WORKER_BEGINS_WITHIN_S = 300.0  # on a cluster, which never says that no worker will come
MARKS_SHOW_WITHIN_S = 90.0  # on a cluster, to the command's machine
JOBS_OF_A_STEP_AT_MOST = 3  # on a cluster that gives them up
STARTS_WITHIN_S = 120.0
LINES_OF_LOG = 3  # that an error quotes

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

_SERVERS: dict[str, tuple[str, Callable[[PipelineOptions], SubprocessJobServer]]] = {
    "prism": ("Prism", PrismJobServer),
    "spark": ("the job server of Spark", SparkJarJobServer),
    "flink": ("the job server of Flink", FlinkJarJobServer),
}


@contextmanager
def started(run: Run, given: PipelineOptions) -> Iterator[None]:
    """Around the pipelines of a run: starts a job server, if the engine has one and the user named none."""
    portable, runner = given.view_as(PortableOptions), run.config.engine.runner
    if runner in ("prism", *MASTER_FLAGS) and not portable.job_endpoint:
        _silence_beam()
        _go_past_proxies()
        with serving(runner, given, storage.join(storage.local_folder(run.path("log")), f"{runner}.log")) as endpoint:
            if runner in MASTER_FLAGS:
                _check_known(given, endpoint)
            portable.job_endpoint = endpoint
            try:
                yield
            finally:
                portable.job_endpoint = None
    else:
        yield
    if runner != "embedded":
        # halves of files of workers that were killed; what an engine had put into the run has come to rest
        storage.sweep(run.folder)


@contextmanager
def serving(runner: str, given: PipelineOptions, log: str) -> Iterator[str]:
    """The endpoint of a runner's job server, which lives as long as the block; what it prints goes to a file."""
    name, (command, endpoint) = _SERVERS[runner][0], _command(runner, given)
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with Path(log).open("wb") as file:
        process = subprocess.Popen(
            children.ending_with_us(command), stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    try:
        _wait_for(process, endpoint, name, log)
        yield endpoint
    except grpc.RpcError as error:  # on a machine that is busy with other things, say
        why = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else type(error).__name__
        raise AltalignError(
            f"{name} does not answer ({why}); run the same command again, it continues; {log} has what the server said"
        ) from error
    finally:
        children.end([process])  # it keeps nothing: units leave their marks themselves


def _command(runner: str, given: PipelineOptions) -> tuple[list[str], str]:
    """The command that Beam would start, with temporary files in our own folder, and where it will listen."""
    temporary, own = tempfile.gettempdir(), given.view_as(JobServerOptions)
    own.artifacts_dir = own.artifacts_dir or str(Path(temporary, "artifacts"))
    server = _SERVERS[runner][1](given)
    (program, *arguments), endpoint = server.subprocess_cmd_and_endpoint()
    java: list[str] = []
    if runner in MASTER_FLAGS:
        # -UsePerfData: a file in /tmp, wherever temporary files are
        java = [f"-Djava.io.tmpdir={temporary}", f"-Dspark.local.dir={temporary}", "-XX:-UsePerfData"]
    if runner == "spark":
        java += [*_OF_SPARK, *(_OF_SPARK_CLUSTER if is_on_cluster(runner, given) else ())]
    return [program, *java, *map(str, arguments)], endpoint


def _wait_for(process: "subprocess.Popen[bytes]", endpoint: str, name: str, log: str) -> None:
    address, end = ("localhost", int(endpoint.rpartition(":")[2])), time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), socket.create_connection(address, timeout=1):
            return
        interrupts.check()
        time.sleep(0.02)
    lines: list[str] = []
    with suppress(OSError):
        lines = Path(log).read_text(encoding="utf-8", errors="replace").strip().splitlines()[-LINES_OF_LOG:]
    raise AltalignError(
        f"{name} does not answer at {endpoint}; {log} has what it said" + (f": {' / '.join(lines)}" if lines else "")
    )


def _silence_beam() -> None:
    """Keep Beam from printing traces: of threads whose server is gone, and of workers in this process.

    We report an error in one line. This lasts to the end of the process, because nobody can wait for threads that
    end after the server.
    """
    sdk_worker.print = lambda *_, **_named: None  # type: ignore[attr-defined] - the module's own name for it, found before the builtin
    before = threading.excepthook

    def hook(failed: threading.ExceptHookArgs) -> None:
        if not isinstance(failed.exc_value, grpc.RpcError):
            before(failed)

    threading.excepthook = hook


def _go_past_proxies() -> None:
    """Keep gRPC from asking http_proxy for this machine: the proxy does not find it, and a job would wait forever."""
    named = next((value for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY") if (value := os.environ.get(name))), "")
    os.environ["no_grpc_proxy"] = ",".join(filter(None, dict.fromkeys([*named.split(","), "localhost", "127.0.0.1"])))  # noqa: SIM112 - the name that gRPC reads


def _check_known(given: PipelineOptions, endpoint: str) -> None:
    """Refuse flags that neither Beam nor the job server knows; Beam would drop them with a warning."""
    with grpc.insecure_channel(endpoint) as channel:
        described = beam_job_api_pb2_grpc.JobServiceStub(channel).DescribePipelineOptions(
            beam_job_api_pb2.DescribePipelineOptionsRequest(), timeout=60, wait_for_ready=True
        )
    known = {option.name for option in described.options}
    unknown = [name for name in unknown_flags(given) if name not in known]
    if unknown:
        raise UsageError(
            f"-- --{unknown[0]}: neither Beam nor its job server has such a flag; what they have are pipeline options"
        )


# Jobs -----------------------------------------------------------------------------------------------------------------


def create(run: Run, elements: Sequence[object]) -> beam.PTransform[Any, Any]:
    """A small collection, spread over the workers if there is more than one process.

    One process does without the reshuffle, which takes most of a pipeline's start.
    """
    is_spread = run.config.engine.runner != "embedded"
    if len(elements) <= ELEMENTS_AT_MOST:
        return beam.Create(elements, reshuffle=is_spread)
    return _CreateFromFile(run, elements, is_spread=is_spread)


class _CreateFromFile(beam.PTransform[Any, Any]):
    """Elements (JSON) that workers read from a file of the run; the job holds ranges of that file."""

    def __init__(self, run: Run, elements: Sequence[object], *, is_spread: bool):
        super().__init__()
        self._is_spread = is_spread
        lines = [json.dumps(element).encode() + b"\n" for element in elements]
        self._path = run.work("elements", f"{hashlib.sha256(b''.join(lines)).hexdigest()[:16]}.jsonl")
        storage.write_bytes(self._path, b"".join(lines))
        self._places: list[tuple[int, int]] = []
        at, together = 0, -(-len(lines) // ELEMENTS_AT_MOST)
        for first in range(0, len(lines), together):
            size = sum(map(len, lines[first : first + together]))
            self._places.append((at, size))
            at += size

    def expand(self, input_or_inputs: object) -> Any:
        """Read the elements, and spread them."""
        read = functools.partial(_read, storage.absolute(self._path))
        places = beam.Create(self._places, reshuffle=self._is_spread)
        elements = input_or_inputs | "Places" >> places | "Read" >> beam.FlatMap(read)
        return elements | beam.Reshuffle() if self._is_spread else elements


def _read(path: str, place: tuple[int, int]) -> list[object]:
    return [json.loads(line) for line in storage.read_range(path, *place).splitlines()]


@contextmanager
def _outside_notebooks() -> Iterator[None]:
    """Hides IPython from Beam, which would name steps after cells and needs a pandas of before 3 for it."""
    asking: tuple[Any, ...] = (beam_pipeline, interactive_utils)
    asked = interactive_utils.is_in_ipython
    for module in asking:
        module.is_in_ipython = lambda: False
    try:
        yield
    finally:
        for module in asking:
            module.is_in_ipython = asked


@contextmanager
def pipeline(run: Run, step: str, given: PipelineOptions) -> Iterator[beam.Pipeline]:
    """A pipeline that runs to its end when the block is over. Whatever ends the waiting cancels the job.

    A job that a cluster gives up after workers have begun is begun again, unless a unit has left an error; it
    continues with the units that are not finished.
    """
    runner = run.config.engine.runner
    if runner in (*MASTER_FLAGS, "dataflow"):
        name = f"{hashlib.sha256(storage.absolute(run.folder).encode()).hexdigest()[:8]}-{step}"
        given.view_as(GoogleCloudOptions).job_name = f"altalign-{name.replace('/', '-').replace('_', '-')}"
    with _outside_notebooks():
        built = beam.Pipeline(options=given)
        yield built
        for jobs_left in reversed(range(JOBS_OF_A_STEP_AT_MOST if is_on_cluster(runner, given) else 1)):
            try:
                _run_to_its_end(run, step, built)
                return
            except RuntimeError as error:  # what is wrong with the job, from its engine
                if not jobs_left or unit_errors.is_left(run) or not storage.names(_workers(run)):
                    raise
                line = f"{step}: {runner.capitalize()} gave the job up ({unit_errors.gist(error)}); it is begun again"
                terminal.stderr().print(terminal.shown(line), soft_wrap=True)


def _run_to_its_end(run: Run, step: str, built: beam.Pipeline) -> None:
    runner = run.config.engine.runner
    storage.delete(_workers(run))
    result = _submit(run, step, built) if runner == "dataflow" else built.run()
    with _worker_awaited(run, result) if runner in MASTER_FLAGS else nullcontext():
        try:
            result.wait_until_finish()
        except BaseException:
            with suppress(Exception):
                result.cancel()
            raise


def _submit(run: Run, step: str, built: beam.Pipeline) -> PipelineResult:
    """Send a job to Dataflow, and print where it can be watched; one of the same run and step may still be at work."""
    from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError

    cloud = built.options.view_as(GoogleCloudOptions)
    try:
        result = built.run()
    except DataflowJobAlreadyExistsError as error:
        raise AltalignError(
            f"{run.folder}: {step}: the job {cloud.job_name} is at work already, of a command that has ended before "
            f"it; wait until `gcloud dataflow jobs list --project={cloud.project} --region={cloud.region} "
            "--status=active` no longer has it, or cancel it there, and run the same command again"
        ) from error
    if job_id := getattr(result, "job_id", None):  # a dry run's has none
        page = f"https://console.cloud.google.com/dataflow/jobs/{cloud.region}/{job_id()}?project={cloud.project}"
        terminal.stderr().print(f"{step}: {page}", soft_wrap=True)
    return result


def check_marks(run: Run, step: str, units: Sequence[Unit]) -> None:
    """Check that a pipeline that ended well has left all its marks where this command sees them.

    Workers of other machines may write elsewhere. A network file system may show their marks late: clients of NFS
    cache a folder for a minute.
    """
    end = time.monotonic() + (MARKS_SHOW_WITHIN_S if run.config.engine.runner in MASTER_FLAGS else 0.0)
    while missing := {unit["name"] for unit in units}.difference(run.finished(step)):
        if time.monotonic() >= end:
            raise AltalignError(
                f"{run.folder}: {step}: {run.config.engine.runner} says that it is done, but {len(missing)} of "
                f"{len(units)} units have left no mark in {run.work(step)}; let workers see the run folder under the "
                "same absolute path as this command, and run the same command again, it continues"
            )
        interrupts.check()
        time.sleep(1.0)


@contextmanager
def _worker_awaited(run: Run, result: PipelineResult) -> Iterator[None]:
    """Cancels a job if no worker starts while this block waits for it; engines would wait forever."""
    over, is_given_up = threading.Event(), threading.Event()

    def watch() -> None:
        end = time.monotonic() + WORKER_BEGINS_WITHIN_S
        while not over.wait(1.0):
            with suppress(OSError, AltalignError):  # a store that does not answer now may do so the next time
                if storage.names(_workers(run)):
                    return
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
                f"{run.folder}: no worker has begun within {WORKER_BEGINS_WITHIN_S:.0f} s; look whether "
                f"{run.config.engine.runner} has free machines, and whether Python starts on them with altalign "
                f"installed (environment_type); {run.path('log')} has what the job server said"
            ) from error
        raise
    finally:
        over.set()
        watching.join()


def _workers(run: Run) -> str:
    return run.path("log", "workers")


def enter(run: Run, folder: str) -> None:
    """At the start of a worker: enters the folder of the command, and leaves a sign in the run."""
    if run.config.engine.runner in MASTER_FLAGS:
        with suppress(FileNotFoundError):  # a machine that has no such folder can work on absolute paths
            os.chdir(folder)
        storage.write_bytes(storage.join(_workers(run), f"{socket.gethostname()}-{os.getpid()}"), b"")
