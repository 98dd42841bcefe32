"""Finds where records begin and end in an archive: a chain of gzip members, zstd frames, or bare records."""

import io
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Literal, cast

from fastwarc.stream_io import GzipReader, ZstdReader

Compression = Literal["gzip", "zstd", ""]

PAST_THE_END = 4  # \r\n\r\n behind a record

_MAGIC: Mapping[Compression, bytes] = {"gzip": b"\x1f\x8b\x08", "zstd": b"\x28\xb5\x2f\xfd", "": b"WARC/"}
_ZSTD_DICTIONARY = b"\x5d\x2a\x4d\x18"  # the archive begins with a dictionary that every frame needs
_START = re.compile(rb"WARC/\d+\.\d+[ \t]*\r?\n[A-Za-z][A-Za-z0-9-]*[ \t]*:")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_START_BYTES = 64  # enough of a record to tell that it is one
# a block is at most 128 KiB, and a reader returns nothing of it before it has read it all
_ZSTD_BLOCK_BYTES = (1 << 17) + 32
# of a member, to find its first _START_BYTES
_HEAD_BYTES: Mapping[Compression, int] = {"gzip": 512, "zstd": _ZSTD_BLOCK_BYTES, "": 512}
_WINDOW = 1 << 20
_EMPTY_BYTES = 64  # more than a gzip member of nothing has


def check_disk(error: OSError) -> None:
    """Raises an error of the disk, which has an errno; errors in the bytes have none."""
    if error.errno is not None:
        raise error


def first_start(file: BinaryIO) -> tuple[int | None, Compression]:
    """The offset of the first record (None if there is none), and how records are compressed."""
    file.seek(0)
    magic = file.read(4)
    likely: list[Compression] = [compression for compression, of in _MAGIC.items() if magic.startswith(of[:4])]
    if has_dictionary(file):
        return 0, "zstd"
    for compression in likely or _MAGIC:
        start = next_start(file, 0, compression)
        if start is not None:
            return start, compression
    return None, ""


def has_dictionary(file: BinaryIO) -> bool:
    """Whether an archive begins with a dictionary, without which no frame of it can be read."""
    file.seek(0)
    return file.read(4) == _ZSTD_DICTIONARY


def compression_at(file: BinaryIO, offset: int) -> Compression:
    """The compression of what begins here; leaves the file at the same position."""
    file.seek(offset)
    magic = file.read(4)
    file.seek(offset)
    if magic.startswith(_MAGIC["gzip"]):
        return "gzip"
    return "zstd" if magic == _MAGIC["zstd"] else ""


def stream(file: BinaryIO, compression: Compression) -> GzipReader | ZstdReader | None:
    """The content of a file from its position; None if it is not compressed."""
    match compression:
        case "gzip":
            return GzipReader(file)
        case "zstd":
            return ZstdReader(file)
        case "":
            return None


def is_start(file: BinaryIO, offset: int, compression: Compression) -> bool:
    """Whether a record begins here, in a member of its own if the archive is compressed."""
    return _begins_record(_head_at(file, offset, compression), compression)


def _head_at(file: BinaryIO, offset: int, compression: Compression) -> bytes:
    """As much of a member as is needed to see how its content begins: of a zstd frame, its first block."""
    block = next(_zstd_blocks(file, offset), None) if compression == "zstd" else None
    file.seek(offset)
    return file.read(block[0] - offset if block else 512)


def _begins_record(head: bytes, compression: Compression) -> bool:
    start = _start_of(head, compression)
    return _START.match(start) is not None or (start.startswith(b"WARC/") and len(start) < _START_BYTES)


def is_compressed_twice(file: BinaryIO, offset: int, compression: Compression) -> bool:
    """Whether a member begins here that contains another member."""
    return compression != "" and _start_of(_head_at(file, offset, compression), compression).startswith(
        (_MAGIC["gzip"], _MAGIC["zstd"])
    )


def _start_of(head: bytes, compression: Compression) -> bytes:
    """The first bytes of the content of a record or member; empty if it does not begin as it should."""
    if not head.startswith(_MAGIC[compression]):
        return b""
    try:
        match compression:
            case "gzip":
                return zlib.decompressobj(31).decompress(head, _START_BYTES)
            case "zstd":
                return ZstdReader(io.BytesIO(head)).read(_START_BYTES)
            case "":
                return head
    except (zlib.error, OSError):
        return b""


def next_start(file: BinaryIO, offset: int, compression: Compression) -> int | None:
    """The offset of the next record, at or after an offset; None if there is none."""
    magic, head_bytes = _MAGIC[compression], _HEAD_BYTES[compression]
    while True:
        file.seek(offset)
        window = file.read(_WINDOW)
        at = window.find(magic)
        while at >= 0:
            if at > len(window) - head_bytes and len(window) == _WINDOW:
                break
            if _begins_record(window[at : at + head_bytes], compression):
                return offset + at
            at = window.find(magic, at + 1)
        if len(window) < _WINDOW:
            return None
        offset += at if at > 0 else _WINDOW - len(magic)


@dataclass(frozen=True, slots=True)
class Member:
    """A gzip member or zstd frame: bytes of its record head, bytes of its content, and where it ends (None: broken)."""

    head_bytes: int
    bytes: int
    end: int | None


def read_member(file: BinaryIO, offset: int, compression: Compression) -> Member:
    """Reads the whole member or frame that begins here.

    Raises:
        OSError: the disk fails.
    """
    file.seek(offset)
    return _read_gzip_member(file) if compression == "gzip" else _read_zstd_frame(file, offset)


def behind_empty_members(file: BinaryIO, offset: int) -> int:
    """The offset of the first non-empty gzip member at or after an offset; that offset if no member is there."""
    while True:
        file.seek(offset)
        inflater, size = zlib.decompressobj(31), 0
        try:
            while not inflater.eof and not size and (piece := file.read(_EMPTY_BYTES)):
                size = len(inflater.decompress(piece, 1))
        except zlib.error:
            return offset
        if size or not inflater.eof:
            return offset
        offset = file.tell() - len(inflater.unused_data)


def _read_gzip_member(file: BinaryIO) -> Member:
    inflater, head, size = zlib.decompressobj(31), b"", 0
    while piece := file.read(1 << 10):
        try:
            while piece and not inflater.eof:
                out = inflater.decompress(piece, _WINDOW)
                head, size, piece = head or out, size + len(out), inflater.unconsumed_tail
        except zlib.error:
            break
        if inflater.eof:
            return Member(_end_of_head(head), size, file.tell() - len(inflater.unused_data))
    return Member(_end_of_head(head), size, None)


def _read_zstd_frame(file: BinaryIO, offset: int) -> Member:
    end = next((end for end, is_last in _zstd_blocks(file, offset) if is_last), None)
    file.seek(offset)
    reader, head, size = ZstdReader(file if end is None else cast(BinaryIO, _Part(file, end))), b"", 0
    try:
        while (out := reader.read(1 << 12)) and (end is not None or reader.frame_start_position() == offset):
            head, size = head or out, size + len(out)
    except OSError as error:
        check_disk(error)
        end = None
    return Member(_end_of_head(head), size, end)


def _zstd_blocks(file: BinaryIO, offset: int) -> Iterator[tuple[int, bool]]:
    """The end of each block of the zstd frame that begins here, and whether it is the last (RFC 8878, section 3.1.1).

    The end of the last block includes the checksum of the frame.

    There is no last one where the file breaks off, or what is there is no block.
    """
    file.seek(offset)
    head = file.read(5)
    if len(head) < 5:
        return
    is_single, has_checksum = head[4] >> 5 & 1, head[4] >> 2 & 1
    at = offset + 5 + (1 - is_single) + (0, 1, 2, 4)[head[4] & 3] + (is_single, 2, 4, 8)[head[4] >> 6]
    size = file.seek(0, io.SEEK_END)
    while True:
        file.seek(at)
        header = int.from_bytes(file.read(3), "little")
        is_last, kind, block_bytes = header & 1, header >> 1 & 3, header >> 3
        at += 3 + (1 if kind == 1 else block_bytes) + 4 * is_last * has_checksum
        if at > size or kind == 3 or block_bytes > _ZSTD_BLOCK_BYTES:
            return
        yield at, bool(is_last)
        if is_last:
            return


class _Part(io.RawIOBase):
    """A file that ends at a given position of another one."""

    def __init__(self, file: BinaryIO, end: int):
        self._file, self._end = file, end

    def read(self, size: int = -1, /) -> bytes:
        """Reads at most this many bytes."""
        left = max(0, self._end - self._file.tell())
        return self._file.read(left if size < 0 else min(size, left))

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Goes to a position in the file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """The position in the file."""
        return self._file.tell()


def end_of_bare(file: BinaryIO, offset: int, block_bytes: int) -> int:
    """The end of the uncompressed record that begins here; the offset itself if its head has no end."""
    file.seek(offset)
    head_end = _HEAD_END.search(file.read(_WINDOW))
    if head_end is None:
        return offset
    end = file.seek(offset + head_end.end() + block_bytes)
    return end + PAST_THE_END * (file.read(PAST_THE_END) == b"\r\n\r\n")


def _end_of_head(head: bytes) -> int:
    """The length of a record's head; the length of the data if the head does not end in it."""
    end = _HEAD_END.search(head)
    return end.end() if end else len(head)
