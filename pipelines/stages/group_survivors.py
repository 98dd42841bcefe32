"""Groups the survivors of `judge` by image: drops repeated pairs, and finds where each image is.

What it writes is sorted by (image_id, key), one row group a fetch unit.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.data import preferences
from altalign.data.counts import FailedCounts
from altalign.data.reasons import DropReason, Stage
from altalign.data.schema import CARRIED, DROPPED, STRINGS
from altalign.filters import identity
from altalign.pipelines.engine.spilled_groups import Groups, Spilled, by_part, parted
from altalign.pipelines.run import outputs, pool
from altalign.pipelines.run.image_places import PLACE, as_bytes, first_of_each, in_order
from altalign.pipelines.run.text_tables import GROUPED_SURVIVORS, PLACED_SURVIVOR, SURVIVOR, GroupFacts, RowGroup
from altalign.pipelines.run.units import IMAGES_PER_UNIT, Run
from altalign.storage import arrays, parquet

ROWS_PER_PARTITION = 200_000
HELD_BYTES = 128 << 20  # of the survivors of a partition; an even one has some 50 MB
STRETCH_BYTES = 32 << 20  # read at a time where there are more
UNIT_BYTES = 32 << 20  # of the texts of a fetch unit, but for those of its last image
BYTES_TIMES_AT_MOST = 4  # where units are larger: a kilobyte of text an image
OF_SURVIVORS, OF_PLACES = range(2)  # kinds of slices

Ids = npt.NDArray[np.uint8]  # uint8[n, 16]
Numbers = npt.NDArray[np.int64]  # int64[n]


def buckets_of(run: Run) -> Groups:
    """The buckets of a file of survivors or of places; the size of the pool alone decides how many partitions."""
    return Groups(pool.partitions(run, ROWS_PER_PARTITION, at_least=8, at_most=4096), kinds=2)


def partition_of(ids: Ids, count: int) -> Numbers:
    """Which of so many partitions each id is in, int64[n]: by its first 32 bits, so that partitions are in order."""
    return np.ascontiguousarray(ids[:, :4]).view(">u4")[:, 0].astype(np.int64) * count >> 32


class Sorted:
    """n survivors in the order of image, key, page and place in the input.

    All are in memory where they have few bytes, as most partitions. One image may have all rows of a pool, and its
    texts may be long: then what decides the order is in memory alone, and texts are read again for each stretch.

    Attributes:
        short: n rows, in that order, with all columns but strings.
        bytes: of the strings of each row: int64[n].
        repeated: whether a row has the key of the one before it: bool[n].
    """

    def __init__(self, batches: Callable[[], Iterable[pa.RecordBatch]], size: int):
        """`batches` yields them (`SURVIVOR`), the same each time that it is called; `size` is how many bytes."""
        self._batches, self._held = batches, None
        columns = ["key", "image_id", "file", "row", "words"]
        if size <= HELD_BYTES:
            rows = pa.Table.from_batches(batches(), SURVIVOR)
            order = _order(rows, rows["page_url"])
            self._held = rows.take(order).combine_chunks()
            self.short, self.bytes = self._held.select(columns), _bytes(self._held)
        else:
            short, pages, sizes = list[pa.RecordBatch](), list[Any](), list[Numbers]()
            for batch in batches():
                short.append(batch.select(columns).take(np.arange(batch.num_rows)))  # a copy, so that strings can go
                pages.append(batch["page_url"].dictionary_encode())
                sizes.append(_bytes(batch))
            rows, page = pa.Table.from_batches(short), cast(Any, pa.chunked_array(pages)).unify_dictionaries()
            page = page.combine_chunks()
            ranks = np.empty(len(page.dictionary), np.int32)  # the place of each URL among all of them
            ranks[pc.sort_indices(page.dictionary).to_numpy()] = np.arange(len(ranks), dtype=np.int32)
            order = _order(rows, pa.array(ranks).take(page.indices))
            self.short, self.bytes = rows.take(order).combine_chunks(), np.concatenate(sizes)[order.to_numpy()]
        self._order: Numbers = order.to_numpy().astype(np.int64)
        self.repeated = _equals_previous(arrays.ids_of(self.short["key"]))

    def take(self, at: Numbers) -> pa.Table:
        """Rows by their places in the order, rising (`SURVIVOR`)."""
        if self._held is not None:
            return self._held.take(at).combine_chunks()
        rows, first, taken = self._order[at], 0, list[pa.RecordBatch]()
        rising = np.sort(rows)
        for batch in self._batches():
            begin, end = np.searchsorted(rising, [first, first + batch.num_rows]).tolist()
            if begin < end:
                taken.append(batch.take(rising[begin:end] - first))
            first += batch.num_rows
        return pa.Table.from_batches(taken, SURVIVOR).take(np.searchsorted(rising, rows)).combine_chunks()

    def stretches(self, at: Numbers, before: int, *, is_held: bool) -> Iterator[tuple[int, pa.Table]]:
        """The same in stretches with their numbers: all in the first, or each of a bounded size.

        So many bytes of rows came `before` these.
        """
        number = (before + np.cumsum(self.bytes[at])) // STRETCH_BYTES * (not is_held)
        for part in np.split(np.arange(len(at)), np.flatnonzero(np.diff(number)) + 1):
            if len(part):
                yield int(number[part[0]]), self.take(at[part])


def _order(rows: pa.Table, page: Any) -> Any:
    columns = {"image_id": rows["image_id"], "key": rows["key"], "page_url": page}
    columns |= {"file": rows["file"], "row": rows["row"]}
    by: Any = [(name, "ascending", "at_start") for name in columns]  # the stubs do not know where nulls may be placed
    return pc.sort_indices(pa.table(columns), by)


def _bytes(rows: pa.RecordBatch | pa.Table) -> Numbers:
    lengths: Any = (pc.binary_length(cast(Any, rows[name])).fill_null(0) for name in CARRIED)
    return sum((column.to_numpy(zero_copy_only=False) for column in lengths), np.zeros(rows.num_rows, np.int64))


def _equals_previous(ids: Ids) -> npt.NDArray[np.bool_]:
    """Whether each of n ids is the one before it: bool[n]."""
    return np.r_[np.zeros(min(1, len(ids)), bool), (ids[1:] == ids[:-1]).all(axis=1)]


def group(run: Run, partition: int, spilled: Spilled) -> GroupFacts:
    """Sort the survivors of a partition, drop repeated pairs, join the places of images, and cut fetch units."""
    buckets, name, failed_counts = buckets_of(run), f"{partition:05d}", FailedCounts()
    of_kinds = [buckets.bucket(partition, kind) for kind in (OF_SURVIVORS, OF_PLACES)]
    is_held = spilled.size(of_kinds[:1]) <= HELD_BYTES
    with ExitStack() as stack:
        parts = stack.enter_context(parted(spilled, of_kinds, partial(_cut, buckets.partitions)))
        file = stack.enter_context(parquet.writing(GROUPED_SURVIVORS.path(run, name), PLACED_SURVIVOR))
        grouped, repeated = _Grouped(file, pool.enlarged(run)), _Repeated(run, name, stack, is_held=is_held)
        for of_part, (of_survivors, of_places) in parts:
            places = b"".join(part for _, part in of_part.slices([of_places]))
            rows = Sorted(partial(_batches, of_part, of_survivors), of_part.size([of_survivors]))
            kept, dropped = np.flatnonzero(~rows.repeated), np.flatnonzero(rows.repeated)
            grouped.add(rows, kept, in_order(np.frombuffer(places, PLACE)))
            repeated.add(rows, dropped)
            for failed, at in (([], kept), ([DropReason.PAIR_REPEATED], dropped)):
                for number, file_rows in parquet.tally(rows.short.take(at)["file"]):
                    failed_counts.add_rows(Stage.JUDGE, run.source_of(number), failed, file_rows)
        grouped.finish()
        repeated.write()
    return GroupFacts(grouped.groups, **failed_counts.facts())


def _batches(spilled: Spilled, bucket: int) -> Iterator[pa.RecordBatch]:
    for _, messages in spilled.slices([bucket]):
        yield from _read(messages)


def _read(messages: bytes) -> Iterator[pa.RecordBatch]:
    """The survivors in a slice."""
    reader = pa.BufferReader(messages)
    while reader.tell() < len(messages):
        yield pa.ipc.read_record_batch(pa.ipc.read_message(reader), SURVIVOR)


def _cut(partitions: int, kind: int, data: bytes, parts: int) -> Iterator[tuple[int, Any]]:
    """Cut a slice of a partition into parts, by the bits of ids that follow those of the partition."""
    if kind == OF_PLACES:
        places = np.frombuffer(data, PLACE)
        ids = np.ascontiguousarray(places["image_id"]).view(np.uint8).reshape(-1, 16)
        yield from by_part(places, partition_of(ids, partitions * parts) % parts)
        return
    for batch in _read(data):
        ids = arrays.ids_of(pa.chunked_array([batch["image_id"]]))
        for part, rows in by_part(np.arange(batch.num_rows), partition_of(ids, partitions * parts) % parts):
            message: Any = batch.take(rows).serialize()
            yield part, message


class _Repeated:
    """Writes the rows of a partition that repeat a pair: a row group for all, or for each stretch."""

    def __init__(self, run: Run, name: str, stack: ExitStack, *, is_held: bool):
        self._run, self._stack, self._is_held = run, stack, is_held
        self._path = outputs.DROPPED_ROWS[Stage.JUDGE].path(run, f"repeated-{name}")
        self._file: parquet.Writer | None = None
        self._waiting, self._number, self._bytes = list[pa.Table](), 0, 0

    def add(self, rows: Sorted, dropped: Numbers) -> None:
        """Write the full stretches of what has come so far."""
        if not self._run.config.audit.keep_dropped:
            return
        for number, stretch in rows.stretches(dropped, self._bytes, is_held=self._is_held):
            if number > self._number:
                self.write()
            self._number = number
            self._waiting.append(as_dropped(self._run, stretch))
        self._bytes += int(rows.bytes[dropped].sum())

    def write(self) -> None:
        """Write what waits."""
        if self._waiting:
            self._file = self._file or self._stack.enter_context(parquet.writing(self._path, DROPPED))
            self._file.write_row_group(pa.concat_tables(self._waiting).combine_chunks())
            self._waiting = []


def as_dropped(run: Run, rows: pa.Table) -> pa.Table:
    """Survivors that repeat a pair, as rows of `DROPPED`."""
    key, reason = identity.hexed(arrays.ids_of(rows["key"])), DropReason.PAIR_REPEATED.value
    columns = {
        **{column: rows[column] for column in (*STRINGS, "words")},
        "preferences": preferences.of_texts(rows["page_said"]),
        **{"key": key, "image_id": identity.hexed(arrays.ids_of(rows["image_id"])), "kept_key": key},
        **{"source": pool.sources(run, rows["file"]), "stage": Stage.JUDGE.value, "reason": reason},
        "failed": pa.array([[reason]] * len(rows), pa.list_(pa.string())),
    }
    return parquet.table(columns, DROPPED)


class _Grouped:
    """Writes the survivors that are kept with the places of their images: a row group a fetch unit.

    It has so many images, or rows of so many bytes; both are `times` as many in a very large pool. The last one of a
    part of the partition waits for the next part.
    """

    def __init__(self, file: parquet.Writer, times: int):
        self.groups, self._file = list[RowGroup](), file
        self._images, self._bytes = times * IMAGES_PER_UNIT, min(times, BYTES_TIMES_AT_MOST) * UNIT_BYTES
        self._waiting, self._sizes = PLACED_SURVIVOR.empty_table(), np.zeros(0, np.int64)  # bytes of each image

    def add(self, rows: Sorted, kept: Numbers, places: npt.NDArray[np.void]) -> None:
        """Add rows, of which `places` (`PLACE`) are sorted, and write the fetch units that are full."""
        ids = arrays.ids_of(rows.short["image_id"])[kept]
        place, has_place = first_of_each(places, as_bytes(ids))
        first_rows = np.append(np.flatnonzero(~_equals_previous(ids)), len(kept))
        before = np.concatenate([[0], np.cumsum(rows.bytes[kept])])[first_rows]
        waiting, self._sizes = len(self._sizes), np.concatenate([self._sizes, np.diff(before)])
        before, first = np.concatenate([[0], np.cumsum(self._sizes)]), 0
        while first < len(self._sizes):
            within = int(np.searchsorted(before, before[first] + self._bytes, side="right")) - 1
            last = min(max(within, first + 1), first + self._images, len(self._sizes))
            begin, end = first_rows[[max(0, first - waiting), last - waiting]].tolist()
            of_group = rows.take(kept[begin:end])
            for field in ("file", "kind", "offset", "length"):
                of_schema = PLACED_SURVIVOR.field(f"place_{field}")
                values = place[field][begin:end].astype(np.int64)
                column = pa.array(values, of_schema.type, mask=~has_place[begin:end])
                of_group = of_group.append_column(of_schema, column)
            if len(self._waiting):
                of_group = pa.concat_tables([self._waiting, of_group]).combine_chunks()
            self._waiting = of_group
            if last == len(self._sizes):
                break
            self._write(last - first)
            first = last
        self._sizes = self._sizes[first:]

    def _write(self, images: int) -> None:
        self._file.write_row_group(self._waiting)
        self.groups.append({"rows": len(self._waiting), "images": images})
        self._waiting = PLACED_SURVIVOR.empty_table()

    def finish(self) -> None:
        """Write the last fetch unit."""
        if len(self._sizes):
            self._write(len(self._sizes))
