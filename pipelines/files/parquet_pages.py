"""Parquet files written from the bytes of their pages: what Arrow's writer, which takes any column, does at several times the cost.

Flat columns of strings and numbers, and lists of strings; every column may hold nulls. Strings in pages of about 1 MiB,
other columns in one a row group; zstd, no statistics. `altalign.pipelines.files.parquet` writes all files but those of
the many rows that the text rules drop.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit

from altalign import storage
from altalign.filters.bits import address_of, copy, store8
from altalign.filters.words import text_buffers
from altalign.pipelines.files import hex_frames, parquet

_CREATED_BY = "altalign"
_PAGE_BYTES = 1 << 20  # of strings, about
_PLAIN, _RLE, _DELTA_LENGTH, _RLE_DICTIONARY = 0, 3, 6, 8  # encodings
_ZSTD = 6
_OPTIONAL, _REPEATED = 1, 2
_UTF8, _LIST = 0, 3  # converted types
_TYPES = {pa.int32(): 1, pa.int64(): 2, pa.float32(): 4, pa.string(): 6}


class Page(NamedTuple):
    """A page without its header: its values (of a dictionary: entries), their encoding, its size before and its bytes after compression."""

    values: int
    encoding: int
    size: int
    data: bytes


class Column(NamedTuple):
    """A column of a row group."""

    pages: Sequence[Page]
    dictionary: Page | None = None


# Columns -------------------------------------------------------------------------------------------------------------


def nulls(rows: int) -> Column:
    """A column of nulls."""
    return Column([_page(rows, _PLAIN, _with_size(_one_run(rows, 0)))])


def numbers(values: np.ndarray, is_valid: np.ndarray | None = None) -> Column:
    """Numbers (of the column's type), null where they are not valid (bool[n]; None: all are)."""
    present = values if is_valid is None else values[is_valid]
    return Column([_page(len(values), _PLAIN, _levels_of(len(values), is_valid) + present.tobytes())])


def coded(values: Sequence[str], codes: np.ndarray) -> Column:
    """Strings that are few, by their numbers (uint8[n])."""
    return Column(
        [_page(len(codes), _RLE_DICTIONARY, _levels_of(len(codes)) + _indices(len(values), codes))], _dictionary(values)
    )


def lists(values: Sequence[str], combinations: Sequence[Sequence[int]], codes: np.ndarray) -> Column:
    """Lists of strings, none of them empty: which of the values each combination holds, and the combination of each row (uint8[n])."""
    lengths = np.array([len(combination) for combination in combinations], np.int64)
    flat = np.array([code for combination in combinations for code in combination], np.uint8)
    ends = np.cumsum(lengths[codes])
    size = int(ends[-1]) if len(codes) else 0
    of_all, is_more = np.empty(size, np.uint8), np.ones(size, np.bool_)
    _fill_lists(codes, lengths, np.cumsum(lengths) - lengths, flat, of_all)
    is_more[ends - lengths[codes]] = False
    # of each value: the list, an entry, itself
    levels = _with_size(_packed(is_more.reshape(-1, 1))) + _with_size(_one_run(size, 3))
    return Column([_page(size, _RLE_DICTIONARY, levels + _indices(len(values), of_all))], _dictionary(values))


def hex_digits(digests: np.ndarray, is_valid: np.ndarray | None = None) -> Column:
    """Digests (uint8[n, 16]) as 32 hex digits, null where they are not valid."""
    known = digests if is_valid is None else digests[is_valid]
    head = _levels_of(len(digests), is_valid) + _equal_lengths(len(known), 32)
    return Column([Page(len(digests), _DELTA_LENGTH, len(head) + 32 * len(known), hex_frames.frame(head, known))])


def strings(texts: pa.StringArray, rows: np.ndarray) -> Column:
    """Some rows (sorted numbers) of a column of strings."""
    if texts.null_count == len(texts):
        return nulls(len(rows))
    data, offsets = text_buffers(texts)
    is_valid = None
    if texts.null_count:
        is_valid = texts.is_valid().to_numpy(zero_copy_only=False)[rows]
    lengths = (offsets[1:] - offsets[:-1])[rows] + 4
    ends = np.cumsum(lengths if is_valid is None else lengths * is_valid)
    pages, begin = [], 0
    while begin < len(rows):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + _PAGE_BYTES, side="right")))
        some, valid = rows[begin:end], None if is_valid is None else is_valid[begin:end]
        head = np.frombuffer(_levels_of(len(some), valid), np.uint8)
        body = np.empty(len(head) + int(ends[end - 1]) - before, np.uint8)
        body[: len(head)] = head
        _fill_strings(data, offsets, some if valid is None else some[valid], body, len(head))
        pages.append(_page(len(some), _PLAIN, body))
        begin = end
    return Column(pages)


def _page(values: int, encoding: int, data: Any) -> Page:
    return Page(
        values, encoding, len(data), pa.Codec("zstd", compression_level=parquet.ZSTD_LEVEL).compress(data, asbytes=True)
    )


def _dictionary(values: Sequence[str]) -> Page:
    return _page(len(values), _PLAIN, b"".join(_with_size(value.encode()) for value in values))


def _levels_of(rows: int, is_valid: np.ndarray | None = None) -> bytes:
    """Which values are there, before them in a page (None: all)."""
    count = rows if is_valid is None else int(np.count_nonzero(is_valid))
    return _with_size(
        _one_run(rows, int(count > 0)) if is_valid is None or count in (0, rows) else _packed(is_valid.reshape(-1, 1))
    )


def _with_size(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def _one_run(count: int, value: int) -> bytes:
    """The same number of at most 8 bits again and again."""
    return _varint(count << 1) + bytes([value])


def _packed(bits: np.ndarray) -> bytes:
    """Numbers of some bits each, the lowest first (bool or uint8[n, width]): eight numbers together, zeros behind the last."""
    eights = -(-len(bits) // 8)
    return _varint(eights << 1 | 1) + np.packbits(bits.reshape(-1), bitorder="little").tobytes().ljust(
        eights * bits.shape[1], b"\0"
    )


def _indices(values: int, codes: np.ndarray) -> bytes:
    """Numbers of entries of a dictionary, before them how many bits each has."""
    if values == 1:
        return b"\1" + _one_run(len(codes), 0)
    width = (values - 1).bit_length()
    return bytes([width]) + _packed(np.unpackbits(codes.reshape(-1, 1), axis=1, count=width, bitorder="little"))


def _equal_lengths(count: int, length: int) -> bytes:
    """So many times the same length, as differences: blocks of 128 in four parts, each difference 0."""
    return (
        _varint(128)
        + _varint(4)
        + _varint(count)
        + _varint(2 * length * (count > 0))
        + bytes(5 * ((max(1, count) - 1 + 127) // 128))
    )


@njit(nogil=True, cache=True)
def _fill_lists(codes: np.ndarray, lengths: np.ndarray, begins: np.ndarray, flat: np.ndarray, out: np.ndarray) -> None:
    to = 0
    for code in codes:
        for i in range(begins[code], begins[code] + lengths[code]):
            out[to] = flat[i]
            to += 1


@njit(nogil=True, cache=True)
def _fill_strings(data: np.ndarray, offsets: np.ndarray, rows: np.ndarray, out: np.ndarray, to: int) -> None:
    """Write the length of each row in four bytes, and its bytes."""
    source, target = address_of(data), address_of(out)
    for row in rows:
        begin = offsets[row]
        size = int(offsets[row + 1] - begin)
        for byte in range(4):
            store8(target, to + byte, np.uint8(size >> 8 * byte & 255))
        copy(target + to + 4, source + begin, size)
        to += 4 + size


# Files ---------------------------------------------------------------------------------------------------------------


class Writer:
    """Row groups of one schema, into one file."""

    def __init__(self, file: BinaryIO, schema: pa.Schema):
        self._file, self._schema, self._end = file, schema, 0
        self._row_groups: list[bytes] = []
        self._rows = 0
        self._write(b"PAR1")

    def write_row_group(self, rows: int, columns: Mapping[str, Column]) -> None:
        """Write the columns of a row group; those of the schema that are not named are null.

        Raises:
            ValueError: the schema has no column of a name.
        """
        parquet.check_names(columns, self._schema)
        chunks = [self._write_column(field, columns.get(field.name) or nulls(rows)) for field in self._schema]
        size = sum(size for _, size in chunks)
        self._row_groups.append(_struct({1: _list(12, [chunk for chunk, _ in chunks]), 2: _long(size), 3: _long(rows)}))
        self._rows += rows

    def finish(self) -> None:
        """Write the footer."""
        schema = _list(
            12,
            [
                _struct({4: _binary("schema"), 5: _int(len(self._schema))}),
                *(each for field in self._schema for each in _elements(field)),
            ],
        )
        footer = _struct(
            {1: _int(2), 2: schema, 3: _long(self._rows), 4: _list(12, self._row_groups), 6: _binary(_CREATED_BY)}
        )
        self._write(footer + len(footer).to_bytes(4, "little") + b"PAR1")

    def _write_column(self, field: "pa.Field[Any]", column: Column) -> tuple[bytes, int]:
        """Write the pages; what the footer says of them, and their size before compression."""
        start, size = self._end, 0
        dictionary_at = None
        if column.dictionary is not None:
            dictionary_at = self._end
            page = column.dictionary
            size += self._write_page(page, 2, {7: (12, _struct({1: _int(page.values), 2: _int(page.encoding)}))})
        first_page = self._end
        for page in column.pages:
            size += self._write_page(
                page,
                0,
                {5: (12, _struct({1: _int(page.values), 2: _int(page.encoding), 3: _int(_RLE), 4: _int(_RLE)}))},
            )
        encodings: set[int] = {
            _RLE,
            *(page.encoding for page in column.pages),
            *([_PLAIN] if column.dictionary else []),
        }
        kind = field.type.value_type if pa.types.is_list(field.type) else field.type
        path = [field.name, "list", "element"] if pa.types.is_list(field.type) else [field.name]
        facts = {
            1: _int(_TYPES[kind]),
            2: _list(5, [_varint(encoding << 1) for encoding in sorted(encodings)]),
            3: _list(8, [_text(name) for name in path]),
            4: _int(_ZSTD),
            5: _long(sum(page.values for page in column.pages)),
            6: _long(size),
            7: _long(self._end - start),
            9: _long(first_page),
        } | ({} if dictionary_at is None else {11: _long(dictionary_at)})
        return _struct({2: _long(0), 3: (12, _struct(facts))}), size

    def _write_page(self, page: Page, kind: int, header: dict[int, Any]) -> int:
        head = _struct({1: _int(kind), 2: _int(page.size), 3: _int(len(page.data)), **header})
        self._write(head)
        self._write(page.data)
        return len(head) + page.size

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._end += len(data)


@contextmanager
def writing(path: str, schema: pa.Schema) -> Iterator[Writer]:
    """A Parquet file that is at `path`, whole, once the block ended well."""
    with storage.write(path) as file:
        writer = Writer(file, schema)
        yield writer
        writer.finish()


def _elements(field: "pa.Field[Any]") -> list[bytes]:
    """What the footer says of a column's type."""
    if pa.types.is_list(field.type):
        group = {
            3: _int(_OPTIONAL),
            4: _binary(field.name),
            5: _int(1),
            6: _int(_LIST),
            10: (12, _struct({3: (12, _struct({}))})),
        }
        entries = {3: _int(_REPEATED), 4: _binary("list"), 5: _int(1)}
        return [_struct(group), _struct(entries), *_elements(pa.field("element", field.type.value_type))]
    facts: dict[int, Any] = {1: _int(_TYPES[field.type]), 3: _int(_OPTIONAL), 4: _binary(field.name)}
    if pa.types.is_string(field.type):
        facts |= {6: _int(_UTF8), 10: (12, _struct({1: (12, _struct({}))}))}
    return [_struct(facts)]


# Thrift's compact protocol: a field is its kind and its bytes --------------------------------------------------------


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out) + bytes([number])


def _int(number: int) -> tuple[int, bytes]:
    return 5, _varint(number << 1)


def _long(number: int) -> tuple[int, bytes]:
    return 6, _varint(number << 1)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _varint(len(encoded)) + encoded


def _binary(text: str) -> tuple[int, bytes]:
    return 8, _text(text)


def _list(kind: int, items: Sequence[bytes]) -> tuple[int, bytes]:
    head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + _varint(len(items))
    return 9, head + b"".join(items)


def _struct(fields: Mapping[int, tuple[int, bytes]]) -> bytes:
    """Fields by their numbers, which rise by less than 16."""
    out, before = [], 0
    for number, (kind, data) in fields.items():
        out += [bytes([number - before << 4 | kind]), data]
        before = number
    return b"".join([*out, b"\0"])
