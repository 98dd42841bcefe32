"""Decodes bodies of HTTP messages from archives: transfer and content encodings, up to a limit."""

import io
import re
import zlib
from collections.abc import Callable

from fastwarc.stream_io import BrotliReader, ZstdReader

from altalign.pipelines.read import coding

_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class BodyError(ValueError):
    """The body is not what its headers say."""


def decoded(body: bytes, *, transfer_encoding: str, content_encoding: str, bytes_at_most: int) -> bytes:
    """The body as its author wrote it, at most `bytes_at_most` + 1 bytes of it.

    Crawlers often store a decoded body with the original headers, so a body that does not look encoded stays as it is.
    Of a body that breaks off, the part that is there is returned.

    Raises:
        BodyError: the body is encoded and broken.
    """
    if "chunked" in transfer_encoding.lower():
        body = _without_chunks(body)
    for encoding in coding.known(content_encoding, body) if content_encoding else ():
        body = _DECODERS[encoding](body, bytes_at_most + 1)
    return body[: bytes_at_most + 1]


def _without_chunks(body: bytes) -> bytes:
    size = _CHUNK_SIZE.match(body)
    if size is None:
        return body
    parts = []
    while size is not None and (length := int(size[1], 16)):
        parts.append(body[size.end() : size.end() + length])
        at = size.end() + length
        if at + 2 > len(body):
            break
        at += 2 if body[at : at + 2] == b"\r\n" else 1
        size = _CHUNK_SIZE.match(body, at)
        if size is None and at < len(body):
            raise BodyError(f"broken chunk at byte {at} of the body")
    return b"".join(parts)


def _gunzip(body: bytes, bytes_at_most: int) -> bytes:
    return _inflate(body, 31, bytes_at_most) if body.startswith(_GZIP_MAGIC) else body


def _undeflate(body: bytes, bytes_at_most: int) -> bytes:
    return body if _is_markup(body) else _inflate(body, coding.window_of(body), bytes_at_most)


def _inflate(body: bytes, window_bits: int, bytes_at_most: int) -> bytes:
    inflater = zlib.decompressobj(window_bits)
    try:
        return inflater.decompress(body, bytes_at_most)
    except zlib.error as error:
        raise BodyError(f"broken content encoding: {error}") from None


def _unbrotli(body: bytes, bytes_at_most: int) -> bytes:
    return body if _is_markup(body) else _read(BrotliReader(io.BytesIO(body)), bytes_at_most)


def _unzstd(body: bytes, bytes_at_most: int) -> bytes:
    return _read(ZstdReader(io.BytesIO(body)), bytes_at_most) if body.startswith(_ZSTD_MAGIC) else body


def _read(stream: BrotliReader | ZstdReader, bytes_at_most: int) -> bytes:
    parts, left = [], bytes_at_most
    try:
        while left and (part := stream.read(left)):
            parts.append(part)
            left -= len(part)
    except OSError as error:
        raise BodyError(f"broken content encoding: {error}") from None
    return b"".join(parts)


def _is_markup(body: bytes) -> bool:
    """Whether a body begins like a page that a crawler has already decoded."""
    return body[:64].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<")


_DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "deflate": _undeflate,
    "br": _unbrotli,
    "zstd": _unzstd,
}
