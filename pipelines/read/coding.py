"""Decodes content encodings, up to a limit. Pure. We ask for none, but some servers send them all the same."""

import zlib
from typing import Literal

import pyarrow as pa

_CODECS: dict[str, Literal["brotli", "zstd"]] = {"br": "brotli", "zstd": "zstd"}
_KNOWN = frozenset({"gzip", "x-gzip", "deflate", *_CODECS})
_MAGIC = {"gzip": b"\x1f\x8b", "x-gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
_ENCODINGS_AT_MOST = 3
_MEMBERS_AT_MOST = 64  # of gzip: the rest is copied after each, so a body of empty ones would take minutes


class CodingError(ValueError):
    """The body is not what its Content-Encoding says."""


def known(content_encoding: str, body: bytes) -> list[str]:
    """The encodings to take off a body, the last first.

    Unknown names are left out, as browsers do. What one did to the body is not known, so others beside it are believed
    only where the body begins as the last of them does.
    """
    names = [name for name in map(str.strip, content_encoding.lower().split(",")) if name not in ("", "identity")]
    found = [name for name in reversed(names) if name in _KNOWN]
    is_so = len(found) == len(names) or body.startswith(_MAGIC.get(found[0] if found else "", ()))
    return found if is_so else []


def decoded(body: bytes, content_encoding: str, bytes_at_most: int) -> bytes:
    """The decoded body, or its first `bytes_at_most` + 1 bytes if it is longer.

    Raises:
        CodingError: the body is cut or broken, or encoded more than three times.
    """
    encodings = known(content_encoding, body)
    if len(encodings) > _ENCODINGS_AT_MOST:
        raise CodingError(f"{len(encodings)} content encodings")
    for encoding in encodings:
        if encoding in ("gzip", "x-gzip"):
            body = _inflated(body, 31, bytes_at_most + 1)
        elif encoding == "deflate":
            body = _inflated(body, window_of(body), bytes_at_most + 1)
        else:
            body = _read(body, _CODECS[encoding], bytes_at_most + 1)
    return body


def window_of(body: bytes) -> int:
    """Zlib's window bits of a body in `deflate`, which means zlib's wrapping; some servers send the bare stream."""
    is_wrapped = len(body) >= 2 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return 15 if is_wrapped else -15


def _inflated(body: bytes, window_bits: int, bytes_at_most: int) -> bytes:
    """Inflates a body; of gzip, all members. What follows the last one is ignored, as in browsers."""
    parts, size = [], 0
    while body and (not parts or (window_bits == 31 and body.startswith(b"\x1f\x8b"))) and size < bytes_at_most:
        if len(parts) == _MEMBERS_AT_MOST:
            raise CodingError(f"more than {_MEMBERS_AT_MOST} members of gzip")
        inflater = zlib.decompressobj(window_bits)
        try:
            parts.append(inflater.decompress(body, bytes_at_most - size))
        except zlib.error as error:
            raise CodingError(f"broken content encoding: {error}") from None
        size += len(parts[-1])
        if not inflater.eof and size < bytes_at_most:
            raise CodingError("the encoded body is cut")
        body = inflater.unused_data
    return b"".join(parts)


def _read(body: bytes, codec: Literal["brotli", "zstd"], bytes_at_most: int) -> bytes:
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            return stream.read(bytes_at_most)
    except OSError as error:
        raise CodingError(f"broken content encoding: {error}") from None
