"""Rows of tables with images: Parquet, and Arrow as Hugging Face's `save_to_disk` leaves it. Needs no torch."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.errors import UnreadableError, UsageError
from altalign.eval.places import reading

_ROWS = 256  # rows of a table that are held: tens of megabytes of images


def files_of(folder: str) -> list[str]:
    """The files of a data set that `save_to_disk` wrote to a folder, in order; none where it is another folder.

    Raises:
        UsageError: it holds several splits.
    """
    splits = storage.read_json(storage.join(folder, "dataset_dict.json")).get("splits")
    if isinstance(splits, list) and splits:
        raise UsageError(f"{folder}: a data set of splits ({', '.join(splits)}); name one: {folder}/{splits[0]}")
    entries = storage.read_json(storage.join(folder, "state.json")).get("_data_files") or []
    return [storage.join(folder, entry["filename"]) for entry in entries]


def batches_of(path: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """These columns of a table, some rows at a time.

    Raises:
        UsageError: it has no such columns.
        UnreadableError: it is damaged.
    """
    with _opened(path) as (schema, batches):
        for column in columns:
            if schema.names.count(column) != 1:
                wrong = "more than one" if column in schema.names else "no"
                given = ", ".join(schema.names[:10])
                raise UsageError(f"{path}: {wrong} column {column!r} (there are {given}); name another")
        yield from batches(list(columns))


def schema_of(path: str) -> pa.Schema:
    """The schema of a table, with its metadata."""
    with _opened(path) as (schema, _):
        return schema


def check_images(path: str, column: str, type_: pa.DataType) -> None:
    """Refuse a column that holds no bytes of images.

    Raises:
        UsageError: naming it.
    """
    of = type_.field("bytes").type if pa.types.is_struct(type_) and type_.get_field_index("bytes") >= 0 else type_
    if not (pa.types.is_binary(of) or pa.types.is_large_binary(of) or pa.types.is_binary_view(of)):
        raise UsageError(f"{path}: column {column!r} is {type_}, not bytes of images; name another image_column")


def images_of(batch: pa.RecordBatch, column: str, path: str) -> list[bytes | None]:
    """Bytes of each row's image; None where there are none."""
    with reading(path, "a table"):
        values = batch.column(column).to_pylist()
        return [(value["bytes"] if isinstance(value, dict) else value) or None for value in values]


def read_rows(path: str, column: str, rows: Sequence[int]) -> Iterator[bytes]:
    """The images of rows, whose numbers rise."""
    first, next_row = 0, iter([*rows, -1])
    row = next(next_row)
    for batch in batches_of(path, (column,)):
        images = images_of(batch, column, path)
        while first <= row < first + len(batch):
            yield images[row - first] or b""
            row = next(next_row)
        first += len(batch)
        if row == -1:
            break
    if row != -1:
        raise UnreadableError(f"{path}: ends before row {row:,}; it was changed since it was listed: give a whole one")


@contextmanager
def _opened(path: str) -> Iterator[tuple[pa.Schema, Any]]:
    """The schema of a table, and a function that gives batches of columns."""
    is_arrow = path.endswith(".arrow")
    with reading(path, "Arrow" if is_arrow else "Parquet"), storage.open_read(path) as file:
        if is_arrow:
            has_footer = file.read(6) == b"ARROW1"
            file.seek(0)
            stream: Any = (pa.ipc.open_file if has_footer else pa.ipc.open_stream)(cast(Any, file))
            batches = map(stream.get_batch, range(stream.num_record_batches)) if has_footer else stream
            yield stream.schema, lambda columns: _narrow(batches, columns)
        else:
            table = pq.ParquetFile(file)
            yield (
                table.schema_arrow,
                lambda columns: table.iter_batches(batch_size=_ROWS, columns=columns, use_threads=False),
            )


def _narrow(stream: Iterable[pa.RecordBatch], columns: list[str]) -> Iterator[pa.RecordBatch]:
    for batch in stream:
        chosen = batch.select(columns)
        yield from (chosen.slice(first, _ROWS) for first in range(0, len(chosen), _ROWS))
