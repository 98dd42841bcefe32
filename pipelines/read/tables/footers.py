"""What a Parquet file says of its columns and pages, read from its bytes, and how many rows are so read at a time.

Functions raise pa.ArrowInvalid, to which `parquet.reading` adds the file's name, for a file that contradicts itself.

Arrow tells none of it safely: of a footer that contradicts itself pyarrow's `metadata.row_group(i).column(j)` ends the
process, and a page that claims 2 GB is given them before its end is looked for.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from altalign.filters import bounds
from altalign.pipelines.read.stretches import STRETCH_BYTES
from altalign.pipelines.read.tables.columns import longest_of_dictionaries

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12  # Thrift's compact
_INTEGERS = (4, 5, 6)  # of 16, 32 and 64 bits
_DEPTH = 30  # of values in values; Parquet has twelve
# fields that are read, by their numbers: 0 for an integer, and what is read of a struct, or of each in a list of them
_ROW_GROUPS, _COLUMNS, _ROWS, _META_DATA = 4, 1, 3, 3  # of FileMetaData, RowGroup and ColumnChunk
_VALUES, _COMPRESSED_BYTES, _FIRST_DATA_PAGE, _DICTIONARY_PAGE = 5, 7, 9, 11  # of ColumnMetaData
_CHUNK = dict.fromkeys((_VALUES, _COMPRESSED_BYTES, _FIRST_DATA_PAGE, _DICTIONARY_PAGE), 0)
_FOOTER = {_ROW_GROUPS: [{_COLUMNS: [{_META_DATA: _CHUNK}], _ROWS: 0}]}
_KIND, _UNPACKED_BYTES, _PAGE_BYTES = 1, 2, 3  # of PageHeader; the last: of the page behind it, compressed
_OF_KIND = {5: 2, 7: 2, 8: 4}  # structs of PageHeader that begin with the number of values; where the encoding is
_PAGE = {_KIND: 0, _UNPACKED_BYTES: 0, _PAGE_BYTES: 0} | {name: {1: 0, at: 0} for name, at in _OF_KIND.items()}
_DICTIONARY = 2  # a kind of page
_OF_DICTIONARY = (2, 8)  # encodings of data pages
# A page beyond this that unpacks to more than so many times its bytes is a bomb: Arrow unpacks pages whole. Images, of
# which a page may have hundreds of megabytes, hardly pack at all.
_UNPACKED_AT_MOST, _TIMES_AT_MOST = 128 << 20, 32
# a column may be longer than it says: parquet-mr once left out the header of its dictionary (PARQUET-816; Arrow allows
# as much)
_SLACK_BYTES = 100
_PAGE_AT_LEAST = 16  # bytes; its header has ten at least
_HEADER_BYTES = (1 << 9, 1 << 16, 1 << 24)  # of a page; most are small, but it may hold its least and greatest value

BATCH_BYTES = 2 * STRETCH_BYTES
_SHORT_ROW_BYTES = BATCH_BYTES // 65_536  # rows that are no longer need no smaller batches
_BATCH_OF_IMAGES_BYTES = 16 * STRETCH_BYTES  # where a dictionary holds images, all rows may have its largest
_REPEATED = 4
_SHORT = 1 << 10  # a dictionary of so many bytes needs no look at its values
_VALUES_AT_MOST = 1 << 25  # in the lists of a row group, all of which one row may have


class Chunk(NamedTuple):
    """A column of a row group: how many values, and where its pages lie."""

    group: int
    rows: int
    column: int
    values: int
    start: int
    end: int


@dataclass(slots=True)
class Pages:
    """What the page headers of a column of a row group say of what is in them, unpacked."""

    chunk: Chunk
    dictionary_bytes: int = 0  # no value of it is longer; 0: there is none
    dictionary_values: int = 0
    value_bytes: int = 0  # the mean of the page whose values are longest, those of the dictionary left out
    bytes: int = 0  # of all pages
    begins_plain: bool | None = None  # whether its first values are not of its dictionary


def chunks(file: BinaryIO) -> list[Chunk]:
    """Every column of every row group."""
    size = file.seek(-8, 2)
    footer_bytes = int.from_bytes(file.read(4), "little")
    file.seek(max(0, size - footer_bytes))
    every = list[Chunk]()
    try:
        for number, group in enumerate(_Thrift(file.read(min(footer_bytes, size))).struct(_FOOTER)[_ROW_GROUPS]):
            rows = group[_ROWS]
            for column, about in enumerate(each[_META_DATA] for each in group[_COLUMNS]):
                starts = about[_FIRST_DATA_PAGE], about.get(_DICTIONARY_PAGE, 0)
                start = min((each for each in starts if each > 0), default=0)
                every.append(Chunk(number, rows, column, about[_VALUES], start, start + about[_COMPRESSED_BYTES]))
    except IndexError:
        raise pa.ArrowInvalid("a footer that breaks off") from None
    except (KeyError, TypeError):  # a list of something else than structs
        raise pa.ArrowInvalid("a footer without what it has to have") from None
    return every


def check_pages(file: BinaryIO, every: Sequence[Chunk], columns: Collection[int]) -> list[Pages]:
    """What the pages of these columns hold."""
    pages_left, every_page = file.seek(0, 2) // _PAGE_AT_LEAST, list[Pages]()
    for chunk in (chunk for chunk in every if chunk.column in columns):
        at, pages = chunk.start, Pages(chunk)
        every_page.append(pages)
        while at < chunk.end:
            if pages_left == 0:
                raise pa.ArrowInvalid("more pages than fit in the file; columns lie on top of one another")
            pages_left -= 1
            header, at = _page(file, at)
            packed, unpacked = header[_PAGE_BYTES], header[_UNPACKED_BYTES]
            left, place = chunk.end + _SLACK_BYTES - at, f"column {chunk.column} of row group {chunk.group}"
            if not 0 <= packed <= left:
                raise pa.ArrowInvalid(f"a page of {packed} bytes in {place}, which has at most {left} left")
            if unpacked > max(_UNPACKED_AT_MOST, _TIMES_AT_MOST * packed):
                raise pa.ArrowInvalid(f"a page of {packed} bytes in {place} that unpacks to {unpacked}")
            at += packed
            pages.bytes += unpacked
            of_kind = next((name for name in _OF_KIND if name in header), 0)
            about = header.get(of_kind, {})
            values = about.get(1, 0)
            if header.get(_KIND) == _DICTIONARY:
                pages.dictionary_bytes, pages.dictionary_values = unpacked, values
                continue
            pages.value_bytes = max(pages.value_bytes, -(-unpacked // max(1, values)))
            if pages.begins_plain is None:
                pages.begins_plain = about.get(_OF_KIND.get(of_kind)) not in _OF_DICTIONARY
    return every_page


def _page(file: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    """The header of a page that begins here, and where it ends."""
    for length in _HEADER_BYTES:
        file.seek(at)
        thrift = _Thrift(file.read(length))
        try:
            header = thrift.struct(_PAGE)
        except (IndexError, pa.ArrowInvalid):
            if len(thrift.data) < length:
                break
        else:
            if _PAGE_BYTES in header and _UNPACKED_BYTES in header:
                return header, at + thrift.at
            break
    raise pa.ArrowInvalid(f"no header of a page at byte {at}")


class _Thrift:
    """A place in bytes of the compact protocol.

    What is read there raises IndexError where they break off, pa.ArrowInvalid where they are none.
    """

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def struct(self, like: dict[int, Any], depth: int = 0) -> dict[int, Any]:
        """The fields that are `like` these, by their numbers. Of one given twice the last counts, as in Arrow."""
        fields, name = dict[int, Any](), 0
        while head := self.data[self.at]:
            self.at += 1
            name = name + (head >> 4) if head >> 4 else self._integer()
            if head & 15 in (_TRUE, _FALSE):  # which are the values themselves
                continue
            value = self._value(head & 15, like.get(name), depth)
            if name in like and type(value) is type(like[name]):
                fields[name] = value
        self.at += 1
        return fields

    def _value(self, kind: int, like: Any, depth: int) -> Any:
        """A value of a field or a list; of a struct, or a list of them, as much as is `like` this."""
        if depth > _DEPTH:
            raise pa.ArrowInvalid("a footer or page header nested too deeply")
        if kind in _INTEGERS:
            return self._integer()
        if kind == _STRUCT:
            return self.struct(like if isinstance(like, dict) else {}, depth + 1)
        if kind in (_LIST, _SET):
            head, values = self._byte(), list[Any]()
            for _ in range(head >> 4 if head >> 4 < 15 else self._varint()):
                value = self._value(head & 15, like[0] if isinstance(like, list) else None, depth + 1)
                if isinstance(like, list):
                    values.append(value)
            return values
        if kind == _BINARY:
            length = self._varint()
            self.at += length
        elif kind == _MAP:
            length = self._varint()
            kinds = self._byte() if length else 0
            for _ in range(length):
                self._value(kinds >> 4, None, depth + 1)
                self._value(kinds & 15, None, depth + 1)
        elif kind in (_TRUE, _FALSE, _BYTE):
            self._byte()
        elif kind == _DOUBLE:
            self.at += 8
        else:
            raise pa.ArrowInvalid(f"a footer or page header with a value of kind {kind}")
        return None

    def _integer(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        data, at, value, shift = self.data, self.at, 0, 0
        while (byte := data[at]) & 128:
            value |= (byte & 127) << shift
            shift, at = shift + 7, at + 1
            if shift > 63:
                raise pa.ArrowInvalid("a number of too many bytes")
        self.at, value = at + 1, value | byte << shift
        if value >> 64:
            raise pa.ArrowInvalid("a number of too many bytes")
        return value


# Rows at a time -------------------------------------------------------------------------------------------------------


class Sizes(NamedTuple):
    """How a table is read: rows at a time, and the columns (Parquet's paths) that stay dictionaries."""

    rows: int
    dictionaries: list[str]


def sizes(
    file: BinaryIO, table: pq.ParquetFile, every: Sequence[Pages], *, image: str = "", rows_at_most: int
) -> Sizes:
    """How many rows are read at a time, so that a batch has a bounded number of bytes.

    A value of a dictionary may be long and stand in every row. Columns in which it is stay dictionaries: their values
    are cut before rows are made of them. `every` has the pages of the columns that are read, `image` is the path of the
    one with the image's bytes, and rows that are as short as they are meant to be are read `rows_at_most` at a time.
    """
    rows, dictionaries = rows_at_most, dict[str, None]()
    for number in {pages.chunk.group for pages in every}:
        row_bytes = 1.0
        for pages in (pages for pages in every if pages.chunk.group == number and pages.chunk.rows):
            column = table.schema.column(pages.chunk.column)
            a_row = pages.chunk.values / pages.chunk.rows
            row_bytes += a_row * pages.value_bytes
            if column.path == image:
                # whether its values stand in so many rows that they are worth keeping apart, by their mean
                mean = pages.dictionary_bytes / max(1, pages.dictionary_values)
                if mean * pages.chunk.values > _REPEATED * pages.bytes:
                    dictionaries[column.path] = None
                    continue
                rows = min(rows, max(1, _BATCH_OF_IMAGES_BYTES // max(1, pages.dictionary_bytes)))
            elif column.physical_type == "BYTE_ARRAY":
                longest = _longest(file, table, pages)
                is_long = longest > bounds.CAPTION_BYTES
                if column.max_repetition_level and not is_long and pages.chunk.values > _VALUES_AT_MOST:
                    what = f"{pages.chunk.values} values in the lists of row group {number}"
                    raise pa.ArrowInvalid(f"{what}, more than {_VALUES_AT_MOST}; write smaller row groups")
                in_lists = longest * pages.chunk.values if column.max_repetition_level else 0  # maybe all in one row
                if is_long or in_lists > BATCH_BYTES:
                    dictionaries[column.path] = None
                    longest = bounds.CAPTION_BYTES
                row_bytes += longest * min(1.0, a_row)
        if row_bytes > _SHORT_ROW_BYTES:
            rows = min(rows, max(1, int(BATCH_BYTES // row_bytes)))
    return Sizes(rows, list(dictionaries))


def _longest(file: BinaryIO, table: pq.ParquetFile, pages: Pages) -> int:
    """The bytes of the longest value of a dictionary, at most."""
    if pages.dictionary_bytes <= _SHORT or pages.begins_plain:
        return pages.dictionary_bytes
    path = table.schema.column(pages.chunk.column).path
    opened = pq.ParquetFile(file, metadata=table.metadata, read_dictionary=[path], pre_buffer=False)
    batch = next(opened.iter_batches(1, row_groups=[pages.chunk.group], columns=[path], use_threads=False), None)
    return 0 if batch is None else longest_of_dictionaries(batch.column(0))
