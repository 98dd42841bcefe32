"""The parts of image files that may have marks: a search through the picture too would cost ten times as much."""

import re
from collections.abc import Iterator
from itertools import islice

_SCAN, _APP11 = re.compile(rb"\xff+\xda"), 0xEB  # more bytes of 0xFF may stand before any
_PICTURES = frozenset({b"IDAT", b"fdAT", b"VP8 ", b"VP8L", b"ALPH", b"ANMF"})
PARTS_AT_MOST = 10_000  # that are followed


def without_picture(data: bytes) -> bytes:
    """A JPEG up to its scan, and the chunks of a PNG or WebP but those of the picture; any other file is whole."""
    if is_jpeg(data):
        end = max((end for *_, end in _segments(data)), default=2)
        return data[:end] if _SCAN.match(data, end) else data
    if data.startswith(b"\x89PNG\r\n\x1a\n") or (data.startswith(b"RIFF") and data[8:12] == b"WEBP"):
        return b"".join(data[begin:end] for name, begin, end in _chunks(data) if name not in _PICTURES)
    return data


def is_jpeg(data: bytes) -> bool:
    """Whether a file is a JPEG."""
    return data.startswith(b"\xff\xd8")


def boxes_of_jpeg(data: bytes) -> bytes:
    """The boxes of a JPEG, which are cut into segments APP11 (ISO 19566-5, annex D)."""
    parts = list[bytes]()
    for marker, begin, end in _segments(data):
        if marker == _APP11 and data.startswith(b"JP", begin + 4):
            is_first = int.from_bytes(data[begin + 8 : begin + 12]) == 1
            parts.append(data[begin + (12 if is_first else 20) : end])  # the header of the box is in each
    return b"".join(parts)


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    from altalign.filters import readable  # Pillow, which commands that look at no image need not wait for

    return islice(readable.segments(data), PARTS_AT_MOST)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Name, begin and end of each chunk of a PNG or WebP, its head included, and then of what is left."""
    is_png = not data.startswith(b"RIFF")
    at = 8 if is_png else 12
    for _ in range(PARTS_AT_MOST):
        first, second = data[at : at + 4], data[at + 4 : at + 8]
        if len(second) < 4:
            break
        name, length = (second, int.from_bytes(first)) if is_png else (first, int.from_bytes(second, "little"))
        end = at + length + (12 if is_png else 8 + length % 2)
        yield name, at, end
        at = end
    yield b"", at, len(data)
