"""Reads the Parquet files of a run, a row group at a time or whole; errors name the damaged file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.errors import UnreadableError, first_line


def row_groups(
    path: str, columns: Sequence[str] | None = None, *, at_most: int | None = None, of: Sequence[int] | None = None
) -> Iterator[pa.Table]:
    """The row groups of a file, with these columns or all: those of these numbers, or `at_most` at even distances.

    Raises UnreadableError: it is not a whole Parquet file, or lacks one of these columns; FileNotFoundError: there is
    no such file.
    """
    with storage.open_read(path) as file:
        yield from row_groups_of(file, path, columns, at_most=at_most, of=of)


def row_groups_of(
    file: "BinaryIO | pa.NativeFile",
    path: str,
    columns: Sequence[str] | None = None,
    *,
    at_most: int | None = None,
    of: Sequence[int] | None = None,
) -> Iterator[pa.Table]:
    """The row groups of an open file, as `row_groups`; `path` is for errors."""
    with _naming(path):
        yield from _row_groups(pq.ParquetFile(file), columns, at_most, of)


def table(path: str, schema: pa.Schema) -> pa.Table:
    """The columns of a schema from a whole file, with its types.

    Raises UnreadableError: as `row_groups`, or a column has values of another type; FileNotFoundError: there is no such
    file.
    """
    with storage.open_read(path) as file, _naming(path):
        groups = [rows.cast(schema) for rows in _row_groups(pq.ParquetFile(file), schema.names)]
        return pa.concat_tables([schema.empty_table(), *groups])


def spread(number: int, at_most: int) -> list[int]:
    """All numbers below this one, or so many of them at even distances."""
    wanted = min(number, at_most)
    return [(2 * place + 1) * number // (2 * wanted) for place in range(wanted)]


def _row_groups(
    parquet: pq.ParquetFile,
    columns: Sequence[str] | None,
    at_most: int | None = None,
    of: Sequence[int] | None = None,
) -> Iterator[pa.Table]:
    if missing := [name for name in columns or () if name not in parquet.schema_arrow.names]:
        raise pa.ArrowInvalid(f"no column {missing[0]}; was it written by an earlier altalign?")
    names = list(columns) if columns is not None else None
    number = parquet.num_row_groups
    for group in spread(number, number if at_most is None else at_most) if of is None else of:
        rows: pa.Table = parquet.read_row_group(group, columns=names, use_threads=False)
        # if pages are damaged, Arrow may stop early without an error
        if len(rows) != (said := parquet.metadata.row_group(group).num_rows):
            raise pa.ArrowInvalid(f"{len(rows)} rows, but its footer says {said}")
        yield rows


@contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        reason = first_line(error)
        raise UnreadableError(f"{path}: cannot be read as Parquet ({reason})") from error
