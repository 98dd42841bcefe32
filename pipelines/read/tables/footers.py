"""What a Parquet file says of its columns and pages, read straight from its bytes (Thrift's compact protocol).

Arrow tells none of it safely: of a footer that contradicts itself pyarrow's `metadata.row_group(i).column(j)` ends the
process, and a page that claims 2 GB is given them before its end is looked for.
"""

from array import array
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import pyarrow as pa

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS = (4, 5, 6)  # of 16, 32 and 64 bits
_DEPTH = 30  # of structs in structs; Parquet has eight
_ROW_GROUPS, _COLUMNS, _ROWS, _META_DATA = 4, 1, 3, 3  # fields of FileMetaData, RowGroup and ColumnChunk
_VALUES, _COMPRESSED_BYTES, _FIRST_DATA_PAGE, _DICTIONARY_PAGE = 5, 7, 9, 11  # of ColumnMetaData
_KIND, _UNPACKED_BYTES, _PAGE_BYTES = 1, 2, 3  # of PageHeader; the last: of the page behind it, compressed
_OF_KIND = {5: 2, 7: 2, 8: 4}  # structs of PageHeader that begin with the number of values; where the encoding is
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


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column of a row group: how many values, and where its pages lie."""

    group: int
    rows: int
    column: int
    values: int
    start: int
    end: int


@dataclass(slots=True)
class Pages:
    """What the page headers of a column of a row group say of what is in them, unpacked.

    Attributes:
        chunk: the column of the row group.
        dictionary_bytes: of its dictionary; no value of it is longer. 0: there is none.
        dictionary_values: how many that has.
        value_bytes: the mean of the page whose values are longest, those of the dictionary left out.
        bytes: of all pages.
        begins_plain: whether its first values are not of its dictionary.
    """

    chunk: Chunk
    dictionary_bytes: int = 0
    dictionary_values: int = 0
    value_bytes: int = 0
    bytes: int = 0
    begins_plain: bool | None = None

    def add(self, header: "PageHeader") -> None:
        """Count a page in."""
        self.bytes += header.unpacked
        if header.kind == _DICTIONARY:
            self.dictionary_bytes, self.dictionary_values = header.unpacked, header.values
            return
        self.value_bytes = max(self.value_bytes, -(-header.unpacked // max(1, header.values)))
        if self.begins_plain is None:
            self.begins_plain = header.encoding not in _OF_DICTIONARY


class PageHeader(NamedTuple):
    """A page: its kind, its bytes in the file and unpacked, how many values it has, and in which encoding."""

    kind: int
    packed: int
    unpacked: int
    values: int
    encoding: int


class Chunks:
    """Every column of every row group of a file, to be gone through as often as needed.

    Each takes 24 bytes: a footer may name a million.
    """

    def __init__(self, numbers: "array[int]"):
        # of each row group its rows and how many columns, then of each of these values, start and end
        self._numbers = numbers

    def __iter__(self) -> Iterator[Chunk]:
        at = group = 0
        while at < len(self._numbers):
            rows, columns = self._numbers[at : at + 2]
            at += 2
            for column in range(columns):
                values, start, end = self._numbers[at : at + 3]
                yield Chunk(group, rows, column, values, start, end)
                at += 3
            group += 1


def chunks(file: BinaryIO) -> Chunks:
    """Every column of every row group, in one pass over the footer.

    Raises:
        pa.ArrowInvalid: it is no footer.
    """
    size = file.seek(-8, 2)
    footer_bytes = int.from_bytes(file.read(4), "little")
    file.seek(max(0, size - footer_bytes))
    try:
        return Chunks(_row_groups(_Thrift(file.read(min(footer_bytes, size)))))
    except (IndexError, RecursionError):
        raise pa.ArrowInvalid("a footer or page header that breaks off") from None
    except OverflowError:
        raise pa.ArrowInvalid("a footer with a number of too many bytes") from None


def check_pages(file: BinaryIO, found: Iterable[Chunk], columns: Collection[int]) -> list[Pages]:
    """What the pages of these columns hold.

    Raises:
        pa.ArrowInvalid: a page goes beyond its chunk, unpacks to far more than it is, or is used again and again.
    """
    pages_left, every = file.seek(0, 2) // _PAGE_AT_LEAST, list[Pages]()
    for chunk in found:
        if chunk.column not in columns:
            continue
        at, pages = chunk.start, Pages(chunk)
        every.append(pages)
        while at < chunk.end:
            if pages_left == 0:
                raise pa.ArrowInvalid("more pages than fit in the file; columns lie on top of one another")
            pages_left -= 1
            header, at = _page(file, at)
            left, place = chunk.end + _SLACK_BYTES - at, f"column {chunk.column} of row group {chunk.group}"
            if not 0 <= header.packed <= left:
                raise pa.ArrowInvalid(f"a page of {header.packed} bytes in {place}, which has at most {left} left")
            if header.unpacked > max(_UNPACKED_AT_MOST, _TIMES_AT_MOST * header.packed):
                raise pa.ArrowInvalid(f"a page of {header.packed} bytes in {place} that unpacks to {header.unpacked}")
            pages.add(header)
            at += header.packed
    return every


def _row_groups(footer: "_Thrift") -> "array[int]":
    """Numbers of `Chunks`. Of a field that is there twice the last one counts, as Arrow has it."""
    numbers, groups = array("q"), None
    for name, kind in footer.fields():
        if name == _ROW_GROUPS:
            groups = 0
            del numbers[:]
            for _ in footer.structs(kind):
                _add_row_group(footer, numbers)
                groups += 1
        else:
            footer.skip(kind)
    _required(groups)
    return numbers


def _add_row_group(footer: "_Thrift", numbers: "array[int]") -> None:
    first = len(numbers)
    numbers.extend((0, 0))  # known when its columns are read
    rows = columns = None
    for name, kind in footer.fields():
        if name == _COLUMNS:
            columns = 0
            del numbers[first + 2 :]
            for _ in footer.structs(kind):
                numbers.extend(_column(footer))
                columns += 1
        elif name == _ROWS and kind in _INTEGERS:
            rows = footer.integer()
        else:
            footer.skip(kind)
    numbers[first], numbers[first + 1] = _required(rows), _required(columns)


def _column(footer: "_Thrift") -> tuple[int, int, int]:
    """Values, start and end of a ColumnChunk."""
    about: dict[int, int] = {}
    for name, kind in footer.fields():
        if name == _META_DATA and kind == _STRUCT:
            about = footer.integers()
        else:
            footer.skip(kind)
    starts = [_required(about.get(_FIRST_DATA_PAGE)), about.get(_DICTIONARY_PAGE, 0)]
    start = min((each for each in starts if each > 0), default=0)
    return _required(about.get(_VALUES)), start, start + _required(about.get(_COMPRESSED_BYTES))


def _page(file: BinaryIO, at: int) -> tuple[PageHeader, int]:
    """The header of a page that begins here, and where it ends."""
    for length in _HEADER_BYTES:
        file.seek(at)
        header = _Thrift(file.read(length))
        try:
            found = header.page()
        except (IndexError, RecursionError, pa.ArrowInvalid):
            if len(header.data) < length:
                break
        else:
            return found, at + header.at
    raise pa.ArrowInvalid(f"no header of a page at byte {at}")


def _required(number: int | None) -> int:
    if number is None:
        raise pa.ArrowInvalid("a footer or page header without what it has to have")
    return number


class _Thrift:
    """A place in bytes of the compact protocol.

    What is read there raises IndexError where they break off, pa.ArrowInvalid where they are none.
    """

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and kind of each field of a struct.

        The value is to be read, or skipped, before the next one is asked for.
        """
        name = 0
        while head := self.data[self.at]:
            self.at += 1
            name = name + (head >> 4) if head >> 4 else self.integer()
            yield name, head & 15
        self.at += 1

    def integers(self) -> dict[int, int]:
        """Fields of a struct that are integers, by their numbers."""
        found = {}
        for name, kind in self.fields():
            if kind in _INTEGERS:
                found[name] = self.integer()
            else:
                self.skip(kind)
        return found

    def page(self) -> PageHeader:
        """A header of a page."""
        found, values, encoding = {}, 0, -1
        for name, kind in self.fields():
            if kind in _INTEGERS:
                found[name] = self.integer()
            elif kind == _STRUCT and name in _OF_KIND:
                of_kind = self.integers()
                values, encoding = of_kind.get(1, 0), of_kind.get(_OF_KIND[name], -1)
            else:
                self.skip(kind)
        packed, unpacked = (_required(found.get(name)) for name in (_PAGE_BYTES, _UNPACKED_BYTES))
        return PageHeader(found.get(_KIND, 0), packed, unpacked, values, encoding)

    def structs(self, kind: int) -> Iterator[None]:
        """Once for each struct of a list, which is to be read before the next one is asked for."""
        item, length = self._list() if kind in (_LIST, _SET) else (None, 1)
        if length and item != _STRUCT:
            raise pa.ArrowInvalid("a footer whose row groups, or their columns, are no structs")
        for _ in range(length):
            yield

    def integer(self) -> int:
        """A number with a sign."""
        number = self._varint()
        return number >> 1 ^ -(number & 1)

    def skip(self, kind: int) -> None:
        """Leave out the value of a field."""
        if kind not in (_TRUE, _FALSE):  # which are the values themselves
            self._skip(kind, 1)

    def _skip(self, kind: int, depth: int) -> None:
        """Leave out a value of a list."""
        if kind in _INTEGERS:
            self._varint()
        elif kind == _BINARY:
            length = self._varint()
            self.at += length
        elif kind == _STRUCT:
            self._skip_struct(depth)
        elif kind in (_LIST, _SET):
            item, length = self._list()
            for _ in range(length):
                self._skip(item, depth + 1)
        elif kind == _MAP:
            length = self._varint()
            kinds = self._byte() if length else 0
            for _ in range(length):
                self._skip(kinds >> 4, depth + 1)
                self._skip(kinds & 15, depth + 1)
        elif kind in (_TRUE, _FALSE, _BYTE):
            self._byte()
        elif kind == _DOUBLE:
            self.at += 8
        else:
            raise pa.ArrowInvalid(f"a footer or page header with a value of kind {kind}")

    def _skip_struct(self, depth: int) -> None:
        if depth > _DEPTH:
            raise pa.ArrowInvalid("a footer or page header nested too deeply")
        for _, kind in self.fields():
            if kind not in (_TRUE, _FALSE):
                self._skip(kind, depth + 1)

    def _list(self) -> tuple[int, int]:
        """Kind and number of the values of a list, which follow."""
        head = self._byte()
        return head & 15, head >> 4 if head >> 4 < 15 else self._varint()

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
        self.at = at + 1
        return value | byte << shift
