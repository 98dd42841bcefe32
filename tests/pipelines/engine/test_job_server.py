"""Job servers that a command starts."""

import os
import shutil
import socket
from pathlib import Path

import grpc
import pytest
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

from altalign.curation import CurateConfig
from altalign.errors import AltalignError
from altalign.pipelines.engine import job_server
from altalign.pipelines.engine.jobs import started
from altalign.pipelines.engine.options import options
from altalign.pipelines.run.units import Run


def test_a_server_that_does_not_start_is_an_error_with_its_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = CurateConfig.from_values({"input": {"paths": ["none"]}, "engine": {"runner": "prism"}}, where="test")
    run = Run(str(tmp_path), config, ())
    (tmp_path / "log").mkdir()
    monkeypatch.setenv("ALTALIGN_PRISM", shutil.which("false") or "/bin/false")
    with (
        pytest.raises(AltalignError, match=r"Prism does not answer on port \d+; .*prism.log has what it said"),
        started(run, options(config.engine, [])),
    ):
        raise AssertionError


@pytest.mark.parametrize(
    ("named", "wanted"), [("", "localhost,127.0.0.1"), ("example.org,localhost", "example.org,localhost,127.0.0.1")]
)
def test_a_proxy_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch, named: str, wanted: str) -> None:
    for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("no_proxy", named)
    for _ in range(2):
        job_server._go_past_proxies()  # pyright: ignore[reportPrivateUsage]
        assert os.environ["no_grpc_proxy"] == wanted  # noqa: SIM112 - the name that gRPC reads


def test_a_server_that_does_not_answer_is_said_in_a_line() -> None:
    asked = beam_job_api_pb2.DescribePipelineOptionsRequest()
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,  # which never says a word
        grpc.insecure_channel(f"127.0.0.1:{listening.getsockname()[1]}") as channel,
        pytest.raises(AltalignError, match=r"the job server of Spark does not answer \(DEADLINE_EXCEEDED: .*spark.log"),
        job_server.answering("the job server of Spark", "run/log/spark.log"),
    ):
        beam_job_api_pb2_grpc.JobServiceStub(channel).DescribePipelineOptions(asked, timeout=0.2, wait_for_ready=True)
