"""The job servers that a command starts: Prism, or those of Spark and Flink on Java."""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from apache_beam.options.pipeline_options import JobServerOptions, PipelineOptions, PortableOptions
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.worker import sdk_worker

from altalign import storage
from altalign.errors import AltalignError, UsageError
from altalign.pipelines.engine import jars
from altalign.pipelines.engine.options import MASTER_FLAGS, is_on_cluster, jar_of, java, prism, unknown_flags
from altalign.pipelines.engine.servers import Server, serving
from altalign.pipelines.run.units import Run

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


@contextmanager
def served(run: Run, given: PipelineOptions) -> Iterator[None]:
    """Runs a job server of our own while pipelines run, and names it in the options."""
    portable, runner = given.view_as(PortableOptions), run.config.engine.runner
    _silence_beam()
    _go_past_proxies()
    server, log = _server(runner, given), storage.local_file(run.path("log", f"{runner}.log"))
    with serving(server, log) as endpoint, answering(server.name, log):
        if runner in MASTER_FLAGS:
            _check_known(given, endpoint)
        portable.job_endpoint = endpoint
        try:
            yield
        finally:
            portable.job_endpoint = None


@contextmanager
def answering(server: str, log: str) -> Iterator[None]:
    """Says in one line that a server has not answered: on a machine that is busy with other things, say.

    Raises:
        AltalignError: for every error of gRPC.
    """
    try:
        yield
    except grpc.RpcError as error:
        said = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else type(error).__name__
        raise AltalignError(
            f"{server} does not answer ({said}); run the same command again, it continues; {log} has what the server "
            "said"
        ) from error


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


def _server(runner: str, given: PipelineOptions) -> Server:
    if runner == "prism":
        return Server(
            "Prism",
            lambda port: [prism(), f"--job_port={port}", "--serve_http=false", "--log_level=warn", "--log_kind=text"],
            60.0,
        )
    jar = jar_of(runner, given)
    own = given.view_as(JobServerOptions)
    temporary = tempfile.gettempdir()
    master = given.get_all_options()[MASTER_FLAGS[runner]]
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in jars.OPENED]
    of_java = [
        *opened,
        f"-Djava.io.tmpdir={temporary}",
        f"-Dspark.local.dir={temporary}",
        "-XX:-UsePerfData",  # a file in /tmp, wherever temporary files are
        *(_OF_SPARK if runner == "spark" else ()),
        *(_OF_SPARK_CLUSTER if runner == "spark" and is_on_cluster(runner, given) else ()),
        *own.job_server_jvm_properties,
    ]
    artifacts = own.artifacts_dir or str(Path(temporary, "artifacts"))

    def command(port: int) -> list[str]:
        ports = [f"--job-port={port}", f"--artifact-port={own.artifact_port}", "--expansion-port=0"]
        return [
            java(given),
            *of_java,
            "-jar",
            jar,
            f"--{MASTER_FLAGS[runner].replace('_', '-')}={master}",
            f"--artifacts-dir={artifacts}",
            *ports,
        ]

    return Server(f"the job server of {runner.capitalize()}", command, 120.0)


def _check_known(given: PipelineOptions, endpoint: str) -> None:
    """Refuse flags that neither Beam nor the job server knows; Beam would drop them with a warning."""
    with grpc.insecure_channel(endpoint) as channel:
        asked = beam_job_api_pb2.DescribePipelineOptionsRequest()
        said = beam_job_api_pb2_grpc.JobServiceStub(channel).DescribePipelineOptions(
            asked, timeout=60, wait_for_ready=True
        )
    known = {option.name for option in said.options}
    unknown = [name for name in unknown_flags(given) if name not in known]
    if unknown:
        raise UsageError(
            f"-- --{unknown[0]}: neither Beam nor its job server has such a flag; what they have are pipeline options"
        )
