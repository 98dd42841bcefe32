"""Job servers that a command starts."""

import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import grpc
import pytest
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

from altalign.errors import AltalignError
from altalign.pipelines.engine import jobs
from altalign.pipelines.engine.jobs import started
from altalign.pipelines.engine.options import options
from altalign.settings.curate import EngineSettings
from tests.support.curations import environ
from tests.support.runs import run_of

PATIENCE_S = 300


def test_a_server_that_does_not_start_is_an_error_with_its_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = run_of(tmp_path, engine={"runner": "prism"})
    (tmp_path / "log").mkdir()
    monkeypatch.setenv("ALTALIGN_PRISM", shutil.which("false") or "/bin/false")
    with (
        pytest.raises(AltalignError, match=r"Prism does not answer at localhost:\d+; .*prism.log has what it said"),
        started(run, options(run.config.engine, [])),
    ):
        raise AssertionError


@pytest.mark.parametrize(
    ("named", "expected"), [("", "localhost,127.0.0.1"), ("example.org,localhost", "example.org,localhost,127.0.0.1")]
)
def test_a_proxy_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch, named: str, expected: str) -> None:
    for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("no_proxy", named)
    for _ in range(2):
        jobs._go_past_proxies()  # pyright: ignore[reportPrivateUsage]
        assert os.environ["no_grpc_proxy"] == expected  # noqa: SIM112 - the name that gRPC reads


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no signal at a parent's death")
def test_a_server_answers_as_long_as_the_block_and_its_error_is_a_line(
    prism: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ALTALIGN_PRISM", prism)
    given = options(EngineSettings(runner="prism"), [])
    question = beam_job_api_pb2.DescribePipelineOptionsRequest()

    def use(endpoint: str) -> None:
        assert is_listened_at(endpoint)
        with (
            socket.create_server(("127.0.0.1", 0)) as silent,
            grpc.insecure_channel(f"127.0.0.1:{silent.getsockname()[1]}") as channel,
        ):
            stub = beam_job_api_pb2_grpc.JobServiceStub(channel)
            stub.DescribePipelineOptions(question, timeout=0.2, wait_for_ready=True)

    with (
        pytest.raises(
            AltalignError, match=r"Prism does not answer \(DEADLINE_EXCEEDED: .*log has what the server said"
        ),
        jobs.serving("prism", given, str(tmp_path / "log")) as endpoint,
    ):
        use(endpoint)
    assert not is_listened_at(endpoint)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no signal at a parent's death")
def test_a_server_ends_with_a_killed_parent(prism: str, tmp_path: Path) -> None:
    program = f"""
        import sys
        from altalign.settings.curate import EngineSettings
        from altalign.pipelines.engine.jobs import serving
        from altalign.pipelines.engine.options import options
        with serving("prism", options(EngineSettings(runner="prism"), []), {str(tmp_path / "log")!r}) as endpoint:
            print(endpoint, flush=True)
            sys.stdin.read()
    """
    environment = environ({"ALTALIGN_PRISM": prism})
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    endpoint = parent.stdout.readline().strip()
    assert is_listened_at(endpoint)
    parent.kill()
    parent.communicate()
    end = time.monotonic() + PATIENCE_S
    while is_listened_at(endpoint):
        assert time.monotonic() < end
        time.sleep(0.01)


def is_listened_at(endpoint: str) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("localhost", int(endpoint.split(":")[1]))) == 0
