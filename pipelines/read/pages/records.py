"""Records of a web archive one after the other, whatever is broken between them.

An archive is a chain of records, each a gzip member or zstd frame of its own, or not compressed at all. Such a record
can be read again at its offset. In an archive compressed as a whole only its first record can: of the others the
payload has to be kept. After a broken record the search for the next goes on behind it.
"""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO, NamedTuple

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from altalign import storage
from altalign.pipelines.read.pages import gzip_members
from altalign.pipelines.read.pages.gzip_members import Compression
from altalign.pipelines.read.stretches import readable, unreadable

_PIECE_BYTES = 1 << 17
_FIRST_PIECE_BYTES = 1 << 12  # few: each of a million members of 200 bytes may claim gigabytes, and reads a piece more
XHTML = "application/xhtml+xml"
PAGE_TYPES = ("text/html", XHTML)
_VALUES = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*(?:"|\Z))+')  # between the commas of a header
_MEDIA_TYPE = re.compile(r"[ \t]*([\w!#$%&'*+.^`|~-]+/[\w!#$%&'*+.^`|~-]+)[ \t]*(?=;|\Z)", re.ASCII)
_CHARSET = re.compile(r';[ \t]*charset=(?:"([^"]*)|([^;"][^;]*))', re.IGNORECASE)
_URL = b"warc-target-uri"
_WITH_HTTP = WarcRecordType.response, WarcRecordType.revisit
_LENGTH = re.compile(rb"[ \t]*\d{1,18}[ \t]*")


class Record(NamedTuple):
    """A record of an archive."""

    offset: int  # bytes from the start of the file; in a file compressed as a whole, about, of what is decompressed
    can_be_read_again: bool  # whether `first_record` finds it at its offset
    kind: WarcRecordType
    url: str  # as given; "" where there is none
    http: "Http | None"  # of a response
    payload: bytes  # as much of it as was asked for
    block_bytes: int  # Content-Length: of the payload and the HTTP head
    head: "Fields"  # its own, not that of HTTP


class Fields(NamedTuple):
    """The headers of a record, and where the first of each name is (lower case)."""

    places: Mapping[bytes, int]
    values: Sequence[bytes]

    def get(self, name: bytes) -> str:
        """The first of a name, without the brackets that addresses may stand in; "" where there is none."""
        at = self.places.get(name)
        if at is None:
            return ""
        return self.values[at].decode("utf-8", "replace").strip().removeprefix("<").removesuffix(">")


class Http(NamedTuple):
    """The head of an HTTP response."""

    status: int | None
    content_type: str  # lower case, without parameters; a page's where the crawler has found the payload to be one
    charset: str | None
    transfer_encoding: str
    content_encoding: str


@dataclass(frozen=True, slots=True)
class BrokenRecord:
    """The offset of a record that cannot be read, and the reason."""

    offset: int
    error: str


# bytes of a payload to keep, by kind, head, and whether it can be read again
Keep = Callable[[WarcRecordType, Http | None, bool], int]


def records(path: str, keep: Keep, *, behind: float = 0.0) -> Iterator[Record | BrokenRecord]:
    """All records of an archive in order, each after it was read completely; those `behind` this share of its bytes.

    Raises:
        UnreadableError: no record is in the file, or the disk fails.
    """
    with readable(path, "WARC"), storage.open_read(path) as file, storage.open_again(path, file) as again:
        size = again.seek(0, io.SEEK_END)
        if not size:
            return
        start, compression = gzip_members.first_start(again)
        if start is None:
            unreadable(path, "no WARC record in it")
        if behind:
            start = gzip_members.next_start(again, max(start, int(behind * size)), compression)
        elif start > 0:
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
    stream = gzip_members.stream(file, gzip_members.compression_at(file, offset)) or file
    try:
        for record in ArchiveIterator(stream, parse_http=False):
            return _taken(
                record, _head(record)[1], offset, lambda *_: payload_bytes, lambda: False, can_be_read_again=True
            )
    except OSError as error:
        gzip_members.check_disk(error)
        return None
    return None


class _Stretch:
    """Records from one offset up to the end, or to the first broken one; after that `goes_on_at` says where to go on.

    A record is given only once the next was met, for that is when a broken end or checksum of its member shows.
    """

    def __init__(self, file: BinaryIO, again: BinaryIO, compression: Compression, keep: Keep):
        self._file, self._again, self._keep = file, again, keep
        self._compression: Compression = compression
        self._size = again.seek(0, io.SEEK_END)
        self._has_dictionary = gzip_members.has_dictionary(again)
        self._start_is_counted = False  # a broken record at the start was given before
        self.goes_on_at: int | None = None

    def records(self, start: int) -> Iterator[Record | BrokenRecord]:
        """The records, and at the end what is broken."""
        self._start, self._frame, self.goes_on_at = start, -1, None
        self._file.seek(start)
        self._stream = gzip_members.stream(self._file, self._compression)
        self._waiting: Record | None = None
        # the reader would unwrap it, and the search find it once more
        if gzip_members.is_compressed_twice(self._again, start, self._compression):
            yield from self._at_compressed_twice()
            return
        archive = iter(ArchiveIterator(self._stream or self._file, parse_http=False))
        while True:
            try:
                record = next(archive, None)
            except OSError as error:
                gzip_members.check_disk(error)
                yield from self._at_broken_start(str(error))
                return
            if self._waiting is not None:
                yield self._waiting
            if record is None:
                yield from self._at_the_end()
                return
            is_first, before = self._waiting is None, self._frame
            self._waiting = None
            offset, can_be_read_again = self._place(record)
            if can_be_read_again and self._has_begun_before(
                offset, begun_at := start if is_first else record.stream_pos, before
            ):
                if not (is_first and self._start_is_counted):
                    yield BrokenRecord(begun_at, "the record breaks off in its head")
                self._start_is_counted, self.goes_on_at = False, offset
                return
            error, fields = _head(record)
            if error and can_be_read_again:
                yield from self._at_wrong_head(offset, error, before, is_first=is_first)
                return
            self._start_is_counted = False
            try:
                if error:
                    raise OSError(error)
                is_beyond = self._is_in_the_next_member if can_be_read_again and self._stream else lambda: False
                if self._stream is None and offset + record.content_length > self._size:
                    raise OSError("Content-Length goes beyond the end of the file")
                self._waiting = _taken(
                    record, fields, offset, self._keep, is_beyond, can_be_read_again=can_be_read_again
                )
            except OSError as error:
                gzip_members.check_disk(error)
                yield from self._at_broken_record(offset, error, can_be_read_again=can_be_read_again)
                return

    def _at_broken_record(self, offset: int, error: OSError, *, can_be_read_again: bool) -> Iterator[BrokenRecord]:
        is_beyond = can_be_read_again and self._is_in_the_next_member()
        yield BrokenRecord(
            offset, "Content-Length goes beyond the end of its compressed member" if is_beyond else str(error)
        )
        self._search(behind=offset if can_be_read_again else self._frame)

    def _at_compressed_twice(self) -> Iterator[BrokenRecord]:
        if not self._start_is_counted:
            yield BrokenRecord(self._start, "compressed twice")
        self._start_is_counted = False
        self._search(
            behind=(gzip_members.read_member(self._again, self._start, self._compression).end or self._start + 1) - 1
        )

    def _at_wrong_head(self, offset: int, error: str, before: int, *, is_first: bool) -> Iterator[BrokenRecord]:
        """Handles a wrong head. A cut one continues in the next member, so we search after the record before it."""
        if not (is_first and self._start_is_counted):
            yield BrokenRecord(offset, error)
        self._start_is_counted = not is_first and self._stream is not None  # for that is what the search finds
        self._search(behind=offset if self._stream is None else before)

    def _at_the_end(self) -> Iterator[BrokenRecord]:
        """Handles what the reader takes for the end: the real end, a cut last record, or an empty gzip member."""
        last, end = self._waiting, self._end_of_last()
        if end is None:
            return
        self._again.seek(end)
        if not self._again.read(1 << 10).strip(b"\0\r\n\t "):
            return
        if not self._start_is_counted and (
            end == self._start or not gzip_members.is_start(self._again, end, self._compression)
        ):
            yield BrokenRecord(end, "the file breaks off in the head of a record")
        self._start_is_counted = False
        self._search(behind=end if last is None else end - 1)

    def _end_of_last(self) -> int | None:
        """The end of the last record; None if it is unknown."""
        last, stopped_at = self._waiting, self._start
        if self._compression == "gzip":
            stopped_at = max(self._start, self._frame_now())
            behind = gzip_members.behind_empty_members(self._again, stopped_at)
            if behind > stopped_at:
                return behind
        if last is None:
            return stopped_at
        if not last.can_be_read_again:
            return None
        if self._stream is not None:
            return gzip_members.read_member(self._again, last.offset, self._compression).end
        return gzip_members.end_of_bare(self._again, last.offset, last.block_bytes)

    def _place(self, record: WarcRecord) -> tuple[int, bool]:
        """The offset of the record whose head was just read, and whether it can be read again there."""
        if self._stream is None:
            return record.stream_pos, True
        frame = self._frame_now()
        is_first, self._frame = frame != self._frame, frame
        if is_first and not self._has_dictionary and gzip_members.is_start(self._again, frame, self._compression):
            return frame, True
        return self._stream.tell(), False

    def _has_begun_before(self, offset: int, begun_at: int, before: int) -> bool:
        """Whether the reader took cut heads of other members for the first lines of a record's head."""
        return (
            self._stream is not None
            and before < begun_at < offset
            and gzip_members.read_member(self._again, begun_at, self._compression).bytes > 0
        )

    def _frame_now(self) -> int:
        return (self._stream.frame_start_position() or 0) if self._stream else 0

    def _is_in_the_next_member(self) -> bool:
        """Whether reading a record continued into a member that begins another record."""
        frame = self._frame_now()
        return (
            self._stream is not None
            and frame != self._frame
            and gzip_members.is_start(self._again, frame, self._compression)
        )

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
            self.goes_on_at = max(gzip_members.end_of_bare(self._again, last.offset, last.block_bytes), last.offset + 1)
        elif not last.can_be_read_again:
            yield last
            yield BrokenRecord(self._stream.tell(), error)
            self._search(behind=self._frame)
        else:
            yield from self._at_broken_member(last, self._stream.tell(), error)

    def _at_broken_member(self, last: Record, offset: int, error: str) -> Iterator[Record | BrokenRecord]:
        member = gzip_members.read_member(self._again, last.offset, self._compression)
        own_bytes = member.head_bytes + last.block_bytes + gzip_members.PAST_THE_END
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
        self.goes_on_at = gzip_members.next_start(self._again, max(behind, self._start) + 1, self._compression)


def _taken(
    record: WarcRecord,
    head: Fields,
    offset: int,
    keep: Keep,
    is_beyond: Callable[[], bool],
    *,
    can_be_read_again: bool,
) -> Record:
    """Reads a whole record, in pieces that stay inside it: otherwise a wrong length would cost all records after it.

    Raises:
        OSError: it is cut, goes on in what is none of its own, or its member or HTTP head is broken.
    """
    block_bytes = record.content_length  # of the payload alone once the HTTP head is read
    http = _http(record, head) if record.record_type in _WITH_HTTP else None
    parts, left = [], record.content_length
    kept = min(keep(record.record_type, http, can_be_read_again), left)
    piece = _FIRST_PIECE_BYTES
    while kept and (part := record.reader.read(min(kept, piece))):
        parts.append(part)
        kept, left = kept - len(part), left - len(part)
        if left and is_beyond():
            break
        piece = min(2 * piece, _PIECE_BYTES)
    else:
        while left and (read := record.reader.consume(min(left, piece))):
            left -= read
            if left and is_beyond():
                break
            piece = min(2 * piece, _PIECE_BYTES)
    if left or is_beyond():
        raise OSError(f"the record breaks off {left} bytes before its end")
    return Record(
        offset, can_be_read_again, record.record_type, head.get(_URL), http, b"".join(parts), block_bytes, head
    )


@lru_cache(maxsize=64)  # records of an archive have the same few
def _named(names: tuple[bytes, ...]) -> tuple[str | None, Mapping[bytes, int]]:
    """What is wrong with the names in a head, and the place of the first of each."""
    lower = [name.lower() for name in names]
    lengths, types = lower.count(b"content-length"), lower.count(b"warc-type")
    is_right = lengths == types == 1
    error = f"{lengths} headers Content-Length and {types} WARC-Type, where one of each is meant"
    return None if is_right else error, {name: lower.index(name) for name in lower}


def _head(record: WarcRecord) -> tuple[str | None, Fields]:
    """What is wrong with the headers that every record has once, and all headers.

    The reader takes a length that is missing, or not a number, for zero.
    """
    # all at once: the reader's own look at one name takes as long
    error, places = _named(record.headers.keys_bytes())
    fields = Fields(places, record.headers.values_bytes())
    if error is None and not _LENGTH.fullmatch(fields.values[places[b"content-length"]]):
        error = "Content-Length is no number of bytes"
    return error, fields


def _http(record: WarcRecord, fields: Fields) -> Http | None:
    record.parse_http(quirks_mode=True)
    if not record.is_http or record.http_headers is None:
        return None
    head = record.http_headers
    values = head.values_bytes()
    kind, transfer_encoding, content_encoding = [
        b", ".join([values[at] for at in places]).decode("latin-1") if places else ""
        for places in _of_body(head.keys_bytes())
    ]
    content_type, charset = media_type(kind)
    if content_type not in PAGE_TYPES and (identified := fields.get(b"warc-identified-payload-type")):
        found, _ = media_type(identified)
        content_type = found if found in PAGE_TYPES else content_type
    return Http(head.status_code, content_type, charset, transfer_encoding, content_encoding)


@lru_cache(maxsize=1024)  # servers of one kind send the same
def _of_body(names: tuple[bytes, ...]) -> list[list[int]]:
    """Where the headers are that tell how to read a body: of its type, its transfer and its content encoding."""
    lower = [name.lower() for name in names]
    return [
        [at for at, name in enumerate(lower) if name == of]
        for of in (b"content-type", b"transfer-encoding", b"content-encoding")
    ]


@lru_cache(maxsize=64)
def media_type(header: str) -> tuple[str, str | None]:
    """The type in a Content-Type without parameters, "" where it has none, and its charset.

    Of several the last that is valid counts, as the WHATWG Fetch standard extracts it.
    """
    kind, charset = "", None
    for value in _VALUES.findall(header):
        found = _MEDIA_TYPE.match(value)
        if found is None or found[1] == "*/*":
            continue
        label = _CHARSET.search(value, found.end())
        charset = (label[1] or label[2]) if label else charset if kind == found[1].lower() else None
        kind = found[1].lower()
    return kind, charset
