"""Records of a web archive one after the other.

An archive is a chain of records, each a gzip member or zstd frame of its own, or not compressed at all. Such a record
can be read again at its offset. In an archive compressed as a whole only its first record can: of the others the
payload has to be kept. A broken gzip member costs itself; what is broken in any other archive costs all behind it.
"""

import io
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO, NamedTuple

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from altalign import storage
from altalign.pipelines.read.pages import members
from altalign.pipelines.read.pages.members import Compression
from altalign.pipelines.read.stretches import readable, unreadable

_LOST = "; what is behind it is not read, for the archive has no gzip members"
_IN_HEAD = "the file breaks off in the head of a record"
_PIECE_BYTES = 1 << 17
_FIRST_PIECE_BYTES = 1 << 12  # few: each of a million members of 200 bytes may claim gigabytes, and reads a piece more
_HEAD_BYTES = 1 << 20
_HEAD_END, _BEHIND = re.compile(rb"\r?\n\r?\n"), b"\r\n\r\n"
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
        start, compression = members.first_start(again)
        if start is None:
            unreadable(path, "no WARC record in it")
        if behind:
            start = members.next_start(again, max(start, int(behind * size)), compression)
        elif start > 0:
            yield BrokenRecord(0, "no WARC record")
        if start is None:
            return
        if compression:
            yield from _of_members(file, again, start, compression, keep)
        else:
            yield from _bare(file, again, start, keep)


def first_record(file: BinaryIO, offset: int, payload_bytes: int) -> Record | None:
    """The record at an offset with so many bytes of its payload; None where there is none, or a broken one."""
    compression = members.compression_at(file, offset)
    file.seek(offset)
    stream = members.stream(file, compression) if compression else file
    try:
        for record in ArchiveIterator(stream, parse_http=False):
            return _taken(record, offset, True, lambda *_: payload_bytes, lambda: False)  # noqa: FBT003 - of `Record`
    except OSError as error:
        members.check_disk(error)
    return None


def _of_members(
    file: BinaryIO, again: BinaryIO, start: int | None, compression: Compression, keep: Keep
) -> Iterator[Record | BrokenRecord]:
    """Records of members. A gzip member that is damaged costs itself: `again` searches for the next."""
    while start is not None:
        start = yield from _until_broken(file, again, start, compression, keep)


def _until_broken(
    file: BinaryIO, again: BinaryIO, start: int, compression: Compression, keep: Keep
) -> Generator[Record | BrokenRecord, None, int | None]:
    """Records from a member on, up to what is broken, or the end; returns where to go on.

    A record is given only once the next was met, for that is when a broken end or checksum of its member shows.
    """
    file.seek(start)
    stream = members.stream(file, compression)
    archive = iter(ArchiveIterator(stream, parse_http=False))
    waiting: Record | None = None
    frame = -1

    def frame_now() -> int:
        return max(start, stream.frame_start_position() or 0)

    def is_beyond() -> bool:
        """Whether reading went on into a member that begins another record."""
        return frame_now() != frame and members.is_start(again, frame_now(), compression)

    while True:
        try:
            archived = next(archive, None)
        except OSError as error:
            members.check_disk(error)
            if waiting is None:
                return (yield from _broken(again, start, str(error), start + 1, compression))
            if compression == "zstd" or not waiting.can_be_read_again:
                yield waiting
                return (yield from _broken(again, stream.tell(), str(error), frame + 1, compression))
            end = members.end_of_member(again, waiting.offset)
            if end is None:
                return (yield from _broken(again, waiting.offset, str(error), waiting.offset + 1, compression))
            yield waiting
            is_inside = frame_now() == frame and str(error).startswith("Invalid WARC")
            # otherwise what is behind it says what it is when it is read
            return (yield from _broken(again, stream.tell(), str(error), end, compression)) if is_inside else end
        if archived is None:
            if waiting is not None:
                yield waiting
            return (yield from _at_the_end(again, frame_now(), waiting, start, compression))
        begun, before, frame = start if waiting is None else archived.stream_pos, frame, frame_now()
        can_be_read_again = frame != before and members.is_start(again, frame, compression)
        offset = frame if can_be_read_again else stream.tell()
        if waiting is not None:
            yield waiting
        if can_be_read_again and before < begun < frame and members.is_start(again, begun, compression):
            return (yield from _broken(again, begun, _IN_HEAD, begun + 1, compression))
        try:
            waiting = _taken(archived, offset, can_be_read_again, keep, is_beyond)
        except OSError as error:
            members.check_disk(error)
            behind = (offset if can_be_read_again else frame) + 1
            return (yield from _broken(again, offset, str(error), behind, compression))


def _at_the_end(
    again: BinaryIO, frame: int, last: Record | None, start: int, compression: Compression
) -> Generator[BrokenRecord, None, int | None]:
    """What is behind what the reader takes for the end: nothing, a cut record, or members behind an empty one."""
    end: int | None = frame if compression == "zstd" else members.behind_empty_members(again, frame)
    if end == frame and last is not None and not last.can_be_read_again:
        return None
    if compression == "zstd":
        is_over = members.ends_whole(again, frame)
    else:
        if end == frame:
            end = start if last is None else members.end_of_member(again, last.offset)
        is_over = end is None or not members.is_more(again, end)
    if is_over or end is None:
        return None
    if compression == "gzip" and end != start and members.is_start(again, end, compression):
        return end
    return (yield from _broken(again, end, _IN_HEAD, end + 1, compression))


def _broken(
    again: BinaryIO, at: int, error: str, search_from: int, compression: Compression
) -> Generator[BrokenRecord, None, int | None]:
    """What is broken here; returns where the next record begins."""
    yield BrokenRecord(at, error if compression == "gzip" else f"{error}{_LOST}")
    return members.next_start(again, search_from, compression) if compression == "gzip" else None


def _bare(file: BinaryIO, again: BinaryIO, start: int, keep: Keep) -> Iterator[Record | BrokenRecord]:
    """Records that are not compressed: what is broken costs all behind it."""
    file.seek(start)
    size = again.seek(0, io.SEEK_END)
    archive = iter(ArchiveIterator(file, parse_http=False))
    last: Record | None = None

    def end_of_last() -> int:
        if last is None:
            return start
        again.seek(last.offset)
        head_end = _HEAD_END.search(again.read(_HEAD_BYTES))
        end = again.seek(last.offset + (head_end.end() if head_end else 0) + last.block_bytes)
        return end + len(_BEHIND) * (again.read(len(_BEHIND)) == _BEHIND)

    while True:
        at: int | None = None
        try:
            archived = next(archive, None)
            if archived is None:
                break
            at = archived.stream_pos
            if at + archived.content_length > size:
                raise OSError("Content-Length goes beyond the end of the file")
            last = _taken(archived, at, True, keep, lambda: False)  # noqa: FBT003 - of `Record`
        except OSError as error:
            members.check_disk(error)
            yield BrokenRecord(end_of_last() if at is None else at, f"{error}{_LOST}")
            return
        yield last
    if members.is_more(again, end_of_last()):
        yield BrokenRecord(end_of_last(), _IN_HEAD)


def _taken(
    record: WarcRecord,
    offset: int,
    can_be_read_again: bool,  # noqa: FBT001 - of `Record`
    keep: Keep,
    is_beyond: Callable[[], bool],
) -> Record:
    """Reads a whole record, in pieces that stay inside it: otherwise a wrong length would cost all records after it."""
    error, head = _head(record)
    if error:
        raise OSError(error)
    block_bytes = record.content_length  # of the payload alone once the HTTP head is read
    http = _http(record, head) if record.record_type in _WITH_HTTP else None
    parts, left = [], record.content_length
    kept = min(keep(record.record_type, http, can_be_read_again), left)
    piece = _FIRST_PIECE_BYTES
    while left:
        if kept:
            part = record.reader.read(min(kept, piece))
            parts.append(part)
            kept, read = kept - len(part), len(part)
        else:
            read = record.reader.consume(min(left, piece))
        left, piece = left - read, min(2 * piece, _PIECE_BYTES)
        if not read or (left and is_beyond()):
            break
    if left or is_beyond():
        raise OSError("the record ends before its Content-Length does")
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
        by_crawler, _ = media_type(identified)
        content_type = by_crawler if by_crawler in PAGE_TYPES else content_type
    return Http(head.status_code, content_type, charset, transfer_encoding, content_encoding)


@lru_cache(maxsize=1024)  # servers of one kind send the same
def _of_body(names: tuple[bytes, ...]) -> list[list[int]]:
    """Where the headers are that tell how to read a body: of its type, its transfer and its content encoding."""
    lower = [name.lower() for name in names]
    needed = b"content-type", b"transfer-encoding", b"content-encoding"
    return [[at for at, name in enumerate(lower) if name == each] for each in needed]


@lru_cache(maxsize=64)
def media_type(header: str) -> tuple[str, str | None]:
    """The type in a Content-Type without parameters, "" where it has none, and its charset.

    Of several the last that is valid counts, as the WHATWG Fetch standard extracts it.
    """
    kind, charset = "", None
    for value in _VALUES.findall(header):
        match = _MEDIA_TYPE.match(value)
        if match is None or match[1] == "*/*":
            continue
        label = _CHARSET.search(value, match.end())
        charset = (label[1] or label[2]) if label else charset if kind == match[1].lower() else None
        kind = match[1].lower()
    return kind, charset
