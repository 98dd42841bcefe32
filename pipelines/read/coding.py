"""Decodes bodies of HTTP messages, up to a limit, as a server sends them or as an archive has them. Pure."""

import io
import re
import zlib
from typing import Literal

import pyarrow as pa
from fastwarc.stream_io import BrotliReader, ZstdReader

_CODECS: dict[str, Literal["brotli", "zstd"]] = {"br": "brotli", "zstd": "zstd"}
_KNOWN = frozenset({"gzip", "x-gzip", "deflate", *_CODECS})
_GZIP = b"\x1f\x8b"
_MAGIC = {"gzip": _GZIP, "x-gzip": _GZIP, "zstd": b"\x28\xb5\x2f\xfd"}
_ENCODINGS_AT_MOST = 3
_MEMBERS_AT_MOST = 64  # of gzip: the rest is copied after each, so a body of empty ones would take minutes
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")


class CodingError(ValueError):
    """The body is not what its headers say."""


def decoded(body: bytes, content_encoding: str, bytes_at_most: int) -> bytes:
    """The body that a server has sent, or its first `bytes_at_most` + 1 bytes if it is longer.

    We ask for no encoding, but some servers send one all the same. Raises CodingError: the body is cut or broken, or
    encoded more than three times.
    """
    encodings = _encodings(content_encoding, body)
    if len(encodings) > _ENCODINGS_AT_MOST:
        raise CodingError(f"{len(encodings)} content encodings")
    for encoding in encodings:
        body = _without(encoding, body, bytes_at_most + 1, may_be_cut=False)
    return body


def decoded_of_archive(body: bytes, *, transfer_encoding: str, content_encoding: str, bytes_at_most: int) -> bytes:
    """The body of an archived message as its author wrote it, at most `bytes_at_most` + 1 bytes of it.

    Crawlers often store a decoded body with the original headers, so a body that does not look encoded stays as it is.
    Of a body that breaks off, the part that is in the archive is returned. Raises CodingError: it is encoded and
    broken.
    """
    if "chunked" in transfer_encoding.lower():
        body = _without_chunks(body)
    for encoding in _encodings(content_encoding, body) if content_encoding else ():
        is_markup = body[:64].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<")
        if body.startswith(_MAGIC[encoding]) if encoding in _MAGIC else not is_markup:
            body = _without(encoding, body, bytes_at_most + 1, may_be_cut=True)
    return body[: bytes_at_most + 1]


def _encodings(content_encoding: str, body: bytes) -> list[str]:
    """The encodings to take off a body, the last first.

    Unknown names are left out, as browsers do. What one did to the body is not known, so others beside it are believed
    only where the body begins as the last of them does.
    """
    names = [name for name in map(str.strip, content_encoding.lower().split(",")) if name not in ("", "identity")]
    known = [name for name in reversed(names) if name in _KNOWN]
    is_so = len(known) == len(names) or body.startswith(_MAGIC.get(known[0] if known else "", ()))
    return known if is_so else []


def _without(encoding: str, body: bytes, bytes_at_most: int, *, may_be_cut: bool) -> bytes:
    """Takes an encoding off a body; of gzip that is not cut, all members, and what follows them is ignored."""
    # `deflate` means zlib's wrapping, and some servers send the bare stream
    is_wrapped = len(body) >= 2 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0
    window_bits = 31 if encoding != "deflate" else 15 if is_wrapped else -15
    parts, size = list[bytes](), 0
    try:
        if encoding in _CODECS and not may_be_cut:
            with pa.CompressedInputStream(pa.BufferReader(body), _CODECS[encoding]) as whole:
                return whole.read(bytes_at_most)
        if encoding in _CODECS:
            stream = (BrotliReader if encoding == "br" else ZstdReader)(io.BytesIO(body))
            while size < bytes_at_most and (part := stream.read(bytes_at_most - size)):
                parts.append(part)
                size += len(part)
            return b"".join(parts)
        while body and size < bytes_at_most and (not parts or (window_bits == 31 and body.startswith(_GZIP))):
            if len(parts) == _MEMBERS_AT_MOST:
                raise CodingError(f"more than {_MEMBERS_AT_MOST} members of gzip")
            inflater = zlib.decompressobj(window_bits)
            parts.append(inflater.decompress(body, bytes_at_most - size))
            size += len(parts[-1])
            if may_be_cut:
                break
            if not inflater.eof and size < bytes_at_most:
                raise CodingError("the encoded body is cut")
            body = inflater.unused_data
    except (OSError, zlib.error) as error:
        raise CodingError(f"broken content encoding: {error}") from None
    return b"".join(parts)


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
            raise CodingError(f"broken chunk at byte {at} of the body")
    return b"".join(parts)
