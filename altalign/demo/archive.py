"""Writes WARC files, a gzip member a record, and an index (CDXJ) of them; reads single records by it.

Bytes depend on what is written alone: record ids are UUIDs of their names, dates count on from a fixed one, gzip has no
time.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit
from uuid import NAMESPACE_URL, uuid5

_RESPONSE = "application/http; msgtype=response"
_START = datetime(2021, 6, 11, tzinfo=UTC)
_REASONS = {200: "OK", 301: "Moved Permanently", 404: "Not Found"}


@dataclass(frozen=True)
class Capture:
    """One record of an index: where it is, and what."""

    url: str
    status: int
    media_type: str
    file: str
    offset: int
    length: int
    moment: str = ""


class Archive:
    """One WARC file being written."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.captures: list[Capture] = []
        self._file = path.open("wb")
        self._records = 0
        self._moment = ""
        info = b"software: altalign demo\r\nformat: WARC File Format 1.1\r\n"
        self._file.write(self._member("warcinfo", "", info, "application/warc-fields"))

    def response(
        self, url: str, body: bytes, media_type: str, *, status: int = 200, headers: tuple[str, ...] = ()
    ) -> None:
        """Add an HTTP response; `headers` are further lines, `body` is as transferred."""
        member = self._member("response", url, http(body, media_type, status, headers), _RESPONSE)
        self._capture(url, status, media_type, member)

    def resource(self, url: str, body: bytes, media_type: str) -> None:
        """Add a body without HTTP headers."""
        self._capture(url, 200, media_type, self._member("resource", url, body, media_type))

    def request(self, url: str) -> None:
        """Add the request for a URL."""
        parts = urlsplit(url)
        block = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
        self._file.write(self._member("request", url, block, "application/http; msgtype=request"))

    def broken(self, how: str, url: str, body: bytes) -> None:
        """Add a page that no reader can read, which is "damaged" in its gzip member, "cut" or "nameless" (no URL)."""
        page = http(body, "text/html", 200, ())
        member = self._member("response", "" if how == "nameless" else url, page, _RESPONSE)
        middle = len(member) // 2
        if how != "nameless":
            member = member[:middle] + (b"\xff" * 40 + member[middle + 40 :] if how == "damaged" else b"")
        self._file.write(member)

    def close(self) -> None:
        """Finish the file."""
        self._file.close()

    def _capture(self, url: str, status: int, media_type: str, member: bytes) -> None:
        """Write a record that the index names."""
        media_type, offset = media_type.split(";")[0], self._file.tell()
        self.captures.append(Capture(url, status, media_type, self.name, offset, len(member), self._moment))
        self._file.write(member)

    def _member(self, kind: str, url: str, block: bytes, media_type: str) -> bytes:
        """A record as a gzip member, a second later than the last."""
        self._records += 1
        self._moment = (_START + timedelta(seconds=self._records)).strftime("%Y-%m-%dT%H:%M:%SZ")
        headers = {
            "WARC-Type": kind,
            "WARC-Record-ID": f"<urn:uuid:{uuid5(NAMESPACE_URL, f'{self.name} {self._records} {url}')}>",
            "WARC-Date": self._moment,
            "WARC-Target-URI": url,
            "Content-Type": media_type,
            "Content-Length": str(len(block)),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
        return gzipped(f"WARC/1.1\r\n{head}\r\n".encode() + block + b"\r\n\r\n", level=4)


def gzipped(data: bytes, level: int) -> bytes:
    """A gzip member without a time. The header that `gzip.compress` writes depends on Python's version."""
    return zlib.compress(data, level, wbits=31)


def http(body: bytes, media_type: str, status: int, headers: tuple[str, ...]) -> bytes:
    """An HTTP response message."""
    is_chunked = any(line.startswith("Transfer-Encoding") for line in headers)
    length = () if is_chunked else (f"Content-Length: {len(body)}",)
    head = (f"HTTP/1.1 {status} {_REASONS[status]}", f"Content-Type: {media_type}", *headers, *length, "", "")
    return "\r\n".join(head).encode("latin-1") + body


def chunked(body: bytes, size: int = 1500) -> bytes:
    """The body in HTTP's chunked transfer encoding."""
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


def write_index(path: Path, captures: list[Capture]) -> None:
    """Write the captures as CDXJ: reversed host and path, moment, JSON; sorted."""
    lines = []
    for each in captures:
        parts = urlsplit(each.url)
        host, query = ",".join(reversed(parts.netloc.split("."))), f"?{parts.query}" if parts.query else ""
        names = ("url", "mime", "status", "filename", "offset", "length")
        values = (each.url, each.media_type, each.status, each.file, each.offset, each.length)
        fields = json.dumps(dict(zip(names, map(str, values), strict=True)))
        lines.append(f"{host}){parts.path or '/'}{query} {''.join(filter(str.isdigit, each.moment))} {fields}\n")
    path.write_text("".join(sorted(lines)), encoding="utf-8", newline="\n")


def read_index(path: Path) -> Iterator[Capture]:
    """The captures of an index, in its order."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            of = json.loads(line.split(" ", 2)[2])
            numbers = int(of["offset"]), int(of["length"])
            yield Capture(of["url"], int(of["status"]), of["mime"], of["filename"], *numbers)


def read_record(folder: Path, capture: Capture) -> tuple[str, bytes]:
    """The head of the WARC record of a capture, and its block."""
    with (folder / capture.file).open("rb") as file:
        file.seek(capture.offset)
        head, _, block = zlib.decompress(file.read(capture.length), wbits=31).partition(b"\r\n\r\n")
    return head.decode(), block[:-4]
