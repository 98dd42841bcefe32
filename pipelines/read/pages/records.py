"""Records of a web archive one after the other.

An archive is a chain of records, each a gzip member or zstd frame of its own, or not compressed at all. Such a record
can be read again at its offset. In an archive compressed as a whole only its first record can: of the others the
payload has to be kept. A broken gzip member costs itself; what is broken in any other archive costs all behind it.
"""

import io
import re
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, Literal, NamedTuple, cast

import pyarrow as pa
from fastwarc.stream_io import GzipReader, ZstdReader
from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from altalign import storage
from altalign.data.preferences import STATEMENTS_AT_MOST
from altalign.filters.reservations import HEADERS
from altalign.pipelines.read.stretches import readable, unreadable

XHTML = "application/xhtml+xml"
PAGE_TYPES = ("text/html", XHTML)

Compression = Literal["gzip", "zstd", ""]

_MAGIC: dict[Compression, bytes] = {"gzip": b"\x1f\x8b\x08", "zstd": b"\x28\xb5\x2f\xfd", "": b"WARC/"}
_ZSTD_DICTIONARY = b"\x5d\x2a\x4d\x18"  # the archive begins with a dictionary that every frame needs
_FIRST_LINE = re.compile(rb"WARC/\d+\.\d+[ \t]*\r?\n")
_FIRST_LINE_BYTES = 16
_HEAD_BYTES = 1 << 16  # of a record
_MEMBER_HEAD_BYTES = 512  # of a gzip member, which hold the first line
_WINDOW = 1 << 20
_PIECE_BYTES = 1 << 17
_FIRST_PIECE_BYTES = 1 << 12  # few: each of a million members of 200 bytes may claim gigabytes, and reads a piece more
_CUT = "the file breaks off in a record"
_LOST = "; what is behind it is not read, for the archive has no gzip members"
_LENGTH = re.compile(rb"[ \t]*\d{1,18}[ \t]*")
_WITH_HTTP = WarcRecordType.response, WarcRecordType.revisit
_VALUES = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*(?:"|\Z))+')  # between the commas of a header
_MEDIA_TYPE = re.compile(r"[ \t]*([\w!#$%&'*+.^`|~-]+/[\w!#$%&'*+.^`|~-]+)[ \t]*(?=;|\Z)", re.ASCII)
_CHARSET = re.compile(r';[ \t]*charset=(?:"([^"]*)|([^;"][^;]*))', re.IGNORECASE)


class Record(NamedTuple):
    """A record of an archive."""

    offset: int  # bytes from the start of the file; in a file compressed as a whole, about, of what is decompressed
    can_be_read_again: bool  # whether `first_record` finds it at its offset
    kind: WarcRecordType
    url: str  # as given; "" where there is none
    http: "Http | None"  # of a response
    payload: bytes  # as much of it as was asked for
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
    said: Mapping[str, Sequence[str]]  # headers about use, by their names in lower case


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
        start, compression = _first_start(again)
        if start is None:
            unreadable(path, "no WARC record in it")
        if behind:
            start = _next_start(again, max(start, int(behind * size)), compression)
        elif start > 0:
            yield BrokenRecord(0, "no WARC record")
        while start is not None:
            start = yield from _until_broken(file, again, start, compression, keep)


def first_record(file: BinaryIO, offset: int, payload_bytes: int) -> Record | None:
    """The record at an offset with so many bytes of its payload; None where there is none, or a broken one."""
    compression = _compression(file, offset) or ""
    file.seek(offset)
    try:
        for record in ArchiveIterator(_stream(file, compression), parse_http=False):
            return _taken(record, offset, True, lambda *_: payload_bytes, lambda: False)  # noqa: FBT003 - of `Record`
    except OSError as error:
        _check_disk(error)
    return None


def _until_broken(
    file: BinaryIO, again: BinaryIO, start: int, compression: Compression, keep: Keep
) -> Generator[Record | BrokenRecord, None, int | None]:
    """Records from a start on, up to what is broken, or the end; returns where to go on.

    A record is given only once the next was met, for that is when a broken end or checksum of its member shows. `again`
    is the file opened once more, to look at members without moving what is read.
    """
    file.seek(start)
    stream = _stream(file, compression)
    archive = iter(ArchiveIterator(stream, parse_http=False))
    last: Record | None = None
    offset, frame, error = start, -1, ""

    def frame_now() -> int:
        return max(start, stream.frame_start_position() or 0) if compression else -1

    def is_beyond() -> bool:
        """Whether reading went on into a member that begins another record."""
        return frame_now() != frame and _is_start(again, frame_now(), compression)

    try:
        while (archived := next(archive, None)) is not None:
            begun, before, frame = start if last is None else archived.stream_pos, frame, frame_now()
            can_be_read_again = not compression or (frame != before and _is_start(again, frame, compression))
            offset = archived.stream_pos if not compression else frame if can_be_read_again else stream.tell()
            if last is not None:
                yield last
                last = None
            if can_be_read_again and before < begun < frame and _is_start(again, begun, compression):
                offset = frame = begun  # a head that breaks off, on which the reader has gone on with the next
                raise OSError(_CUT)
            last = _taken(archived, offset, can_be_read_again, keep, is_beyond)
    except OSError as failed:
        _check_disk(failed)
        error = str(failed)
    if last is None:
        at, behind = offset, max(start, frame) + 1
    elif compression == "gzip" and last.can_be_read_again:
        end = _end_of_member(again, last.offset)
        if end is None and error:
            at, behind = last.offset, last.offset + 1
        else:
            yield last
            end = end and _behind_empty_members(again, end)
            if end is None or not (error or _is_more(again, end)):
                return None
            is_inside = error.startswith("Invalid WARC") and frame_now() == frame  # behind the record in its member
            if not is_inside and _is_start(again, end, compression):
                return end
            at, behind = end, end + (not is_inside)
    else:
        yield last
        if error:
            at, behind = stream.tell() if compression else _end_of_bare(again, last), frame + 1
        elif compression == "zstd" and last.can_be_read_again and not _ends_whole(again, frame):
            at, behind = frame, 0
        elif not compression and _is_more(again, end := _end_of_bare(again, last)):
            at, behind = end, 0
        else:
            return None
    yield BrokenRecord(at, f"{error or _CUT}{'' if compression == 'gzip' else _LOST}")
    return _next_start(again, behind, compression) if compression == "gzip" else None


def _taken(
    record: WarcRecord,
    offset: int,
    can_be_read_again: bool,  # noqa: FBT001 - of `Record`
    keep: Keep,
    is_beyond: Callable[[], bool],
) -> Record:
    """Reads a whole record, in pieces that stay inside it: otherwise a wrong length would cost all records after it."""
    # all headers at once: the reader's own look at one name takes as long
    head = Fields(_places(record.headers.keys_bytes()), record.headers.values_bytes())
    if not _LENGTH.fullmatch(head.values[head.places[b"content-length"]]):  # which the reader takes for zero
        raise OSError("Content-Length is no number of bytes")
    http = _http(record, head) if record.record_type in _WITH_HTTP else None
    parts, left = [], record.content_length  # of the payload alone once the HTTP head is read
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
    url = head.get(b"warc-target-uri")
    return Record(offset, can_be_read_again, record.record_type, url, http, b"".join(parts), head)


@lru_cache(maxsize=64)  # records of an archive have the same few
def _places(names: tuple[bytes, ...]) -> Mapping[bytes, int]:
    """The place of each name; an OSError where a head has not exactly one length and one type."""
    lower = [name.lower() for name in names]
    lengths, types = lower.count(b"content-length"), lower.count(b"warc-type")
    if not lengths == types == 1:
        raise OSError(f"{lengths} headers Content-Length and {types} WARC-Type, where one of each is meant")
    return {name: lower.index(name) for name in lower}


def _http(record: WarcRecord, fields: Fields) -> Http | None:
    record.parse_http(quirks_mode=True)
    if not record.is_http or record.http_headers is None:
        return None
    head = record.http_headers
    values = head.values_bytes()
    of_body, of_use = _places_of_headers(head.keys_bytes())
    kind, transfer_encoding, content_encoding = [
        b", ".join([values[at] for at in places]).decode("latin-1") if places else "" for places in of_body
    ]
    content_type, charset = media_type(kind)
    if content_type not in PAGE_TYPES and (identified := fields.get(b"warc-identified-payload-type")):
        by_crawler, _ = media_type(identified)
        content_type = by_crawler if by_crawler in PAGE_TYPES else content_type
    said = {name: [values[at].decode("utf-8", "replace") for at in each] for name, each in of_use.items()}
    return Http(head.status_code, content_type, charset, transfer_encoding, content_encoding, said)


@lru_cache(maxsize=1024)  # servers of one kind send the same
def _places_of_headers(names: tuple[bytes, ...]) -> tuple[list[list[int]], dict[str, list[int]]]:
    """Where the headers are of a body's type, its transfer and content encoding; and those about its use, by name."""
    lower = [name.lower() for name in names]
    needed = b"content-type", b"transfer-encoding", b"content-encoding"
    of_body = [[at for at, name in enumerate(lower) if name == each] for each in needed]
    of_use = {
        name: [at for at, each in enumerate(lower) if each == name.encode()][:STATEMENTS_AT_MOST] for name in HEADERS
    }
    return of_body, {name: places for name, places in of_use.items() if places}


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


# Where members begin and end: gzip members, zstd frames, or records that are not compressed ---------------------------


def _check_disk(error: OSError) -> None:
    """Raises an error of the disk, which has an errno; errors in the bytes have none."""
    if error.errno is not None:
        raise error


def _stream(file: BinaryIO, compression: Compression) -> Any:
    """The content of a file from its position on."""
    return GzipReader(file) if compression == "gzip" else ZstdReader(file) if compression else file


def _compression(file: BinaryIO, offset: int) -> Compression | None:
    """The compression of what begins here; None where it is not the begin of a record."""
    file.seek(offset)
    magic = file.read(5)
    return next((compression for compression in _MAGIC if magic.startswith(_MAGIC[compression])), None)


def _first_start(file: BinaryIO) -> tuple[int | None, Compression]:
    """The offset of the first record (None if there is none), and how records are compressed."""
    file.seek(0)
    if file.read(4) == _ZSTD_DICTIONARY:
        return 0, "zstd"
    likely = _compression(file, 0)
    candidates: list[Compression] = list(_MAGIC) if likely is None else [likely]
    for compression in candidates:
        start = _next_start(file, 0, compression)
        if start is not None:
            return start, compression
    return None, ""


def _next_start(file: BinaryIO, offset: int, compression: Compression) -> int | None:
    """The offset of the next record, at or after an offset; None if there is none."""
    magic = _MAGIC[compression]
    size = 1 << 12  # small: the next of a million damaged members is near
    while True:
        file.seek(offset)
        window = file.read(size)
        at = window.find(magic)
        while at >= 0:
            if _is_start(file, offset + at, compression):
                return offset + at
            at = window.find(magic, at + 1)
        if len(window) < size:
            return None
        offset += size - len(magic) + 1
        size = min(2 * size, _WINDOW)


def _is_start(file: BinaryIO, offset: int, compression: Compression) -> bool:
    """Whether what begins here begins with the first line of a record."""
    file.seek(offset)
    try:
        if compression == "gzip":
            content = zlib.decompressobj(31).decompress(file.read(_MEMBER_HEAD_BYTES), _FIRST_LINE_BYTES)
        else:
            content = _stream(file, compression).read(_FIRST_LINE_BYTES)
    except zlib.error:
        return False
    except OSError as error:
        _check_disk(error)
        return False
    return _FIRST_LINE.match(content) is not None


def _is_more(file: BinaryIO, offset: int) -> bool:
    """Whether something but zeros and white space lies at an offset."""
    file.seek(offset)
    return bool(file.read(1 << 10).strip(b"\0\r\n\t "))


def _end_of_bare(file: BinaryIO, record: Record) -> int:
    """Where a record ends that is not compressed, with the two empty lines behind it."""
    file.seek(record.offset)
    head, _, _ = file.read(_HEAD_BYTES).partition(b"\r\n\r\n")
    end = file.seek(record.offset + len(head) + 4 + int(record.head.get(b"content-length")))
    return end + 4 * (file.read(4) == b"\r\n\r\n")


def _behind_empty_members(file: BinaryIO, offset: int) -> int:
    """The offset of the first gzip member at or after an offset that has content, or is none."""
    while True:
        file.seek(offset)
        inflater, head = zlib.decompressobj(31), file.read(64)  # more than a member of nothing has
        try:
            is_empty = not inflater.decompress(head, 1) and inflater.eof
        except zlib.error:
            return offset
        if not is_empty:
            return offset
        offset += len(head) - len(inflater.unused_data)


def _end_of_member(file: BinaryIO, offset: int) -> int | None:
    """Reads the gzip member that begins here: its end, None where it is damaged or cut."""
    file.seek(offset)
    inflater, left = zlib.decompressobj(31), b""
    try:
        while not inflater.eof and (data := left or file.read(1 << 14)):
            inflater.decompress(data, _WINDOW)
            left = inflater.unconsumed_tail
    except zlib.error:
        return None
    return file.tell() - len(inflater.unused_data) if inflater.eof else None


def _ends_whole(file: BinaryIO, offset: int) -> bool:
    """Whether the zstd frames from here on are whole: the archive's reader takes one that is cut for the end."""
    file.seek(offset)
    frames: Any = pa.CompressedInputStream(pa.PythonFile(cast(Any, file), "r"), "zstd")
    try:
        while frames.read(1 << 14):
            pass
    except OSError as error:
        _check_disk(error)
        return False
    return True
