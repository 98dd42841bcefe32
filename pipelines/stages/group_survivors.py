"""Groups the survivors of `judge` by image: drops repeated pairs, and finds where each image is.

What it writes is sorted by (image_id, key), one row group a fetch unit.
"""

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.data.counts import FailedCounts
from altalign.data.reasons import DropReason, Stage
from altalign.data.schema import DROPPED, STRINGS
from altalign.filters import identity
from altalign.pipelines.engine.spilled_groups import Groups, Spilled
from altalign.pipelines.run import outputs, pool
from altalign.pipelines.run.image_places import PLACE, as_bytes, first_of_each, in_order
from altalign.pipelines.run.text_tables import GROUPED_SURVIVORS, PLACED_SURVIVOR, SURVIVOR, GroupFacts, RowGroup
from altalign.pipelines.run.units import IMAGES_PER_UNIT, Run
from altalign.storage import arrays, parquet

ROWS_PER_PARTITION = 200_000
UNIT_BYTES = 32 << 20  # of the texts of a fetch unit, but for those of its last image
OF_SURVIVORS, OF_PLACES = range(2)  # kinds of slices

Ids = npt.NDArray[np.uint8]  # uint8[n, 16]
Numbers = npt.NDArray[np.int64]  # int64[n]


def buckets_of(run: Run) -> Groups:
    """The buckets of a file of survivors or of places; the size of the pool alone decides how many partitions."""
    return Groups(pool.partitions(run, ROWS_PER_PARTITION, at_least=8, at_most=4096), kinds=2)


def partition_of(ids: Ids, count: int) -> Numbers:
    """Which of so many partitions each id is in, int64[n]: by its first 16 bits, so that partitions are in order."""
    return (ids[:, 0].astype(np.int64) * 256 + ids[:, 1]) * count >> 16


def in_one_order(rows: pa.Table) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
    """Survivors in the order of image, key, page and place in the input; whether each repeats the pair before it."""
    by: Any = [(name, "ascending", "at_start") for name in ("image_id", "key", "page_url", "file", "row")]
    rows = rows.take(pc.sort_indices(rows, by)).combine_chunks()
    return rows, _equals_previous(arrays.ids_of(rows["key"]))


def _equals_previous(ids: Ids) -> npt.NDArray[np.bool_]:
    """Whether each of n ids is the one before it: bool[n]."""
    return np.r_[np.zeros(min(1, len(ids)), bool), (ids[1:] == ids[:-1]).all(axis=1)]


def group(run: Run, partition: int, spilled: Spilled) -> GroupFacts:
    """Sort the survivors of a partition, drop repeated pairs, join the places of images, and cut fetch units."""
    buckets, name = buckets_of(run), f"{partition:05d}"
    places = b"".join(part for _, part in spilled.slices([buckets.bucket(partition, OF_PLACES)]))
    rows, is_repeated = in_one_order(_survivors(spilled, buckets.bucket(partition, OF_SURVIVORS)))
    kept, dropped = rows, rows.slice(0, 0)
    if is_repeated.any():
        kept, dropped = (rows.filter(pa.array(which)).combine_chunks() for which in (~is_repeated, is_repeated))
    if run.config.audit.keep_dropped and len(dropped):
        with parquet.writing(outputs.DROPPED_ROWS[Stage.JUDGE].path(run, f"repeated-{name}"), DROPPED) as file:
            file.write_row_group(as_dropped(run, dropped))
    groups = _write_grouped(run, name, kept, in_order(np.frombuffer(places, PLACE)))
    failed_counts = FailedCounts()
    for failed, part in (([], kept), ([DropReason.PAIR_REPEATED], dropped)):
        for file, file_rows in parquet.tally(part["file"]):
            failed_counts.add_rows(Stage.JUDGE, run.source_of(file), failed, file_rows)
    return GroupFacts(groups, **failed_counts.facts())


def _survivors(spilled: Spilled, bucket: int) -> pa.Table:
    batches = list[pa.RecordBatch]()
    for _, messages in spilled.slices([bucket]):
        reader = pa.BufferReader(messages)
        while reader.tell() < len(messages):
            batches.append(pa.ipc.read_record_batch(pa.ipc.read_message(reader), SURVIVOR))
    return pa.Table.from_batches(batches, SURVIVOR)


def as_dropped(run: Run, rows: pa.Table) -> pa.Table:
    """Survivors that repeat a pair, as rows of `DROPPED`."""
    key, reason = identity.hexed(arrays.ids_of(rows["key"])), DropReason.PAIR_REPEATED.value
    columns = {
        **{column: rows[column] for column in (*STRINGS, "words")},
        **{"key": key, "image_id": identity.hexed(arrays.ids_of(rows["image_id"])), "kept_key": key},
        **{"source": pool.sources(run, rows["file"]), "stage": Stage.JUDGE.value, "reason": reason},
        "failed": pa.array([[reason]] * len(rows), pa.list_(pa.string())),
    }
    return parquet.table(columns, DROPPED)


def _write_grouped(run: Run, name: str, kept: pa.Table, places: npt.NDArray[np.void]) -> list[RowGroup]:
    """Write the survivors that are kept with the places of their images, of which `places` (`PLACE`) are sorted.

    A row group has so many images, or rows of so many bytes.
    """
    ids = arrays.ids_of(kept["image_id"])
    place, has_place = first_of_each(places, as_bytes(ids))
    first_rows = np.append(np.flatnonzero(~_equals_previous(ids)), len(kept))
    lengths: Any = (pc.binary_length(cast(Any, kept[column])).fill_null(0) for column in STRINGS)
    sizes = sum((column.to_numpy().astype(np.int64) for column in lengths), np.zeros(len(kept), np.int64))
    bytes_before = np.concatenate([[0], np.cumsum(sizes)])[first_rows]
    images, first, groups = len(first_rows) - 1, 0, list[RowGroup]()
    with parquet.writing(GROUPED_SURVIVORS.path(run, name), PLACED_SURVIVOR) as file:
        while first < images:
            within = int(np.searchsorted(bytes_before, bytes_before[first] + UNIT_BYTES, side="right")) - 1
            last = min(max(within, first + 1), first + IMAGES_PER_UNIT, images)
            begin, end = first_rows[[first, last]].tolist()
            of_group = kept.slice(begin, end - begin)
            for field in ("file", "kind", "offset", "length"):
                of_schema = PLACED_SURVIVOR.field(f"place_{field}")
                values = place[field][begin:end].astype(np.int64)
                column = pa.array(values, of_schema.type, mask=~has_place[begin:end])
                of_group = of_group.append_column(of_schema, column)
            file.write_row_group(of_group)
            groups.append({"rows": end - begin, "images": last - first})
            first = last
    return groups
