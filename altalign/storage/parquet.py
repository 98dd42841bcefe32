"""Parquet as stages write it: whole files, zstd 1, and the same bytes for the same rows on any machine."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from altalign import storage
from altalign.errors import UnreadableError, first_line

# Columns of few distinct values (Any: pyarrow-stubs take a bool alone).
_DICTIONARY: Any = ["source", "stage", "reason", "failed.list.element", "format", "test_set", "file"]

# Hex digits of hashes, in which nothing repeats: without lengths between them zstd is faster and the file smaller.
_HEX = ("key", "image_id")

ZSTD_LEVEL = 1
ROWS_PER_BATCH = 65_536
ROW_GROUP_BYTES = 64 << 20  # a row group is written once its rows have so many


class Writer:
    """Writes rows of one schema into one file."""

    def __init__(self, file: pq.ParquetWriter, schema: pa.Schema, rows_per_row_group: int):
        self._file, self._schema, self._rows_per_row_group = file, schema, rows_per_row_group
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = 0  # of these
        self.bytes = 0  # in memory, of all rows that were written
        self.row_bytes = 0  # the same of a row, in the mean of those that have most
        self.row_groups: list[int] = []

    def write(self, rows: pa.Table) -> None:
        """Add rows; they are written when enough of them wait."""
        self._waiting.append(rows)
        self._rows += len(rows)
        self._bytes += rows.nbytes
        if self._rows >= self._rows_per_row_group // 2 or self._bytes >= ROW_GROUP_BYTES:
            self.finish()

    def write_row_group(self, rows: pa.Table) -> None:
        """Write these rows as a row group of their own."""
        self._file.write_table(rows.cast(self._schema), row_group_size=max(1, len(rows)))
        self.row_groups.append(len(rows))

    def finish(self) -> None:
        """Write the rows that wait."""
        self.bytes += self._bytes
        self.row_bytes = max(self.row_bytes, self._bytes // max(1, self._rows))
        if self._rows:
            self.write_row_group(pa.concat_tables(self._waiting).combine_chunks())
        self._waiting, self._rows, self._bytes = [], 0, 0


@contextmanager
def writing(path: str, schema: pa.Schema, *, rows_per_row_group: int = 65_536) -> Iterator[Writer]:
    """A Parquet file that appears at `path`, whole, once the block has ended without an error."""
    hex_columns = [name for name in _HEX if name in schema.names and schema.field(name).type == pa.string()]
    options: dict[str, Any] = {"compression": "zstd", "compression_level": ZSTD_LEVEL, "use_dictionary": _DICTIONARY}
    options |= {"write_statistics": False, "store_schema": False}
    # a column at once: Arrow's pages of 20,000 rows cost a twelfth of the CPU seconds of writing
    options |= {"write_batch_size": rows_per_row_group, "max_rows_per_page": rows_per_row_group}
    options["column_encoding"] = dict.fromkeys(hex_columns, "DELTA_LENGTH_BYTE_ARRAY")
    with storage.write(path) as file, pq.ParquetWriter(file, schema, **options) as parquet:
        writer = Writer(parquet, schema, rows_per_row_group)
        yield writer
        writer.finish()


def with_dictionaries(schema: pa.Schema) -> pa.Schema:
    """The schema with dictionaries of strings in the columns that have few distinct values; files do not tell them."""
    fields = []
    for field in schema:
        if field.name in _DICTIONARY:
            field = field.with_type(pa.dictionary(pa.int32(), field.type))
        elif f"{field.name}.list.element" in _DICTIONARY:
            field = field.with_type(pa.list_(pa.dictionary(pa.int32(), pa.string())))
        fields.append(field)
    return pa.schema(fields)


def write(path: str, rows: pa.Table, schema: pa.Schema) -> None:
    """Write a whole table as one file."""
    with writing(path, schema) as file:
        file.write(rows)


def write_any(path: str, rows: pa.Table, schema: pa.Schema) -> None:
    """The same, unless it has no rows."""
    if len(rows):
        write(path, rows, schema)


@contextmanager
def reading(path: str) -> Iterator[pq.ParquetFile]:
    """An open Parquet file; UnreadableError where it is none, is cut off, or contradicts its footer."""
    try:
        with storage.open_read(path) as file:
            parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
            rows = rows_of_groups(parquet)
            if min(rows, default=0) < 0 or sum(rows) != parquet.metadata.num_rows:
                of_footer = parquet.metadata.num_rows
                raise pa.ArrowInvalid(f"{sum(rows)} rows in its row groups, where its footer says {of_footer}")
            yield parquet
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        if storage.is_full_disk(error) or isinstance(error, MemoryError):  # of Arrow too: then the machine is to blame
            raise
        repair = "repair or remove the file, or set skip_unreadable = true"
        raise UnreadableError(f"{path}: cannot be read as Parquet ({first_line(error)}); {repair}") from error


def row_groups(path: str) -> list[int]:
    """How many rows each row group has, from the footer."""
    with reading(path) as file:
        return rows_of_groups(file)


def rows_of_groups(file: pq.ParquetFile) -> list[int]:
    """How many rows each row group of an open file has."""
    return [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]


def read_row_groups(
    path: str, first: int, last: int, columns: Sequence[str] | None = None, *, rows_at_once: int = ROWS_PER_BATCH
) -> Iterator[pa.RecordBatch]:
    """Yields the record batches of row groups `first` to `last`, both included.

    A large row group comes in pieces, so that memory grows no further than with its largest page.
    """
    names = list(columns) if columns else None
    with reading(path) as file:
        for number in range(first, last + 1):
            batches = file.iter_batches(rows_at_once, row_groups=[number], columns=names, use_threads=False)
            yield from exactly(
                (plain(batch, is_decoded=True) for batch in batches), file.metadata.row_group(number).num_rows
            )


def plain(batch: pa.RecordBatch, *, is_decoded: bool = False) -> pa.RecordBatch:
    """The batch without Arrow's views of strings, bytes and lists, which many of its functions do not take.

    `is_decoded`: without dictionaries too; where a damaged file has indices outside its dictionary, that fails.
    """
    for number, field in enumerate(batch.schema):
        column: Any = batch.column(number)
        if _has_views(field.type):
            column = _plain(column)
        if is_decoded and pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if column.type != field.type:
            batch = batch.set_column(number, field.name, column)
    return batch


def _has_views(kind: Any) -> bool:
    types = pa.types
    is_view = types.is_string_view(kind) or types.is_binary_view(kind)
    within = [kind.value_type] if types.is_dictionary(kind) else [kind.field(at).type for at in range(kind.num_fields)]
    return is_view or types.is_list_view(kind) or types.is_large_list_view(kind) or any(map(_has_views, within))


def _plain(column: Any) -> Any:
    """An array without views, part by part: Arrow 26 casts views of lists with nulls to lists that are not valid."""
    kind = column.type
    if not _has_views(kind):
        return column
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(column.indices, _plain(column.dictionary))
    if pa.types.is_struct(kind):
        parts = [_plain(column.field(at)) for at in range(kind.num_fields)]
        fields = [field.with_type(part.type) for field, part in zip(kind, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=column.is_null())
    if is_list(kind):
        ends: Any = pc.cumulative_sum(pc.list_value_length(column).cast(pa.int64()).fill_null(0))
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
        return pa.LargeListArray.from_arrays(offsets, _plain(pc.list_flatten(column)), mask=column.is_null())
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return column.cast(pa.string() if pa.types.is_string_view(kind) else pa.large_binary())
    return column


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type has lists."""
    types = pa.types
    views = types.is_list_view(kind) or types.is_large_list_view(kind)
    return views or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def exactly(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yields the batches, and checks that together they have so many rows: damaged pages may end Arrow silently."""
    for batch in batches:
        rows -= batch.num_rows
        yield batch
    if rows:
        raise pa.ArrowInvalid(f"{abs(rows)} rows {'fewer' if rows > 0 else 'more'} than its footer says")


def read_whole(path: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yields all record batches of a file."""
    yield from read_row_groups(path, 0, len(row_groups(path)) - 1, columns)


def strings(rows: pa.RecordBatch | pa.Table, name: str) -> pa.StringArray:
    """A column as one array; the caller knows from its schema that it holds strings."""
    column = rows[name]
    return cast(pa.StringArray, column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)


def values(rows: pa.RecordBatch | pa.Table, name: str) -> list[Any]:
    """A column as Python values; the caller knows their type from its schema, and whether there are nulls."""
    return rows[name].to_pylist()


def tally(column: "pa.Array[Any] | pa.ChunkedArray[Any]") -> list[tuple[Any, int]]:
    """The distinct values of a column, null included, and how often each occurs."""
    counted: Any = pc.value_counts(column)
    return [(entry["values"], entry["counts"]) for entry in counted.to_pylist()]


def table(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """A table of a schema from some of its columns; the others are null, and a string fills a whole column."""
    if unknown := set(columns) - set(schema.names):
        raise ValueError(f"no such columns: {sorted(unknown)}")
    rows = next(len(column) for column in columns.values() if not isinstance(column, str))
    arrays = []
    for field in schema:
        column = columns.get(field.name)
        if column is None:
            column = pa.nulls(rows, field.type)
        elif isinstance(column, str):
            column = pa.repeat(pa.scalar(column, field.type), rows)
        elif not isinstance(column, (pa.Array, pa.ChunkedArray)):
            column = pa.array(column, field.type)
        arrays.append(column)
    return pa.Table.from_arrays(arrays, schema=schema)


def read_table(path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """A whole file that fits in memory, or some of its columns."""
    with reading(path) as file:
        return file.read(columns=None if columns is None else list(columns), use_threads=False)


def same_rows(rows: pa.Table, others: pa.Table, *, by: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The numbers of those of n rows that are among m others with all their values, and their numbers there.

    A value in the column `by` is in one of the others at most.
    """
    places: Any = pc.index_in(rows[by], value_set=others[by].combine_chunks())
    here = np.flatnonzero(places.is_valid().to_numpy())
    elsewhere = places.drop_null().to_numpy().astype(np.int64)
    is_same = np.ones(len(here), bool)
    for name in rows.column_names:
        one, other = rows[name].take(here), others[name].take(elsewhere)
        both_null = (one.is_null().to_numpy() & other.is_null().to_numpy()).astype(bool)
        if pa.types.is_nested(one.type):  # which Arrow does not compare
            is_same &= np.array(
                [each == its for each, its in zip(one.to_pylist(), other.to_pylist(), strict=True)], bool
            )
            continue
        equal: Any = pc.equal(one, other)
        is_same &= equal.fill_null(pa.scalar(value=False)).to_numpy() | both_null
    return here[is_same], elsewhere[is_same]
