"""Where members of an archive begin and end: gzip members, zstd frames, or records that are not compressed."""

import re
import zlib
from typing import Any, BinaryIO, Literal, cast

import pyarrow as pa
from fastwarc.stream_io import GzipReader, ZstdReader

Compression = Literal["gzip", "zstd", ""]

_MAGIC: dict[Compression, bytes] = {"gzip": b"\x1f\x8b\x08", "zstd": b"\x28\xb5\x2f\xfd", "": b"WARC/"}
_ZSTD_DICTIONARY = b"\x5d\x2a\x4d\x18"  # the archive begins with a dictionary that every frame needs
_START = re.compile(rb"WARC/\d+\.\d+[ \t]*\r?\n[A-Za-z][A-Za-z0-9-]*[ \t]*:")
_START_BYTES = 64  # enough of a record to tell that it is one
_HEAD_BYTES = 512  # of a gzip member, which have those
_PIECE_BYTES, _WINDOW = 1 << 14, 1 << 20
_EMPTY_BYTES = 64  # more than a gzip member of nothing has


def check_disk(error: OSError) -> None:
    """Raises an error of the disk, which has an errno; errors in the bytes have none."""
    if error.errno is not None:
        raise error


def compression_at(file: BinaryIO, offset: int) -> Compression:
    """The compression of what begins here."""
    file.seek(offset)
    magic = file.read(4)
    if magic.startswith(_MAGIC["gzip"]):
        return "gzip"
    return "zstd" if magic == _MAGIC["zstd"] else ""


def first_start(file: BinaryIO) -> tuple[int | None, Compression]:
    """The offset of the first record (None if there is none), and how records are compressed."""
    file.seek(0)
    if file.read(4) == _ZSTD_DICTIONARY:
        return 0, "zstd"
    likely = compression_at(file, 0)
    candidates: tuple[Compression, ...] = (likely,) if likely else ("gzip", "zstd", "")
    for compression in candidates:
        start = next_start(file, 0, compression)
        if start is not None:
            return start, compression
    return None, ""


def next_start(file: BinaryIO, offset: int, compression: Compression) -> int | None:
    """The offset of the next record, at or after an offset; None if there is none."""
    magic = _MAGIC[compression]
    size = 1 << 12  # small: the next of a million damaged members is near
    while True:
        file.seek(offset)
        window = file.read(size)
        at = window.find(magic)
        while at >= 0:
            if is_start(file, offset + at, compression):
                return offset + at
            at = window.find(magic, at + 1)
        if len(window) < size:
            return None
        offset += size - len(magic) + 1
        size = min(2 * size, _WINDOW)


def is_start(file: BinaryIO, offset: int, compression: Compression) -> bool:
    """Whether a member begins here that begins with the first two lines of a record, or is cut in them."""
    file.seek(offset)
    end = offset  # of what is read: a zstd reader goes on to the next frame
    try:
        if compression == "gzip":
            content = zlib.decompressobj(31).decompress(file.read(_HEAD_BYTES), _START_BYTES)
        elif compression == "zstd":
            content = (reader := ZstdReader(file)).read(_START_BYTES)
            end = reader.frame_start_position() or offset
        else:
            content = file.read(_START_BYTES)
    except zlib.error:
        return False
    except OSError as error:
        check_disk(error)
        return False
    is_cut = len(content) < _START_BYTES or end > offset
    return _START.match(content) is not None or (is_cut and content.startswith(b"WARC/"))


def stream(file: BinaryIO, compression: Compression) -> GzipReader | ZstdReader:
    """The content of a compressed file from its position on."""
    return GzipReader(file) if compression == "gzip" else ZstdReader(file)


def is_more(file: BinaryIO, offset: int) -> bool:
    """Whether something but zeros and white space lies at an offset."""
    file.seek(offset)
    return bool(file.read(1 << 10).strip(b"\0\r\n\t "))


def end_of_member(file: BinaryIO, offset: int) -> int | None:
    """Reads the gzip member that begins here: its end, None where it is damaged or cut."""
    file.seek(offset)
    inflater, left = zlib.decompressobj(31), b""
    try:
        while not inflater.eof and (data := left or file.read(_PIECE_BYTES)):
            inflater.decompress(data, _WINDOW)
            left = inflater.unconsumed_tail
    except zlib.error:
        return None
    return file.tell() - len(inflater.unused_data) if inflater.eof else None


def behind_empty_members(file: BinaryIO, offset: int) -> int:
    """The offset of the first gzip member at or after an offset that has content, or is none."""
    while True:
        file.seek(offset)
        inflater, head = zlib.decompressobj(31), file.read(_EMPTY_BYTES)
        try:
            is_empty = not inflater.decompress(head, 1) and inflater.eof
        except zlib.error:
            return offset
        if not is_empty:
            return offset
        offset += len(head) - len(inflater.unused_data)


def ends_whole(file: BinaryIO, offset: int) -> bool:
    """Whether the zstd frames from here on are whole: the archive's reader takes one that is cut for the end."""
    file.seek(offset)
    frames = pa.CompressedInputStream(pa.PythonFile(cast(Any, file), "r"), "zstd")
    try:
        while frames.read(_PIECE_BYTES):
            pass
    except OSError as error:
        check_disk(error)
        return False
    return True
