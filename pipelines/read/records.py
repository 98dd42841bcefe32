"""Records of a web archive one after the other, whatever is broken between them.

An archive is a chain of records, each a gzip member or zstd frame of its own, or not compressed at all. Such a record can be
read again at its offset. In an archive compressed as a whole only its first record can: of the others the payload has to be kept.
After a broken record the search for the next goes on behind it.
"""

import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Literal

from fastwarc.stream_io import GzipReader, ZstdReader
from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from altalign import storage
from pipelines.read.found import readable, unreadable

Compression = Literal["gzip", "zstd", ""]

_MAGIC: Mapping[Compression, bytes] = {"gzip": b"\x1f\x8b\x08", "zstd": b"\x28\xb5\x2f\xfd", "": b"WARC/"}
_ZSTD_DICTIONARY = b"\x5d\x2a\x4d\x18"  # the archive begins with a dictionary that every frame needs
_START = re.compile(rb"WARC/\d+\.\d+[ \t]*\r?\n[A-Za-z][A-Za-z0-9-]*[ \t]*:")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_START_BYTES = 64  # enough of a record to tell that it is one
_WINDOW = 1 << 20
_PAST_THE_END = 4  # \r\n\r\n behind a record


@dataclass(frozen=True, slots=True)
class Record:
    """A record of an archive."""

    offset: int  # bytes from the start of the file; in a file compressed as a whole, about, of what is decompressed
    can_be_read_again: bool  # whether `first_record` finds it at its offset
    kind: WarcRecordType
    url: str  # as given; "" where there is none
    http: "Http | None"  # of a response
    payload: bytes  # as much of it as was asked for
    block_bytes: int  # Content-Length: of the payload and the HTTP head


@dataclass(frozen=True, slots=True)
class Http:
    """The head of an HTTP response."""

    status: int | None
    content_type: str  # lower case, without parameters
    charset: str | None
    transfer_encoding: str
    content_encoding: str


@dataclass(frozen=True, slots=True)
class BrokenRecord:
    """Where a record begins that cannot be read, and why."""

    offset: int
    error: str


Keep = Callable[[WarcRecordType, Http | None, bool], int]  # bytes of a payload to keep, by kind, head, and whether it can be read again


def records(path: str, keep: Keep) -> Iterator[Record | BrokenRecord]:
    """Every record of an archive in order, each after all of it was read.

    Raises:
        UnreadableError: no record is in the file, or the disk fails.
    """
    with readable(path, "WARC"), storage.open_read(path) as file, storage.open_read(path) as again:
        size = again.seek(0, io.SEEK_END)
        if not size:
            return
        start, compression = _first_start(again)
        if start is None:
            unreadable(path, "no WARC record in it")
        if start > 0:
            yield BrokenRecord(0, "no WARC record")
        stretch = _Stretch(file, again, compression, keep)
        while start is not None and start < size:
            yield from stretch.records(start)
            start = stretch.goes_on_at


def first_record(file: BinaryIO, offset: int, payload_bytes: int) -> Record | None:
    """The record that begins at an offset with so many bytes of its payload; None where there is none, or a broken one.

    Raises:
        OSError: the disk fails.
    """
    file.seek(offset)
    magic = file.read(4)
    file.seek(offset)
    stream = GzipReader(file) if magic.startswith(_MAGIC["gzip"]) else ZstdReader(file) if magic == _MAGIC["zstd"] else file
    try:
        for record in ArchiveIterator(stream, parse_http=False):
            return _taken(record, offset, lambda *_: payload_bytes, can_be_read_again=True)
    except OSError as error:
        _check_disk(error)
        return None
    return None


def _check_disk(error: OSError) -> None:
    """Raise what the disk says, which has a number; what a reader finds wrong with the bytes has none."""
    if error.errno is not None:
        raise error


class _Stretch:
    """Records from one offset up to the end, or to the first broken one; after that `goes_on_at` says where to go on.

    A record is given only once the next was met, for that is when a broken end or checksum of its member shows.
    """

    def __init__(self, file: BinaryIO, again: BinaryIO, compression: Compression, keep: Keep):
        self._file, self._again, self._keep = file, again, keep
        self._compression: Compression = compression
        self._has_dictionary = _has_dictionary(again)
        self._start_is_counted = False  # a broken record at the start was given before
        self.goes_on_at: int | None = None

    def records(self, start: int) -> Iterator[Record | BrokenRecord]:
        """The records, and at the end what is broken."""
        self._start, self._frame, self.goes_on_at = start, -1, None
        self._file.seek(start)
        self._stream = _stream(self._file, self._compression)
        self._waiting: Record | None = None
        archive = iter(ArchiveIterator(self._stream or self._file, parse_http=False))
        while True:
            try:
                record = next(archive, None)
            except OSError as error:
                _check_disk(error)
                yield from self._at_broken_start(str(error))
                return
            if self._waiting is not None:
                yield self._waiting
            if record is None:
                yield from self._cut_in_its_head()
                return
            self._start_is_counted, self._waiting = False, None
            offset, can_be_read_again = self._place(record)
            try:
                self._waiting = _taken(record, offset, self._keep, can_be_read_again=can_be_read_again)
            except OSError as error:
                _check_disk(error)
                yield BrokenRecord(offset, str(error))
                self._search(behind=offset if can_be_read_again else self._frame)
                return
            if can_be_read_again and self._is_in_the_next_member():
                yield BrokenRecord(offset, "Content-Length goes beyond the end of its compressed member")
                self.goes_on_at = self._frame_now()
                return

    def _cut_in_its_head(self) -> Iterator[BrokenRecord]:
        """A last record of which so little is there that the reader takes the archive for ended before it."""
        last = self._waiting
        if last is None:
            end = self._start
        elif not last.can_be_read_again:
            return
        elif self._stream is None:
            self._again.seek(last.offset)
            has_head = _HEAD_END.search(self._again.read(_WINDOW)) is not None
            end = last.offset + _head_bytes(self._again, last.offset) + last.block_bytes + _PAST_THE_END if has_head else last.offset
        else:
            end = _read_member(self._again, last.offset, self._compression).end
        if end is None or self._start_is_counted:
            return
        self._again.seek(end)
        if self._again.read(1 << 10).strip(b"\0\r\n\t "):
            yield BrokenRecord(end, "the file breaks off in the head of a record")

    def _place(self, record: WarcRecord) -> tuple[int, bool]:
        """Offset of a record whose head was just read, and whether it can be read there."""
        if self._stream is None:
            return record.stream_pos, True
        frame = self._frame_now()
        is_first, self._frame = frame != self._frame, frame
        if is_first and not self._has_dictionary and _is_start(self._again, frame, self._compression):
            return frame, True
        return self._stream.tell(), False

    def _frame_now(self) -> int:
        return (self._stream.frame_start_position() or 0) if self._stream else 0

    def _is_in_the_next_member(self) -> bool:
        """Whether reading a record went on into a member that is the start of another."""
        frame = self._frame_now()
        return self._stream is not None and frame != self._frame and _is_start(self._again, frame, self._compression)

    def _at_broken_start(self, error: str) -> Iterator[Record | BrokenRecord]:
        """What is behind the record that waits is no record; or the end of its own member is broken, and so is it."""
        last = self._waiting
        if last is None:
            if not self._start_is_counted:
                yield BrokenRecord(self._start, error)
            self._start_is_counted = False
            self._search(behind=self._start)
        elif self._stream is None:
            yield last
            self.goes_on_at = last.offset + _head_bytes(self._again, last.offset) + last.block_bytes + _PAST_THE_END
        elif not last.can_be_read_again:
            yield last
            yield BrokenRecord(self._stream.tell(), error)
            self._search(behind=self._frame)
        else:
            yield from self._at_broken_member(last, self._stream.tell(), error)

    def _at_broken_member(self, last: Record, offset: int, error: str) -> Iterator[Record | BrokenRecord]:
        member = _read_member(self._again, last.offset, self._compression)
        own_bytes = member.head_bytes + last.block_bytes + _PAST_THE_END
        if member.end is None and member.bytes <= own_bytes and self._compression == "gzip":
            yield BrokenRecord(last.offset, error)
            self._search(behind=last.offset)
            return
        yield last
        if member.end is None or member.bytes > own_bytes:
            yield BrokenRecord(offset, error)
        self.goes_on_at = member.end
        if member.end is None:
            self._start_is_counted = True
            self._search(behind=last.offset)

    def _search(self, *, behind: int) -> None:
        self.goes_on_at = _next_start(self._again, max(behind, self._start) + 1, self._compression)


def _taken(record: WarcRecord, offset: int, keep: Keep, *, can_be_read_again: bool) -> Record:
    """A record, all of it read.

    Raises:
        OSError: it is cut, or its member or HTTP head broken.
    """
    block_bytes = record.content_length  # of the payload alone once the HTTP head is read
    http = _http(record) if record.record_type == WarcRecordType.response else None
    payload_bytes = record.content_length
    payload = _read(record, min(keep(record.record_type, http, can_be_read_again), payload_bytes))
    read = len(payload) + record.consume()
    if read != payload_bytes:
        raise OSError(f"the record breaks off {payload_bytes - read} bytes before its end")
    url = (record.headers.get("WARC-Target-URI") or "").strip().removeprefix("<").removesuffix(">")
    return Record(offset, can_be_read_again, record.record_type, url, http, payload, block_bytes)


def _read(record: WarcRecord, payload_bytes: int) -> bytes:
    parts = []
    while payload_bytes and (part := record.reader.read(payload_bytes)):
        parts.append(part)
        payload_bytes -= len(part)
    return b"".join(parts)


def _http(record: WarcRecord) -> Http | None:
    record.parse_http(quirks_mode=True)
    if not record.is_http or record.http_headers is None:
        return None
    head = record.http_headers
    content_type = (record.http_content_type or "").strip().lower()
    return Http(head.status_code, content_type, record.http_charset, head.get("Transfer-Encoding") or "", head.get("Content-Encoding") or "")


def _first_start(file: BinaryIO) -> tuple[int | None, Compression]:
    """Where the first record begins (None: there is none), and how records are compressed."""
    file.seek(0)
    magic = file.read(4)
    likely: list[Compression] = [compression for compression, of in _MAGIC.items() if magic.startswith(of[:4])]
    if _has_dictionary(file):
        return 0, "zstd"
    for compression in likely or _MAGIC:
        start = _next_start(file, 0, compression)
        if start is not None:
            return start, compression
    return None, ""


def _has_dictionary(file: BinaryIO) -> bool:
    file.seek(0)
    return file.read(4) == _ZSTD_DICTIONARY


def _stream(file: BinaryIO, compression: Compression) -> GzipReader | ZstdReader | None:
    match compression:
        case "gzip":
            return GzipReader(file)
        case "zstd":
            return ZstdReader(file)
        case "":
            return None


def _is_start(file: BinaryIO, offset: int, compression: Compression) -> bool:
    """Whether a record begins here, in a member of its own where there is compression."""
    file.seek(offset)
    head = file.read(512)
    return _begins_record(head, compression)


def _begins_record(head: bytes, compression: Compression) -> bool:
    if not head.startswith(_MAGIC[compression]):
        return False
    match compression:
        case "gzip":
            try:
                head = zlib.decompressobj(31).decompress(head, _START_BYTES)
            except zlib.error:
                return False
        case "zstd":
            try:
                head = ZstdReader(io.BytesIO(head)).read(_START_BYTES)
            except OSError:
                return False
    return _START.match(head) is not None or (head.startswith(b"WARC/") and len(head) < _START_BYTES)


def _next_start(file: BinaryIO, offset: int, compression: Compression) -> int | None:
    """Where the next record begins, at or behind an offset; None where there is no more."""
    magic = _MAGIC[compression]
    while True:
        file.seek(offset)
        window = file.read(_WINDOW)
        at = window.find(magic)
        while at >= 0:
            if at > len(window) - 512 and len(window) == _WINDOW:
                break
            if _begins_record(window[at : at + 512], compression):
                return offset + at
            at = window.find(magic, at + 1)
        if len(window) < _WINDOW:
            return None
        offset += at if at > 0 else _WINDOW - len(magic)


@dataclass(frozen=True, slots=True)
class _Member:
    """A gzip member or zstd frame: bytes of the record head it begins with, bytes of all that can be read, where it ends (None: broken)."""

    head_bytes: int
    bytes: int
    end: int | None


def _read_member(file: BinaryIO, offset: int, compression: Compression) -> _Member:
    file.seek(offset)
    return _read_gzip_member(file) if compression == "gzip" else _read_zstd_frame(file, offset)


def _read_gzip_member(file: BinaryIO) -> _Member:
    inflater, head, size = zlib.decompressobj(31), b"", 0
    while piece := file.read(1 << 10):
        try:
            while piece and not inflater.eof:
                out = inflater.decompress(piece, _WINDOW)
                head, size, piece = head or out, size + len(out), inflater.unconsumed_tail
        except zlib.error:
            break
        if inflater.eof:
            return _Member(_end_of_head(head), size, file.tell() - len(inflater.unused_data))
    return _Member(_end_of_head(head), size, None)


def _read_zstd_frame(file: BinaryIO, offset: int) -> _Member:
    reader, head, size = ZstdReader(file), b"", 0
    try:
        while (out := reader.read(1 << 12)) and reader.frame_start_position() == offset:
            head, size = head or out, size + len(out)
    except OSError as error:
        _check_disk(error)
        return _Member(_end_of_head(head), size, None)
    return _Member(_end_of_head(head), size, reader.frame_start_position() if out else file.seek(0, io.SEEK_END))


def _head_bytes(file: BinaryIO, offset: int) -> int:
    file.seek(offset)
    return _end_of_head(file.read(_WINDOW))


def _end_of_head(head: bytes) -> int:
    """Length of a record's head; of all that is given where it does not end in it."""
    end = _HEAD_END.search(head)
    return end.end() if end else len(head)
