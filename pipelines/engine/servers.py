"""Job servers: child programs that pass a command's pipelines to an engine.

They end with this process, however it ends.

Beam would start them too, but what it starts outlives a killed parent, and its handler of Ctrl-C can wait for itself.
"""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from altalign.errors import AltalignError
from altalign.machine import children, interrupts

LINES_OF_LOG = 3  # that an error quotes


class Server(NamedTuple):
    """A program that listens for jobs."""

    name: str  # as its users know it
    command: Callable[[int], list[str]]  # that listens on this port of loopback
    starts_within_s: float


@contextmanager
def serving(server: Server, log_path: str) -> Iterator[str]:
    """The endpoint of a server that lives as long as the block.

    Raises:
        AltalignError: it ends at once, or does not answer.
    """
    port = free_port()
    command = children.ending_with_us(server.command(port))
    Path(log_path).parent.mkdir(parents=True, exist_ok=True)
    with Path(log_path).open("wb") as log:
        # A session of its own: Ctrl-C at a terminal is for us, and we end it.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for(process, server, port, log_path)
        yield f"localhost:{port}"
    finally:
        children.end([process])  # it keeps nothing: units leave their marks themselves


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def _wait_for(process: "subprocess.Popen[bytes]", server: Server, port: int, log_path: str) -> None:
    end = time.monotonic() + server.starts_within_s
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
            return
        interrupts.check()
        time.sleep(0.02)
    said: list[str] = []
    with suppress(OSError):
        said = Path(log_path).read_text(encoding="utf-8", errors="replace").strip().splitlines()[-LINES_OF_LOG:]
    raise AltalignError(
        f"{server.name} does not answer on port {port}; {log_path} has what it said"
        + (f": {' / '.join(said)}" if said else "")
    )
