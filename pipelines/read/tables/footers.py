"""What a Parquet file says of its columns and pages, read from its bytes, and how many rows are so read at a time.

Functions raise pa.ArrowInvalid, to which `parquet.reading` adds the file's name, for a file that contradicts itself.

Arrow tells none of it safely: of a footer that contradicts itself pyarrow's `metadata.row_group(i).column(j)` ends the
process, and a page that claims 2 GB is given them before its end is looked for.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from altalign.filters import bounds
from altalign.pipelines.read.stretches import STRETCH_BYTES
from altalign.pipelines.read.tables.columns import longest_of_dictionary

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12  # Thrift's compact protocol
_INTEGERS = (4, 5, 6)  # of 16, 32 and 64 bits
_DEPTH = 30  # of values in values; Parquet has twelve
# fields that are read, by their numbers: 0 for an integer, and what is read of a struct, or of each in a list of them
_ROW_GROUPS, _COLUMNS, _ROWS, _META_DATA = 4, 1, 3, 3  # of FileMetaData, RowGroup and ColumnChunk
_VALUES, _COMPRESSED_BYTES, _FIRST_DATA_PAGE, _DICTIONARY_PAGE = 5, 7, 9, 11  # of ColumnMetaData
_CHUNK = dict.fromkeys((_VALUES, _COMPRESSED_BYTES, _FIRST_DATA_PAGE, _DICTIONARY_PAGE), 0)
_FOOTER = {_ROW_GROUPS: [{_COLUMNS: [{_META_DATA: _CHUNK}], _ROWS: 0}]}
_KIND, _UNPACKED_BYTES, _PAGE_BYTES = 1, 2, 3  # of PageHeader; the last: of the page behind it, compressed
_OF_KIND = (5, 7, 8)  # structs of PageHeader that begin with the number of values
_PAGE = {_KIND: 0, _UNPACKED_BYTES: 0, _PAGE_BYTES: 0} | {name: {1: 0} for name in _OF_KIND}
_DICTIONARY = 2  # a kind of page
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
_SHORT = 1 << 10  # a dictionary of so many bytes needs no look at its values
_VALUES_AT_MOST = 1 << 25  # in the lists of a row group, all of which one row may have


@dataclass(slots=True)
class Chunk:
    """A column of a row group: where its pages lie, and what their headers say of what is in them, unpacked."""

    group: int
    rows: int
    column: int
    values: int
    start: int
    end: int
    dictionary_bytes: int = 0  # no value of it is longer; 0: there is none
    dictionary_values: int = 0
    value_bytes: int = 0  # the mean of the page whose values are longest, those of the dictionary left out


def chunks_of(file: BinaryIO, table: pq.ParquetFile, names: Collection[str]) -> list[Chunk]:
    """The chunks of these columns of an open table, their pages checked; a name may hold a point itself."""
    paths = [table.schema.column(number).path for number in range(len(table.schema))]
    needed = {
        number
        for number, path in enumerate(paths)
        if any(path == name or path.startswith(f"{name}.") for name in names)
    }
    every = [chunk for chunk in chunks(file) if chunk.column in needed]
    check_pages(file, every)
    return every


def sizes(
    file: BinaryIO, table: pq.ParquetFile, every: Sequence[Chunk], *, image: str = "", rows_at_most: int
) -> tuple[int, list[str]]:
    """How many rows are read at a time, so that a batch has a bounded number of bytes; columns that stay dictionaries.

    A value of a dictionary may be long and stand in every row. Columns of texts in which it is stay dictionaries. Rows
    that are as short as they are meant to be are read `rows_at_most` at a time; `image` is the path of the column with
    the image's bytes.
    """
    rows, dictionaries = rows_at_most, dict[str, None]()
    for group in {chunk.group for chunk in every}:
        row_bytes = 1.0
        for chunk in (chunk for chunk in every if chunk.group == group and chunk.rows):
            column, a_row = table.schema.column(chunk.column), chunk.values / chunk.rows
            row_bytes += a_row * chunk.value_bytes
            if column.path == image:
                rows = min(rows, max(1, _BATCH_OF_IMAGES_BYTES // max(1, chunk.dictionary_bytes)))
            elif column.physical_type == "BYTE_ARRAY":
                longest = _longest(file, table, chunk)
                is_long = longest > bounds.CAPTION_BYTES
                if column.max_repetition_level and not is_long and chunk.values > _VALUES_AT_MOST:
                    what = f"{chunk.values} values in the lists of row group {group}"
                    raise pa.ArrowInvalid(f"{what}, more than {_VALUES_AT_MOST}; write smaller row groups")
                in_lists = longest * chunk.values if column.max_repetition_level else 0  # maybe all in one row
                if is_long or in_lists > BATCH_BYTES:
                    dictionaries[column.path] = None
                    longest = bounds.CAPTION_BYTES
                row_bytes += longest * min(1.0, a_row)
        if row_bytes > _SHORT_ROW_BYTES:
            rows = min(rows, max(1, int(BATCH_BYTES // row_bytes)))
    return rows, list(dictionaries)


def _longest(file: BinaryIO, table: pq.ParquetFile, chunk: Chunk) -> int:
    """The bytes of the longest value of a dictionary, at most."""
    if chunk.dictionary_bytes <= _SHORT:
        return chunk.dictionary_bytes
    path = table.schema.column(chunk.column).path
    opened = pq.ParquetFile(file, metadata=table.metadata, read_dictionary=[path], pre_buffer=False)
    batch = next(opened.iter_batches(1, row_groups=[chunk.group], columns=[path], use_threads=False), None)
    longest, values = (0, 0) if batch is None else longest_of_dictionary(batch.column(0))
    return longest if values >= chunk.dictionary_values else chunk.dictionary_bytes  # the first page may have none


# Footer and page headers ----------------------------------------------------------------------------------------------


def chunks(file: BinaryIO) -> list[Chunk]:
    """Every column of every row group, from the footer."""
    size = file.seek(-8, 2)
    footer_bytes = int.from_bytes(file.read(4), "little")
    file.seek(max(0, size - footer_bytes))
    every = list[Chunk]()
    try:
        for number, group in enumerate(_Thrift(file.read(min(footer_bytes, size))).struct(_FOOTER)[_ROW_GROUPS]):
            for column, about in enumerate(each[_META_DATA] for each in group[_COLUMNS]):
                starts = about[_FIRST_DATA_PAGE], about.get(_DICTIONARY_PAGE, 0)
                start = min((each for each in starts if each > 0), default=0)
                end = start + about[_COMPRESSED_BYTES]
                every.append(Chunk(number, group[_ROWS], column, about[_VALUES], start, end))
    except (IndexError, KeyError, TypeError):  # the last of a list of something else than structs
        raise pa.ArrowInvalid("a footer that breaks off, or without what it has to have") from None
    return every


def check_pages(file: BinaryIO, every: Sequence[Chunk]) -> None:
    """Go through the pages of chunks, and note what is in them.

    Raises pa.ArrowInvalid for a page that claims more bytes than its chunk has, or unpacks to far more.
    """
    pages_left = file.seek(0, 2) // _PAGE_AT_LEAST
    for chunk in every:
        at, place = chunk.start, f"column {chunk.column} of row group {chunk.group}"
        while at < chunk.end:
            if pages_left == 0:
                raise pa.ArrowInvalid("more pages than fit in the file; columns lie on top of one another")
            pages_left -= 1
            header, at = _page(file, at)
            packed, unpacked = header[_PAGE_BYTES], header[_UNPACKED_BYTES]
            left = chunk.end + _SLACK_BYTES - at
            if not 0 <= packed <= left:
                raise pa.ArrowInvalid(f"a page of {packed} bytes in {place}, which has at most {left} left")
            if unpacked > max(_UNPACKED_AT_MOST, _TIMES_AT_MOST * packed):
                raise pa.ArrowInvalid(f"a page of {packed} bytes in {place} that unpacks to {unpacked}")
            at += packed
            values = next((header[name].get(1, 0) for name in _OF_KIND if name in header), 0)
            if header.get(_KIND) == _DICTIONARY:
                chunk.dictionary_bytes, chunk.dictionary_values = unpacked, values
            else:
                chunk.value_bytes = max(chunk.value_bytes, -(-unpacked // max(1, values)))


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
            name = name + (head >> 4) if head >> 4 else self._value(_INTEGERS[0], None, depth)
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
        first = self.data[self.at]  # which every value has
        if kind in _INTEGERS:
            number = self._varint()
            return number >> 1 ^ -(number & 1)
        if kind == _STRUCT:
            return self.struct(like if isinstance(like, dict) else {}, depth + 1)
        if kind in (_LIST, _SET):
            self.at += 1
            length = first >> 4 if first >> 4 < 15 else self._varint()
            of_each = like[0] if isinstance(like, list) else None
            return [self._value(first & 15, of_each, depth + 1) for _ in range(length)]
        if kind == _BINARY:
            length = self._varint()
            self.at += length
        elif kind in (_TRUE, _FALSE, _BYTE, _DOUBLE):
            self.at += 8 if kind == _DOUBLE else 1
        else:  # also a map, of which Parquet has none
            raise pa.ArrowInvalid(f"a footer or page header with a value of kind {kind}")
        return None

    def _varint(self) -> int:
        data, at, value, shift = self.data, self.at, 0, 0
        while (byte := data[at]) & 128 and shift < 63:
            value |= (byte & 127) << shift
            shift, at = shift + 7, at + 1
        self.at, value = at + 1, value | byte << shift
        if value >> 64:
            raise pa.ArrowInvalid("a number of too many bytes")
        return value
