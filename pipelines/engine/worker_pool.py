"""Python workers for the engine on one machine: `python -m altalign.pipelines.engine.worker_pool --port PORT`.

It starts a worker when one of the engine's processes asks for it, and ends the worker when that process says so or is
gone. Beam's own pool listens to the whole network, starts whatever `python` is first on the path, and takes the first
workers of two executors on one machine for the same worker.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent import futures
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

from altalign.machine import children

ENDS_WITHIN_S = 10.0
PORT_AT_MOST = 65_535

# The whole program of a worker. `startup.prepare` comes first, as in every process of the project; "ready" says that it
# can work.
_WORKER = """
import os, sys
from altalign.machine import startup
startup.prepare()
startup.place_kernels()
from apache_beam.runners.worker.sdk_worker import SdkHarness
from altalign.pipelines import curate
os.write(1, b"ready")
os.dup2(2, 1)
SdkHarness(sys.argv[1], worker_id=sys.argv[2]).run()
"""


class WorkerPool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """Starts and ends workers; they are known by the process that asked for them and the name that it gave."""

    def __init__(self) -> None:
        self._workers: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    def StartWorker(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - the protocol's names
        """Start a worker and wait until it can work: an engine waits forever for one that died at its start."""
        command = children.ending_with_us(
            [sys.executable, "-c", _WORKER, request.control_endpoint.url, request.worker_id]
        )
        worker = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        with self._lock:
            self._workers = {key: process for key, process in self._workers.items() if process.poll() is None}
            self._workers[request.control_endpoint.url, request.worker_id] = worker
        assert worker.stdout is not None  # a pipe
        with worker.stdout as output:
            if not output.read(1):
                why = (
                    f"a worker's Python ended at its start, with exit code {worker.wait()}; "
                    f"what the worker pool of {socket.gethostname()} printed says why"
                )
                return beam_fn_api_pb2.StartWorkerResponse(error=why)
        return beam_fn_api_pb2.StartWorkerResponse()

    def StopWorker(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - the protocol's names
        """End a worker by its name.

        Workers of another process may have the same name; they end with that process.
        """
        with self._lock:
            self._workers = {key: process for key, process in self._workers.items() if process.poll() is None}
            named = [key for key in self._workers if key[1] == request.worker_id]
            if len(named) == 1:
                _end([self._workers.pop(named[0])])
        return beam_fn_api_pb2.StopWorkerResponse()

    def close(self) -> None:
        """End all workers."""
        with self._lock:
            _end(list(self._workers.values()))
            self._workers.clear()


def _end(workers: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End these workers; units write their marks themselves, so nothing is lost."""
    for worker in workers:
        worker.terminate()
    children.end(workers, within_s=ENDS_WITHIN_S)


def main(argv: Sequence[str]) -> int:
    """Listen until a signal comes; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m altalign.pipelines.engine.worker_pool",
        description="Start Python workers for the engine's processes on this machine.",
    )
    parser.add_argument(
        "--port", type=int, required=True, help="the port of environment_config=HOST:PORT; 0 takes a free one"
    )
    parser.add_argument(
        "--address", default="127.0.0.1", help="to listen at (127.0.0.1: this machine alone can ask for workers)"
    )
    arguments = parser.parse_args(argv)
    if not 0 <= arguments.port <= PORT_AT_MOST:  # gRPC would take another one
        parser.error(f"--port {arguments.port}: no port; give one up to {PORT_AT_MOST}, or 0 for a free one")
    pool = WorkerPool()
    # else a second pool could listen at the same port, and get half of the requests
    server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
    try:
        port = server.add_insecure_port(f"{arguments.address}:{arguments.port}")
    except RuntimeError:
        print(  # noqa: T201 - a command of its own
            f"{arguments.address}:{arguments.port}: cannot be listened at; "
            "another program may be there, give another --port, or an --address of this machine",
            file=sys.stderr,
        )
        return 1
    is_over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_over.set())
    server.start()
    print(f"listening at {arguments.address}:{port} (process {os.getpid()})", flush=True)  # noqa: T201
    is_over.wait()
    server.stop(0)
    pool.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
