"""Columns in which a row has a list of captions, each of which is a candidate."""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.pipelines.read.stretches import STRETCH_ROWS
from altalign.storage import parquet

_AT_ONCE = STRETCH_ROWS // 8  # captions, each of which may be as long as one may be


class Piece(NamedTuple):
    """Rows of one caption each, the row of a batch that each was in (int64[n]), and whether it is that row's first."""

    rows: pa.RecordBatch
    row_of: npt.NDArray[np.int64]
    is_first: npt.NDArray[np.bool_]


def pieces(batch: pa.RecordBatch, column: str) -> Iterator[Piece]:
    """Yields a row for each caption, where rows have lists of them.

    A row without any stays, with null. A list of any length comes in pieces: in each caption's row the row's other
    values stand once more.
    """
    lists = batch.column(column)
    if not parquet.is_list(lists.type):
        yield Piece(batch, np.arange(batch.num_rows), np.ones(batch.num_rows, np.bool_))
        return
    lengths, at = _lengths(lists), batch.schema.get_field_index(column)
    captions = pc.list_flatten(lists)
    begins, ends = np.cumsum(lengths) - lengths, np.cumsum(np.maximum(lengths, 1))
    for first in range(0, int(ends[-1]) if len(ends) else 0, _AT_ONCE):
        numbers = np.arange(first, min(first + _AT_ONCE, int(ends[-1])))
        row_of = np.searchsorted(ends, numbers, side="right")
        within = numbers - (ends - np.maximum(lengths, 1))[row_of]
        has_none = lengths[row_of] == 0
        each = captions.take(pa.array(begins[row_of] + within, pa.int64(), mask=has_none))
        rows = batch.take(pa.array(row_of, pa.int64())).set_column(at, column, each)
        yield Piece(rows, row_of, within == 0)


def _lengths(lists: Any) -> npt.NDArray[np.int64]:
    """How many captions each row of a column of lists has."""
    return cast(Any, pc.list_value_length(lists)).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
