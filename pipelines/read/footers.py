"""What a Parquet file says of its columns and pages, read straight from its bytes (Thrift's compact protocol).

Arrow tells none of it safely: of a footer that contradicts itself pyarrow's `metadata.row_group(i).column(j)` ends the process, and
a page that claims 2 GB is given them before its end is looked for.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_DEPTH = 30  # of structs in structs; Parquet has eight
_ROW_GROUPS, _COLUMNS, _ROWS, _META_DATA = 4, 1, 3, 3  # fields of FileMetaData, RowGroup and ColumnChunk
_VALUES, _COMPRESSED_BYTES, _FIRST_DATA_PAGE, _DICTIONARY_PAGE = 5, 7, 9, 11  # of ColumnMetaData
_PAGE_BYTES = 3  # of PageHeader: of the page behind it, compressed
_SLACK_BYTES = 100  # a column may be longer than it says: parquet-mr once left out the header of its dictionary (PARQUET-816; Arrow allows as much)
_PAGE_AT_LEAST = 16  # bytes; its header has ten at least
_HEADER_BYTES = (1 << 9, 1 << 16, 1 << 24)  # of a page; most are small, but it may hold its least and greatest value


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column of a row group: how many values, and where its pages lie."""

    group: int
    rows: int
    column: int
    values: int
    start: int
    end: int


def chunks(file: BinaryIO) -> Iterator[Chunk]:
    """Every column of every row group.

    Raises:
        pa.ArrowInvalid: it is no footer.
    """
    size = file.seek(-8, 2)
    footer_bytes = int.from_bytes(file.read(4), "little")
    file.seek(max(0, size - footer_bytes))
    footer = _struct(file.read(min(footer_bytes, size)))[0]
    for group, each in enumerate(_of(footer, _ROW_GROUPS, list)):
        rows = _of(each, _ROWS, int)
        for column, chunk in enumerate(_of(each, _COLUMNS, list)):
            about = _of(chunk, _META_DATA, dict)
            starts = [_of(about, _FIRST_DATA_PAGE, int), _of({_DICTIONARY_PAGE: 0, **about}, _DICTIONARY_PAGE, int)]
            start = min(each for each in starts if each > 0) if max(starts) > 0 else 0
            yield Chunk(group, rows, column, _of(about, _VALUES, int), start, start + _of(about, _COMPRESSED_BYTES, int))


def check_pages(file: BinaryIO, columns: Collection[int]) -> None:
    """Refuse a file in which a page of these columns goes beyond its chunk, or pages are used again and again.

    Raises:
        pa.ArrowInvalid: one does, or they are.
    """
    pages_left = file.seek(0, 2) // _PAGE_AT_LEAST
    for chunk in chunks(file):
        at = chunk.start
        while chunk.column in columns and at < chunk.end:
            if pages_left == 0:
                raise pa.ArrowInvalid("more pages than fit in the file; columns lie on top of one another")
            pages_left -= 1
            header, header_bytes = _page_header(file, at)
            page_bytes, at = _of(header, _PAGE_BYTES, int), at + header_bytes
            left = chunk.end + _SLACK_BYTES - at
            if not 0 <= page_bytes <= left:
                raise pa.ArrowInvalid(f"a page of {page_bytes} bytes in column {chunk.column} of row group {chunk.group}, which has at most {left} left")
            at += page_bytes


def _page_header(file: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    for length in _HEADER_BYTES:
        file.seek(at)
        data = file.read(length)
        try:
            return _struct(data)
        except pa.ArrowInvalid:
            if len(data) < length:
                break
    raise pa.ArrowInvalid(f"no header of a page at byte {at}")


def _of(struct: Any, name: int, kind: type) -> Any:
    value = struct.get(name) if isinstance(struct, dict) else None
    if not isinstance(value, kind):
        raise pa.ArrowInvalid("a footer or page header without what it has to have")
    return value


def _struct(data: bytes) -> tuple[dict[int, Any], int]:
    """Fields of the struct at the start by their numbers, and its length."""
    try:
        return _fields(data, 0, 0)
    except (IndexError, RecursionError):
        raise pa.ArrowInvalid("a footer or page header that breaks off") from None


def _fields(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    if depth > _DEPTH:
        raise pa.ArrowInvalid("a footer or page header nested too deeply")
    fields: dict[int, Any] = {}
    name = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            name += head >> 4
        else:
            number, at = _varint(data, at)
            name = number >> 1 ^ -(number & 1)
        kind = head & 15
        if kind in (_TRUE, _FALSE):
            fields[name] = kind == _TRUE
        else:
            fields[name], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (4, 5, 6):  # 16, 32 and 64 bits
        number, at = _varint(data, at)
        return number >> 1 ^ -(number & 1), at
    if kind == _BINARY:
        length, at = _varint(data, at)
        return None, _within(data, at + length)
    if kind == _STRUCT:
        return _fields(data, at, depth + 1)
    if kind in (_LIST, _SET):
        head, at = data[at], at + 1
        length, at = (head >> 4, at) if head >> 4 < 15 else _varint(data, at)
        values = []
        for _ in range(length):
            value, at = _value(data, at, head & 15, depth + 1)
            values.append(value)
        return values, at
    if kind == _MAP:
        length, at = _varint(data, at)
        kinds, at = (data[at], at + 1) if length else (0, at)
        for _ in range(length):
            at = _value(data, _value(data, at, kinds >> 4, depth + 1)[1], kinds & 15, depth + 1)[1]
        return None, at
    if kind in (_TRUE, _FALSE, _BYTE):
        return data[at], at + 1
    if kind == _DOUBLE:
        return None, _within(data, at + 8)
    raise pa.ArrowInvalid(f"a footer or page header with a value of kind {kind}")


def _within(data: bytes, at: int) -> int:
    if at > len(data):
        raise IndexError(at)
    return at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) & 128:
        value |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if shift > 63:
            raise pa.ArrowInvalid("a number of too many bytes")
    return value | byte << shift, at + 1
