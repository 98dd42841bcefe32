"""The server as tests see it: started, stopped, asked for what it was asked."""

import json
import select
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STARTS_WITHIN_S = 60  # a hang, not a slow machine


@dataclass(frozen=True)
class Event:
    """A line of the log; the numbers of a connection and a request count from 1 at each start."""

    event: str  # "start", "open", "request", "end", "close"
    at: float  # seconds of the monotonic clock of this machine
    facts: dict[str, Any]

    @property
    def target(self) -> str:
        """Path and query of a request."""
        return self.facts["target"]

    @property
    def host(self) -> str:
        """Host of a request, without its port."""
        return self.facts["host"]


class WebServer:
    """A server in a process of its own: `with WebServer(folder) as server: server.url("/png/a")`.

    It keeps its ports over a stop and a start. `folder` gets its log, and may hold files for `/file/NAME`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        addresses: Sequence[str] = ("127.0.0.1",),
        demo: Path | None = None,
        certificate: Path | None = None,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.log = folder, folder / "requests.jsonl"
        self._options = [option for address in addresses for option in ("--address", address)]
        self._options += [
            *(["--demo", str(demo)] if demo else []),
            *(["--certificate", str(certificate)] if certificate else []),
        ]
        self.process: subprocess.Popen[str] | None = None
        self.port = self.tls_port = self.refused_port = self.full_port = self.handshake_port = 0

    def __enter__(self) -> "WebServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, at the port of the last time."""
        program = [
            sys.executable,
            "-m",
            "tests.web_server.server",
            "--log",
            str(self.log),
            "--folder",
            str(self.folder),
        ]
        ports = ["--port", str(self.port), "--tls-port", str(self.tls_port or 0)]
        self.process = subprocess.Popen(
            [*program, *ports, *self._options], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], STARTS_WITHIN_S)
        line = self.process.stdout.readline() if ready else ""
        assert line, "the web server did not start"
        for name, port in json.loads(line).items():
            setattr(self, name, port)

    def stop(self) -> None:
        """Kill it: connections are cut, and new ones refused."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()

    def url(self, target: str, host: str = "127.0.0.1") -> str:
        """The address of a target, at any host that leads here."""
        return f"http://{host}:{self.port}{target}"

    def events(self) -> list[Event]:
        """All that happened since the first start."""
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [Event(facts.pop("event"), facts.pop("at"), facts) for facts in map(json.loads, lines)]

    def requests(self, target: str | None = None) -> list[Event]:
        """The requests so far, of one target or of all."""
        return [event for event in self.events() if event.event == "request" and target in (None, event.target)]


def certificate(folder: Path) -> Path | None:
    """A certificate of 127.0.0.1 and *.test that nobody has signed, with its key; None where there is no openssl."""
    openssl = shutil.which("openssl")
    if openssl is None:
        return None
    key, signed, both = (folder / name for name in ("key.pem", "signed.pem", "certificate.pem"))
    names = "subjectAltName=DNS:*.test,IP:127.0.0.1"
    options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30", "-addext"]
    files = ["-keyout", str(key), "-out", str(signed)]
    command = [openssl, "req", "-x509", *options, names, "-subj", "/CN=a server of tests", *files]
    subprocess.run(command, check=True, capture_output=True)
    both.write_text(key.read_text() + signed.read_text())
    return both
