"""Members of a compressed archive: gzip members and zstd frames, one after the other."""

import io
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, Literal, cast

from fastwarc.stream_io import GzipReader, ZstdReader

Compression = Literal["gzip", "zstd", ""]

_MAGIC: Mapping[Compression, bytes] = {"gzip": b"\x1f\x8b\x08", "zstd": b"\x28\xb5\x2f\xfd", "": b"WARC/"}
_ZSTD_DICTIONARY = b"\x5d\x2a\x4d\x18"  # the archive begins with a dictionary that every frame needs
_START = re.compile(rb"WARC/\d+\.\d+[ \t]*\r?\n[A-Za-z][A-Za-z0-9-]*[ \t]*:")
_START_BYTES = 64  # enough of a record to tell that it is one
_ZSTD_BLOCK_BYTES = (1 << 17) + 32  # at most, and a reader returns nothing of a block before it has read it all
_PIECE_BYTES, _WINDOW = 1 << 14, 1 << 20
_EMPTY_BYTES = 64  # more than a gzip member of nothing has


def check_disk(error: OSError) -> None:
    """Raises an error of the disk, which has an errno; errors in the bytes have none."""
    if error.errno is not None:
        raise error


def begins_record(content: bytes) -> bool:
    """Whether content begins with the first two lines of a record, or is cut in them."""
    return _START.match(content) is not None or (content.startswith(b"WARC/") and len(content) < _START_BYTES)


def has_dictionary(file: BinaryIO) -> bool:
    """Whether an archive begins with a dictionary, without which no frame of it can be read."""
    file.seek(0)
    return file.read(4) == _ZSTD_DICTIONARY


def compression_at(file: BinaryIO, offset: int) -> Compression:
    """The compression of what begins here."""
    file.seek(offset)
    magic = file.read(4)
    if magic.startswith(_MAGIC["gzip"]):
        return "gzip"
    return "zstd" if magic == _MAGIC["zstd"] else ""


def first_start(file: BinaryIO) -> tuple[int | None, Compression]:
    """The offset of the first record (None if there is none), and how records are compressed."""
    if has_dictionary(file):
        return 0, "zstd"
    likely = compression_at(file, 0)
    candidates: Iterable[Compression] = [likely] if likely else _MAGIC
    for compression in candidates:
        start = next_start(file, 0, compression)
        if start is not None:
            return start, compression
    return None, ""


def next_start(file: BinaryIO, offset: int, compression: Compression) -> int | None:
    """The offset of the next record, at or after an offset; None if there is none."""
    magic, head_bytes = _MAGIC[compression], _ZSTD_BLOCK_BYTES if compression == "zstd" else 512
    size = 1 << 12  # small: the next of a million damaged members is near
    while True:
        file.seek(offset)
        window = file.read(size)
        is_last = len(window) < size
        at = window.find(magic)
        while at >= 0 and (is_last or at <= size - head_bytes):
            if begins_record(_content_of(window[at : at + head_bytes], compression)):
                return offset + at
            at = window.find(magic, at + 1)
        if is_last:
            return None
        offset += at if at >= 0 else size - len(magic) + 1
        size = min(2 * size, _WINDOW)


def _content_of(head: bytes, compression: Compression) -> bytes:
    """The first bytes of the content of a member; empty if it does not begin as it should."""
    try:
        match compression:
            case "gzip":
                return zlib.decompressobj(31).decompress(head, _START_BYTES)
            case "zstd":
                block = next(_zstd_blocks(io.BytesIO(head), 0), None)
                return ZstdReader(io.BytesIO(head[: block[0]] if block else head)).read(_START_BYTES)
            case "":
                return head[:_START_BYTES]
    except (zlib.error, OSError):
        return b""


def stream(file: BinaryIO, compression: Compression) -> GzipReader | ZstdReader:
    """The content of a compressed file from its position on."""
    return GzipReader(file) if compression == "gzip" else ZstdReader(file)


def is_start(file: BinaryIO, offset: int, compression: Compression) -> bool:
    """Whether a member begins here that begins a record."""
    return begins_record(_content_of(_head_at(file, offset, compression), compression))


def is_compressed_twice(file: BinaryIO, offset: int, compression: Compression) -> bool:
    """Whether a member begins here that contains another member."""
    content = _content_of(_head_at(file, offset, compression), compression)
    return content.startswith((_MAGIC["gzip"], _MAGIC["zstd"]))


def _head_at(file: BinaryIO, offset: int, compression: Compression) -> bytes:
    """As much of a member as shows how its content begins: of a zstd frame, its first block."""
    block = next(_zstd_blocks(file, offset), None) if compression == "zstd" else None
    file.seek(offset)
    return file.read(block[0] - offset if block else 512)


def is_more(file: BinaryIO, offset: int) -> bool:
    """Whether something but zeros and white space lies at an offset."""
    file.seek(offset)
    return bool(file.read(1 << 10).strip(b"\0\r\n\t "))


def end_of_member(file: BinaryIO, offset: int, compression: Compression) -> int | None:
    """Reads the member that begins here: its end, None where it is damaged or cut.

    Raises:
        OSError: the disk fails.
    """
    if compression == "zstd":
        end = next((end for end, is_last in _zstd_blocks(file, offset) if is_last), None)
        file.seek(offset)
        reader = ZstdReader(cast(BinaryIO, _Part(file, end or offset)))
        try:
            while reader.read(_PIECE_BYTES):
                pass
        except OSError as error:
            check_disk(error)
            return None
        return end
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


def _zstd_blocks(file: BinaryIO, offset: int) -> Iterator[tuple[int, bool]]:
    """The end of each block of the zstd frame that begins here, and whether it is the last (RFC 8878, section 3.1.1).

    The end of the last block includes the checksum of the frame. There is no last one where the file breaks off, or
    what is there is no block.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(offset)
    head = file.read(5)
    if len(head) < 5 or head[:4] != _MAGIC["zstd"]:
        return
    is_single, has_checksum = head[4] >> 5 & 1, head[4] >> 2 & 1
    at = offset + 5 + (1 - is_single) + (0, 1, 2, 4)[head[4] & 3] + (is_single, 2, 4, 8)[head[4] >> 6]
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
