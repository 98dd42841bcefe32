"""The survivors of a partition as `judge` groups them: all in memory where they have few bytes, as most partitions.

One image may have all rows of a pool, and its texts may be long: then what decides the order is in memory alone, and
texts are read again for each stretch of rows.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.data.schema import STRINGS
from altalign.pipelines.run.text_tables import SURVIVOR
from altalign.storage import arrays

HELD_BYTES = 128 << 20  # of the survivors of a partition; an even one has some 50 MB
STRETCH_BYTES = 32 << 20  # read at a time where there are more

Numbers = npt.NDArray[np.int64]  # int64[n]

_SHORT = ("key", "image_id", "file", "row", "words")


class Sorted:
    """n survivors in the order of image, key, page and place in the input.

    Attributes:
        short: n rows, in that order, with all columns but strings.
        bytes: of the strings of each row: int64[n].
        repeated: whether a row has the key of the one before it: bool[n].
    """

    def __init__(self, batches: Callable[[], Iterable[pa.RecordBatch]], size: int):
        """Read them.

        Args:
            batches: yields them (`SURVIVOR`), the same each time that it is called.
            size: how many bytes they have.
        """
        self._batches, self._held = batches, None
        if size <= HELD_BYTES:
            rows = pa.Table.from_batches(batches(), SURVIVOR)
            order = _order(rows, rows["page_url"])
            self._held = rows.take(order).combine_chunks()
            self.short, self.bytes = self._held.select(list(_SHORT)), _bytes(self._held)
        else:
            read = [(_short(batch), batch["page_url"].dictionary_encode(), _bytes(batch)) for batch in batches()]
            short, pages, sizes = zip(*read, strict=True)
            rows = pa.Table.from_batches(short)
            order = _order(rows, _ranks(pa.chunked_array(pages)))
            self.short, self.bytes = rows.take(order).combine_chunks(), np.concatenate(sizes)[order.to_numpy()]
        self._order: Numbers = order.to_numpy().astype(np.int64)
        self.repeated = equals_previous(arrays.ids_of(self.short["key"]))

    def take(self, at: Numbers) -> pa.Table:
        """Rows by their places in the order, rising (`SURVIVOR`)."""
        if self._held is not None:
            return self._held.take(at).combine_chunks()
        rows, first, found = self._order[at], 0, list[pa.RecordBatch]()
        wanted = np.sort(rows)
        for batch in self._batches():
            begin, end = np.searchsorted(wanted, [first, first + batch.num_rows]).tolist()
            if begin < end:
                found.append(batch.take(wanted[begin:end] - first))
            first += batch.num_rows
        return pa.Table.from_batches(found, SURVIVOR).take(np.searchsorted(wanted, rows)).combine_chunks()

    def stretches(self, at: Numbers) -> Iterator[pa.Table]:
        """The same in parts of a bounded size; all at once where all are in memory."""
        if self._held is not None:
            yield self.take(at)
            return
        number = np.cumsum(self.bytes[at]) // STRETCH_BYTES
        for part in np.split(at, np.flatnonzero(np.diff(number)) + 1):
            yield self.take(part)


def equals_previous(ids: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Whether each of n ids (uint8[n, 16]) is the one before it: bool[n]."""
    return np.r_[np.zeros(min(1, len(ids)), bool), (ids[1:] == ids[:-1]).all(axis=1)]


def _order(rows: pa.Table, page: Any) -> Any:
    columns = {"image_id": rows["image_id"], "key": rows["key"], "page_url": page}
    columns |= {"file": rows["file"], "row": rows["row"]}
    by: Any = [(name, "ascending", "at_start") for name in columns]  # the stubs do not know where nulls may be placed
    return pc.sort_indices(pa.table(columns), by)


def _ranks(pages: Any) -> Any:
    """The place of each URL among all of them; null where there is none."""
    encoded = pages.unify_dictionaries().combine_chunks()
    ranks = np.empty(len(encoded.dictionary), np.int32)
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks), dtype=np.int32)
    return pa.array(ranks).take(encoded.indices)


def _short(rows: pa.RecordBatch) -> pa.RecordBatch:
    """All but strings, in memory of their own, so that the others can go."""
    return rows.select(list(_SHORT)).take(np.arange(rows.num_rows))


def _bytes(rows: pa.RecordBatch | pa.Table) -> Numbers:
    found = np.zeros(rows.num_rows, np.int64)
    for name in STRINGS:
        column: Any = rows[name]
        found += pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    return found
