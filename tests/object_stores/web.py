"""A web server of a folder, on loopback: with ranges or without, and with the Hub's questions about repositories."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_TREE = re.compile(r"/api/datasets/some/pairs/(?:tree|paths-info)/main/?(.*)")
_BUCKET = re.compile(r"/api/buckets/some/pairs/tree/?(.*)")
_OF_HUB = re.compile(r"^/(?:datasets/some/pairs/resolve/main|buckets/some/pairs/resolve)/|^/")
_TIME = "2026-02-06T17:37:57.000Z"
_JSON = {"Content-Type": "application/json"}
HUB = "hf://datasets/some/pairs"
BUCKET = "hf://buckets/some/pairs"


@dataclass
class Web:
    """What is served, and how; and what was asked for."""

    folder: Path
    port: int = 0
    has_ranges: bool = True
    has_size: bool = True
    has_version: bool = True
    fails: int = 0  # so many requests are answered with 503
    password: str = ""
    headers: dict[str, str] = field(default_factory=dict)  # of files
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, range

    def url(self, name: str) -> str:
        """The address of a file of the folder."""
        return f"http://127.0.0.1:{self.port}/{name}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    web: Web

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nobody reads it."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        web, path = self.web, unquote(urlsplit(self.path).path)
        web.asked.append((self.command, path, self.headers.get("Range", "")))
        if web.fails:
            web.fails -= 1
            self._answer(503, b"later")
        elif web.password and self.headers.get("Authorization", "") != _basic(web.password):
            self._answer(401, b"who are you?")
        elif path.startswith("/api/"):
            self._of_hub(path)
        else:
            self._file(web.folder / _OF_HUB.sub("", path))

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self._answer(404, b"not here")
            return
        data, web = path.read_bytes(), self.web
        version = {**web.headers, **({"ETag": f'"{hashlib.md5(data).hexdigest()}"'} if web.has_version else {})}
        wanted = _RANGE.match(self.headers.get("Range", "")) if web.has_ranges else None
        if wanted is None:
            self._answer(200, data, version)
            return
        begin, end = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
        self._answer(206, data[begin : end + 1], {**version, "Content-Range": f"bytes {begin}-{end}/{len(data)}"})

    def _of_hub(self, path: str) -> None:
        if (bucket := _BUCKET.match(path)) is not None:
            self._answer(200, json.dumps(self._of_bucket(bucket[1])).encode(), _JSON)
        elif path == "/api/buckets/some/pairs":
            told = {"id": "some/pairs", "private": False, "createdAt": _TIME, "size": 0, "totalFiles": 0}
            self._answer(200, json.dumps(told).encode(), _JSON)
        elif (tree := _TREE.match(path)) is not None:
            folder = self.web.folder / tree[1]
            if not folder.is_dir():
                self._answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
                return
            there = sorted(folder.rglob("*") if "recursive=true" in self.path else folder.iterdir())
            self._answer(200, json.dumps(list(map(self._entry, there))).encode(), _JSON)
        elif path.startswith("/api/datasets/some/pairs"):
            told = {"id": "some/pairs", "sha": "0" * 40, "siblings": [], "tags": [], "private": False, "downloads": 0}
            self._answer(200, json.dumps(told).encode(), _JSON)
        else:
            self._answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _of_bucket(self, prefix: str) -> list[dict[str, object]]:
        """What a bucket has of names that begin so: every file, or of what lies deeper the folders alone."""
        files = [path for path in sorted(self.web.folder.rglob("*")) if path.is_file()]
        names = {str(path.relative_to(self.web.folder)): path for path in files}
        found = dict[str, dict[str, object]]()
        for name, path in names.items():
            if not name.startswith(prefix):
                continue
            folder, is_deeper, _ = name.removeprefix(f"{prefix}/").partition("/")
            if is_deeper and "recursive=true" not in self.path:
                folder = f"{prefix}/{folder}" if name.startswith(f"{prefix}/") else folder
                found[folder] = {"type": "directory", "path": folder, "uploadedAt": _TIME}
            else:
                data = path.read_bytes()
                digest = hashlib.sha256(data).hexdigest()
                found[name] = {"type": "file", "path": name, "size": len(data), "xetHash": digest, "mtime": _TIME}
        return list(found.values())

    def _entry(self, path: Path) -> dict[str, object]:
        name = str(path.relative_to(self.web.folder))
        if path.is_dir():
            return {"type": "directory", "path": name, "oid": "0" * 40, "size": 0}
        data = path.read_bytes()
        return {"type": "file", "path": name, "oid": hashlib.sha1(data).hexdigest(), "size": len(data)}

    def _answer(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.web.has_size:
            self.send_header("Content-Length", str(len(data)))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command != "HEAD":
            with suppress(ConnectionError):  # whoever wanted a range leaves
                self.wfile.write(data)


def _basic(password: str) -> str:
    return f"Basic {base64.b64encode(password.encode()).decode()}"


@contextmanager
def serving(folder: Path) -> Iterator[Web]:
    """Serve a folder for as long as the block lasts."""
    web = Web(folder)

    class Handler(_Handler):
        pass

    Handler.web = web
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    web.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
