"""The program that passes a command's pipelines to an engine: Prism, or Beam's job server of Spark or Flink on Java.

Beam says how each is started. What it starts itself outlives a killed command, and its handler of Ctrl-C can wait for
itself: these end with the command, and are in a session of their own, so that Ctrl-C at a terminal is for the command.
"""

import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
from apache_beam.options.pipeline_options import JobServerOptions, PipelineOptions, PortableOptions
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.portability.flink_runner import FlinkJarJobServer
from apache_beam.runners.portability.job_server import SubprocessJobServer
from apache_beam.runners.portability.prism_runner import PrismJobServer
from apache_beam.runners.portability.spark_runner import SparkJarJobServer
from apache_beam.runners.worker import sdk_worker

from altalign import storage
from altalign.errors import AltalignError, UsageError
from altalign.machine import children, interrupts
from altalign.pipelines.engine.options import MASTER_FLAGS, is_on_cluster, unknown_flags
from altalign.pipelines.run.units import Run

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
def served(run: Run, given: PipelineOptions) -> Iterator[None]:
    """Runs a job server while pipelines run, and names it in the options."""
    portable, runner = given.view_as(PortableOptions), run.config.engine.runner
    _silence_beam()
    _go_past_proxies()
    log = Path(storage.local_folder(run.path("log")))
    log.mkdir(parents=True, exist_ok=True)
    with serving(runner, given, str(log / f"{runner}.log")) as endpoint:
        if runner in MASTER_FLAGS:
            _check_known(given, endpoint)
        portable.job_endpoint = endpoint
        try:
            yield
        finally:
            portable.job_endpoint = None


@contextmanager
def serving(runner: str, given: PipelineOptions, log: str) -> Iterator[str]:
    """The endpoint of a runner's job server, which lives as long as the block; what it prints goes to a file.

    Raises:
        AltalignError: it does not start, or does not answer while the block uses it.
    """
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
