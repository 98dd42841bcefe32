"""How many rows of a Parquet table are read at a time, so that a batch has a bounded number of bytes.

A value of a dictionary may be long and stand in every row. Columns in which it is stay dictionaries: their values are
cut before rows are made of them.
"""

from collections.abc import Sequence
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from altalign.filters import bounds
from altalign.pipelines.read.stretches import STRETCH_BYTES
from altalign.pipelines.read.tables.footers import Pages
from altalign.pipelines.read.tables.values import longest_of_dictionaries

BATCH_BYTES = 2 * STRETCH_BYTES
_SHORT_ROW_BYTES = BATCH_BYTES // 65_536  # rows that are no longer need no smaller batches
_BATCH_OF_IMAGES_BYTES = 16 * STRETCH_BYTES  # where a dictionary holds images, all rows may have its largest
_REPEATED = 4
_SHORT = 1 << 10  # a dictionary of so many bytes needs no look at its values
_VALUES_AT_MOST = 1 << 25  # in the lists of a row group, all of which one row may have
_LONG = bounds.CAPTION_BYTES  # of a value that has to be cut before it is repeated


class Sizes(NamedTuple):
    """How a table is read: rows at a time, and the columns (Parquet's paths) that stay dictionaries."""

    rows: int
    dictionaries: list[str]


def sizes(
    file: BinaryIO, table: pq.ParquetFile, every: Sequence[Pages], *, image: str = "", rows_at_most: int
) -> Sizes:
    """The sizes of an open table.

    Args:
        file: its bytes.
        table: the table.
        every: the pages of the columns that are read.
        image: path of the column with the image's bytes; "": none.
        rows_at_most: rows at a time where they are as short as they are meant to be.

    Raises:
        pa.ArrowInvalid: the lists of a row may have too many values.
    """
    rows, dictionaries = rows_at_most, dict[str, None]()
    for number in {pages.chunk.group for pages in every}:
        row_bytes = 1.0
        for pages in (pages for pages in every if pages.chunk.group == number and pages.chunk.rows):
            column = table.schema.column(pages.chunk.column)
            a_row = pages.chunk.values / pages.chunk.rows
            row_bytes += a_row * pages.value_bytes
            if column.path == image and _repeats(pages):
                dictionaries[column.path] = None
            elif column.path == image:
                rows = min(rows, max(1, _BATCH_OF_IMAGES_BYTES // max(1, pages.dictionary_bytes)))
            elif column.physical_type == "BYTE_ARRAY":
                longest = _longest(file, table, pages)
                if longest > _LONG or (column.max_repetition_level and _in_lists(pages, longest) > BATCH_BYTES):
                    dictionaries[column.path] = None
                    longest = bounds.CAPTION_BYTES
                row_bytes += longest * min(1.0, a_row)
        if row_bytes > _SHORT_ROW_BYTES:
            rows = min(rows, max(1, int(BATCH_BYTES // row_bytes)))
    return Sizes(rows, list(dictionaries))


def _in_lists(pages: Pages, longest: int) -> int:
    """How many bytes the lists of a row group may have, all of which may be in one row.

    Raises:
        pa.ArrowInvalid: they have too many values.
    """
    if pages.chunk.values > _VALUES_AT_MOST:
        what = f"{pages.chunk.values} values in the lists of row group {pages.chunk.group}"
        raise pa.ArrowInvalid(f"{what}, more than {_VALUES_AT_MOST}; write smaller row groups")
    return longest * pages.chunk.values


def _repeats(pages: Pages) -> bool:
    """Whether values of a dictionary stand in so many rows that they are worth keeping apart, by their mean."""
    mean = pages.dictionary_bytes / max(1, pages.dictionary_values)
    return mean * pages.chunk.values > _REPEATED * pages.bytes


def _longest(file: BinaryIO, table: pq.ParquetFile, pages: Pages) -> int:
    """The bytes of the longest value of a dictionary, at most."""
    if pages.dictionary_bytes <= _SHORT or pages.begins_plain:
        return pages.dictionary_bytes
    path = table.schema.column(pages.chunk.column).path
    opened = pq.ParquetFile(file, metadata=table.metadata, read_dictionary=[path], pre_buffer=False)
    batch = next(opened.iter_batches(1, row_groups=[pages.chunk.group], columns=[path], use_threads=False), None)
    return 0 if batch is None else longest_of_dictionaries(batch.column(0))
