"""Pictures made of their names: PNGs of 240 x 240 pixels, no two alike, by the standard library alone."""

import hashlib
import struct
import zlib

SIDE_PX = 240


def picture(name: str, *, bytes_at_least: int = 0) -> bytes:
    """The picture of a name, the same each time; what is missing of its size is in a chunk that nobody reads."""
    shades = hashlib.sha256(name.encode()).digest()
    rows = b"".join(
        b"\0" + bytes((shades[row % 32] + column) & 0xFF for column in range(SIDE_PX)) for row in range(SIDE_PX)
    )
    header = struct.pack(">IIBBBBB", SIDE_PX, SIDE_PX, 8, 0, 0, 0, 0)
    chunks = [
        (b"IHDR", header),
        (b"tEXt", b"Title\0" + name.encode()),
        (b"IDAT", zlib.compress(rows, 1)),
        (b"IEND", b""),
    ]
    missing = bytes_at_least - len(_png(chunks)) - 12
    return _png([*chunks[:2], (b"zzZz", bytes(missing)), *chunks[2:]] if missing > 0 else chunks)


def _png(chunks: list[tuple[bytes, bytes]]) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
