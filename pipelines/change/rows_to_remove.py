"""Finds what is to go: rows of shards, rows that were dropped, and how many images that leaves."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.reasons import DropReason, Stage
from altalign.data.schema import DROPPED
from altalign.machine import interrupts
from altalign.machine.cores import cores
from altalign.machine.threads import in_threads
from altalign.pipelines.derive.parents import Parent, Shard
from altalign.pipelines.run.removal_list import COLUMNS, Request
from altalign.storage import parquet

_OF_SHARDS = [*COLUMNS, "source", "caption"]
_OF_NEAR = ("similarity", "test_set", "test_image")
_OF_DROPPED = [*(name for name in COLUMNS if name in DROPPED.names), "source", "caption", "stage", "reason", "kept_key"]
_OF_DROPPED += _OF_NEAR
_IN_STORE = 16  # requests at a time


class InShard(NamedTuple):
    """The rows of a shard that go: their numbers, and some columns."""

    shard: Shard
    numbers: npt.NDArray[np.int64]  # rising
    rows: pa.Table


class InDropped(NamedTuple):
    """The rows of a file of `dropped/` that go; and whether others name one of these as what was kept instead."""

    name: str  # path in the run
    rows: pa.Table


def at_once(folder: str, *, in_store: int = _IN_STORE) -> int:
    """How many files of a run are worked on at a time; in a store fewer where each has much of them in memory."""
    return in_store if storage.is_remote(folder) else cores()


def in_shards(parent: Parent, request: Request) -> list[InShard]:
    """The rows of all shards that match; shards without any are left out."""

    def look(shard: Shard) -> InShard:
        rows = parquet.read_table(parent.path("shards", f"{shard.name}.parquet"), _OF_SHARDS)
        numbers = np.flatnonzero(request.matches(rows))
        return InShard(shard, numbers, rows.take(numbers))

    found = in_threads(look, parent.shards, at_once(parent.folder))
    return [each for each in found if len(each.numbers)]


def in_dropped(folder: str, request: Request, keys: frozenset[str]) -> list[InDropped]:
    """The dropped rows that match, by file; files that only name one of `keys` as kept instead have no such rows."""
    gone = Request(keys=keys)

    def look(name: str) -> InDropped | None:
        rows = parquet.read_table(storage.join(folder, *name.split("/")), _OF_DROPPED)
        matching = rows.filter(pa.array(request.matches(rows)))
        points = gone.matches(rows.select(["kept_key"]).rename_columns(["key"])).any()
        return InDropped(name, matching) if len(matching) or points else None

    found = in_threads(look, list(dropped_files(folder)), at_once(folder))
    return [each for each in found if each is not None]


def copies(folder: str, above: float) -> pa.Table:
    """The dropped rows whose image is nearer than this to one that was kept: `kept_key` is a pair of that one.

    Those that other images connect with it have no cosine, and count as near.
    """
    found = [parquet.read_table(storage.join(folder, *name.split("/")), _OF_DROPPED) for name in dropped_files(folder)]
    of = pc.field("reason") == DropReason.NEAR_DUPLICATE_IN_POOL.value
    is_near = of & (pc.field("similarity").is_null() | (pc.field("similarity") > above))
    return pa.concat_tables([DROPPED.empty_table().select(_OF_DROPPED), *(rows.filter(is_near) for rows in found)])


def copied_tests(found: Sequence[InDropped]) -> frozenset[tuple[str, str]]:
    """Set and name of the test images that have the bytes of what goes: their pictures are its pictures."""
    rows = [row for each in found for row in each.rows.select(_OF_NEAR).to_pylist()]
    return frozenset((row["test_set"], row["test_image"]) for row in rows if row["test_set"] and row["similarity"] == 1)


def dropped_files(folder: str) -> Iterator[str]:
    """Paths of all files of dropped rows, in the run."""
    for stage in Stage:
        for name in storage.names(storage.join(folder, "dropped", stage.value), ".parquet"):
            yield f"dropped/{stage.value}/{name}"


def together(in_shards: Sequence[InShard], in_dropped: Sequence[InDropped]) -> pa.Table:
    """All rows that go, with `COLUMNS`, sources and captions; of dropped rows the digests are null."""
    schema = pa.schema([pa.field(name, pa.string()) for name in (*COLUMNS, "source", "caption")])
    tables = [schema.empty_table()]
    for each in (*in_shards, *in_dropped):
        there = {name: each.rows[name] for name in schema.names if name in each.rows.column_names}
        tables.append(parquet.table(there, schema))
    return pa.concat_tables(tables)


class ImagesGone(NamedTuple):
    """The images that leave the shards altogether: their ids, and how many of each source; None: of any source."""

    image_ids: frozenset[str]
    by_source: Counter[str | None]


def images_gone(parent: Parent, found: Sequence[InShard]) -> ImagesGone:
    """Which images no shard has any more."""
    going = Counter(pair for each in found for pair in _images_of_sources(each.rows))
    images = pa.array(sorted({image for image, _ in going}), pa.string())

    def look(shard: Shard) -> Counter[tuple[str, str]]:
        interrupts.check()
        rows = parquet.read_table(parent.path("shards", f"{shard.name}.parquet"), ["image_id", "source"])
        return Counter(_images_of_sources(rows.filter(pc.is_in(rows["image_id"], value_set=images))))

    left = Counter[tuple[str, str]]()
    for counted in in_threads(look, parent.shards, at_once(parent.folder)) if going else ():
        left.update(counted)
    left -= going
    by_source = Counter[str | None](source for _, source in going.keys() - left.keys())
    gone = frozenset(image for image, _ in going) - {image for image, _ in left}
    by_source[None] = len(gone)
    return ImagesGone(gone, by_source)


def _images_of_sources(rows: pa.Table) -> Iterator[tuple[str, str]]:
    return zip(*(parquet.values(rows, name) for name in ("image_id", "source")), strict=True)
