"""Serves a demo web on this machine alone: http://127.0.0.1:PORT/HOST/PATH answers as the archived https://HOST/PATH."""

import contextlib
import csv
import filecmp
import sys
from email.parser import Parser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from altalign.demo.archive import Capture, http, read_index, read_record
from altalign.demo.web import INDEX, PAIRS, write_pairs
from altalign.errors import UsageError
from altalign.terminal import command

PORT = 8642
SERVED = "served.csv"
_ADDRESS = "127.0.0.1"


def local_url(url: str, port: int) -> str:
    """The local URL at which the server on `port` serves the page or image of `url`."""
    return f"http://{_ADDRESS}:{port}/{_name(url)}"


def serve(folder: Path, port: int = PORT) -> None:
    """Serve the demo web in `folder` until Ctrl-C.

    Writes its pairs with the addresses of this server, and prints the server's address.
    """
    with server(folder, port) as running:
        write_served(folder, running.server_port)
        hosts = sorted({name.partition("/")[0] for name in running.captures})
        address = f"http://{_ADDRESS}:{running.server_port}/HOST/PATH"
        sys.stdout.write(f"{folder}: served at {address} until Ctrl-C; hosts: {hosts[0]} … {hosts[-1]}\n")
        sys.stdout.write(f"{folder / SERVED}: its pairs with these addresses\n")
        if running.server_port != PORT:
            allowed = f'fetch.allow_addresses=["{_ADDRESS}:{running.server_port}"]'
            sys.stdout.write(f"configs/demo-served.toml allows port {PORT}: add --set '{allowed}'\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            running.serve_forever()


def write_served(folder: Path, port: int) -> None:
    """Write the pairs of the demo web in `folder` with the addresses that its images have on a server at `port`."""
    with (folder / PAIRS).open(encoding="utf-8", newline="") as file:
        pairs = [(row["url"], row["caption"], row["page_url"]) for row in csv.DictReader(file)]
    partial = folder / f"{SERVED}.partial"  # a reader gets the whole old file or the whole new one
    write_pairs(partial, ((local_url(url, port), caption, page_url) for url, caption, page_url in pairs))
    if (folder / SERVED).is_file() and filecmp.cmp(partial, folder / SERVED, shallow=False):
        partial.unlink()  # keeps the file's time of change, so that a run which read it can continue
    else:
        partial.replace(folder / SERVED)


def server(folder: Path, port: int = 0) -> "DemoServer":
    """A server of the demo web in `folder`, bound to a port (0: a free one) and not yet running."""
    if not (folder / INDEX).is_file():
        repair = f"write one with `{command('demo', str(folder))}`"
        raise UsageError(f"{folder}: no demo web there ({INDEX} is missing); {repair}")
    try:
        return DemoServer(folder, port)
    except OSError as error:
        if error.filename:  # of the index
            raise
        reason = (error.strerror or "").lower()
        raise UsageError(f"port {port} of {_ADDRESS}: {reason}; choose another with --port") from error


class DemoServer(ThreadingHTTPServer):
    """A server of one demo web."""

    request_queue_size = 128

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.captures = folder, dict[str, Capture]()
        # the first capture counts
        for capture in sorted(read_index(folder / INDEX), key=lambda capture: (capture.file, capture.offset)):
            self.captures.setdefault(_name(capture.url), capture)
        super().__init__((_ADDRESS, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    """Answers from the archives."""

    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds that a connection may be idle
    server: DemoServer  # pyright: ignore[reportIncompatibleVariableOverride] (http.server makes handlers of this server only)

    def do_GET(self) -> None:
        """Answer as the archived server did, or 404."""
        capture = self.server.captures.get(self.path.lstrip("/"))
        if capture is None:
            self.send_error(404)
            return
        record, block = read_record(self.server.folder, capture)
        if "WARC-Type: response" not in record:
            block = http(block, capture.media_type, 200, ())
        head, _, body = block.partition(b"\r\n\r\n")
        self.send_response(capture.status)
        for name, value in Parser().parsestr(head.decode("latin-1").partition("\r\n")[2]).items():
            self.send_header(name, local_url(value, self.server.server_port) if name == "Location" else value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: a visit is no event."""


def _name(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.netloc}{parts.path}{'?' if parts.query else ''}{parts.query}"
