"""A proxy before an S3 server that fails chosen requests."""

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from tests.object_stores.servers import Server

# by method and path: the status to fail with, 0 to hang up, None to pass it on
Fault = Callable[[str, str], int | None]


@contextmanager
def before(server: Server, fault: Fault) -> Iterator[str]:
    """The URL of a proxy."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self._body()
            status = fault(self.command, self.path)
            self.close_connection = True
            if status == 0:
                return
            if status is not None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            answer = connection.getresponse()
            data = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
            if length is not None:
                self.send_header("Content-Length", length)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(data)
            connection.close()

        def _body(self) -> bytes:
            if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            framed, size = b"", 1
            while size:  # handed on as it is, with the sizes between
                line = self.rfile.readline()
                size = int(line.partition(b";")[0], 16)
                framed += line + self.rfile.read(size + 2 if size else 0)
            while (line := self.rfile.readline()) not in (b"\r\n", b""):
                framed += line
            return framed + b"\r\n"

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        proxy.daemon_threads = True
        Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{proxy.server_address[1]}"
        finally:
            proxy.shutdown()
