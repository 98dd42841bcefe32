"""Columns in which a row has a list of captions, each of which is a candidate."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.pipelines.read.found import STRETCH_ROWS


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type has lists."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def stretches(batch: pa.RecordBatch, column: str) -> Iterator[pa.RecordBatch]:
    """The batch in parts of about `STRETCH_ROWS` captions, where rows have lists of them."""
    lists: Any = batch.column(column)
    if not is_list(lists.type):
        yield batch
        return
    stretch_of = np.cumsum(_lengths(lists)) // STRETCH_ROWS
    starts = np.flatnonzero(np.diff(stretch_of, prepend=-1)).tolist()
    for first, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        yield batch.slice(first, end - first)


def a_row_each(batch: pa.RecordBatch, column: str) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
    """A row for each caption where rows have lists of them, and the row of `batch` that each was in, int64[n].

    A row without any stays, with null.
    """
    lists: Any = batch.column(column)
    if not is_list(lists.type):
        return batch, np.arange(batch.num_rows)
    lengths = _lengths(lists)
    row_of = np.repeat(np.arange(batch.num_rows), np.maximum(lengths, 1))
    has_one = lengths[row_of] > 0
    each = cast(Any, pc.list_flatten(lists)).take(pa.array(np.cumsum(has_one) - 1, pa.int64(), mask=~has_one))
    at = batch.schema.get_field_index(column)
    return batch.take(pa.array(row_of, pa.int64())).set_column(at, column, each), row_of


def _lengths(lists: Any) -> npt.NDArray[np.int64]:
    """How many captions each row of a column of lists has."""
    return cast(Any, pc.list_value_length(lists)).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
