"""A real pool, asked as an engine asks: workers of two executors that have one name are two."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc, endpoints_pb2

from altalign.pipelines.engine import worker_pool

ROOT = Path(__file__).parents[3]
PATIENCE_S = 300


@pytest.fixture
def pool() -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The pool's process, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "altalign.pipelines.engine.worker_pool", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    words = process.stdout.readline().split()
    assert words[:2] == ["listening", "at"]
    with process.stdout:
        yield process, words[2]
    process.kill()
    process.wait()


def ask(address: str, verb: str, request: object) -> None:
    with grpc.insecure_channel(address) as channel:
        answer = getattr(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel), verb)(request, timeout=PATIENCE_S)
    assert not answer.error


def start(address: str, endpoint: str, name: str) -> None:
    ask(
        address,
        "StartWorker",
        beam_fn_api_pb2.StartWorkerRequest(
            worker_id=name, control_endpoint=endpoints_pb2.ApiServiceDescriptor(url=endpoint)
        ),
    )


def workers_of(process: int) -> set[int]:
    """Workers may be children of any thread of the pool."""
    workers = set()
    for task in Path(f"/proc/{process}/task").iterdir():
        workers |= {int(pid) for pid in (task / "children").read_text().split()}
    return {pid for pid in workers if is_alive(pid)}


def is_alive(process: int) -> bool:
    """Whether there is such a process, and not only what its parent has not looked at yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition: object) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux shows them")
def test_workers_of_two_executors_live_side_by_side_and_end_with_the_pool(
    pool: tuple["subprocess.Popen[str]", str],
) -> None:
    process, address = pool
    # that answer no worker, which waits
    with socket.create_server(("localhost", 0)) as one, socket.create_server(("localhost", 0)) as other:
        for listening in (one, other):
            start(address, f"localhost:{listening.getsockname()[1]}", "1-1")
        until(lambda: len(workers_of(process.pid)) == 2)
        ask(address, "StopWorker", beam_fn_api_pb2.StopWorkerRequest(worker_id="1-1"))  # of whom, it cannot tell
        assert len(workers_of(process.pid)) == 2
        start(address, f"localhost:{one.getsockname()[1]}", "2-1")
        until(lambda: len(workers_of(process.pid)) == 3)
        ask(address, "StopWorker", beam_fn_api_pb2.StopWorkerRequest(worker_id="2-1"))
        until(lambda: len(workers_of(process.pid)) == 2)
        left = workers_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert not [pid for pid in left if is_alive(pid)]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no signal at a parent's death")
def test_a_killed_pool_leaves_no_worker(pool: tuple["subprocess.Popen[str]", str]) -> None:
    process, address = pool
    with socket.create_server(("localhost", 0)) as listening:
        start(address, f"localhost:{listening.getsockname()[1]}", "1-1")
        until(lambda: workers_of(process.pid))
        left = workers_of(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: not [pid for pid in left if is_alive(pid)])


def test_a_second_pool_at_the_same_port_is_refused_and_the_network_cannot_ask(
    pool: tuple["subprocess.Popen[str]", str],
) -> None:
    port = pool[1].split(":")[1]
    second = subprocess.run(
        [sys.executable, "-m", "altalign.pipelines.engine.worker_pool", "--port", port],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 1
    assert (
        f"127.0.0.1:{port}: cannot be listened at; another program may be there, give another --port" in second.stderr
    )
    assert pool[1].startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--port=99999"], "--port 99999: no port; give one up to 65535, or 0 for a free one"),
        (["--port=-1"], "--port -1: no port; give one up to 65535"),
    ],
)
def test_what_is_no_address_or_port_is_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        worker_pool.main(flags)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_worker_is_ended_though_one_of_its_name_has_died_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        worker_pool, "_WORKER", "import os, sys; os.write(1, b'x'); sys.argv[1] == 'gone' or os.read(os.pipe()[0], 1)"
    )
    made = worker_pool.WorkerPool()

    def ask_for(endpoint: str) -> beam_fn_api_pb2.StartWorkerRequest:
        control = endpoints_pb2.ApiServiceDescriptor(url=endpoint)
        return beam_fn_api_pb2.StartWorkerRequest(worker_id="1-1", control_endpoint=control)

    made.StartWorker(ask_for("gone"), None)
    (gone,) = made._workers.values()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(gone, "poll", lambda: None)  # not looked at when the other one starts
    made.StartWorker(ask_for("here"), None)
    monkeypatch.undo()
    gone.wait(PATIENCE_S)
    (here,) = [worker for worker in made._workers.values() if worker is not gone]  # pyright: ignore[reportPrivateUsage]
    try:
        made.StopWorker(beam_fn_api_pb2.StopWorkerRequest(worker_id="1-1"), None)
        assert here.wait(PATIENCE_S) == -signal.SIGTERM
    finally:
        made.close()


def test_a_worker_that_dies_at_its_start_is_an_error_of_whoever_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine would wait for it without end."""
    monkeypatch.setattr(worker_pool, "_WORKER", "raise SystemExit(3)")
    made = worker_pool.WorkerPool()
    request = beam_fn_api_pb2.StartWorkerRequest(
        worker_id="1-1", control_endpoint=endpoints_pb2.ApiServiceDescriptor(url="localhost:1")
    )
    error = made.StartWorker(request, None).error
    assert re.fullmatch(
        r"a worker's Python ended at its start, with exit code 3; what the worker pool of \S+ printed says why", error
    )
