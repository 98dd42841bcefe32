"""Web archives written by hand, record by record."""

import gzip
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from altalign.data.schema import BROKEN, EXTRACTED, IMAGE_PLACE
from altalign.pipelines import read
from altalign.settings.curate import InputSettings


def record(
    url: str | None,
    block: bytes,
    *,
    kind: str = "response",
    content_type: str = "application/http; msgtype=response",
    length: int | None = None,
) -> bytes:
    """A WARC record."""
    target = b"" if url is None else b"WARC-Target-URI: " + url.encode("utf-8", "surrogateescape") + b"\r\n"
    head = (
        f"Content-Type: {content_type}\r\nContent-Length: {len(block) if length is None else length}\r\n\r\n".encode()
    )
    return (
        b"WARC/1.0\r\nWARC-Type: "
        + kind.encode()
        + b"\r\nWARC-Date: 2026-01-01T00:00:00Z\r\n"
        + target
        + head
        + block
        + b"\r\n\r\n"
    )


def response(
    url: str | None,
    body: bytes,
    content_type: str = "text/html",
    *,
    status: str = "200 OK",
    headers: str = "",
    length: int | None = None,
) -> bytes:
    """A WARC record of an HTTP response."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n{headers}\r\n".encode()
    return record(url, head + body, length=length)


def image(url: str) -> bytes:
    """A response with an image that knows its URL."""
    return response(url, b"\x89PNG " + url.encode(), "image/png")


def page(number: int, *, images: int = 1) -> bytes:
    """A response with a page of so many images."""
    return response(
        f"http://a/{number}",
        b"".join(
            b'<p><img src="%d-%d.png" alt="image %d of page %d">' % (number, each, each, number)
            for each in range(images)
        ),
    )


def zstd(data: bytes) -> bytes:
    """One zstd frame."""
    return pa.compress(data, "zstd", asbytes=True)


def write(path: Path, records: Iterable[bytes], compression: str = "gzip") -> Path:
    """An archive: each record a member of its own, `whole` in one member, or bare."""
    match compression:
        case "gzip":
            data = b"".join(map(gzip.compress, records))
        case "zstd":
            data = b"".join(map(zstd, records))
        case "whole":
            data = gzip.compress(b"".join(records))
        case "whole zstd":
            data = zstd(b"".join(records))
        case _:
            data = b"".join(records)
    path.write_bytes(data)
    return path


def read_all(path: Path, settings: InputSettings) -> tuple[list[dict], list[dict], list[dict]]:
    """Rows, broken records and places of a file."""
    rows, broken, places = [], [], []
    for each in read.read(str(path), settings):
        assert (each.rows.schema, each.broken.schema, each.places.schema) == (EXTRACTED, BROKEN, IMAGE_PLACE)
        rows += each.rows.to_pylist()
        broken += each.broken.to_pylist()
        places += each.places.to_pylist()
    assert all(entry["file"] == str(path) and entry["error"] for entry in broken)
    return rows, broken, places


def compress(path: Path, data: bytes) -> Path:
    """A file, compressed as its name says."""
    match path.suffix:
        case ".gz":
            data = gzip.compress(data)
        case ".zst":
            data = pa.compress(data, "zstd", asbytes=True)
    path.write_bytes(data)
    return path
