"""What becomes of a run's shards when its input has grown: which stay as they are, and what a new generation holds.

A sample stays where it is when the larger pool keeps it with the same columns and the same bytes. Shards all of whose
samples stay are not touched. The others are written anew without those that go. What is kept and has no place yet comes
into shards of a new generation, in the order of (image_id, key) among itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.data import generations
from altalign.data.schema import SAMPLE
from altalign.machine import interrupts
from altalign.machine.threads import in_threads
from altalign.pipelines.change import remove, rows_to_remove
from altalign.pipelines.derive import copy_shards
from altalign.pipelines.derive.copy_shards import Part
from altalign.pipelines.derive.parents import Parent, Shard
from altalign.pipelines.images.for_shards import StoredColumns
from altalign.pipelines.run.image_tables import DECONTAMINATED, first_of_each_image, kept_rows
from altalign.pipelines.run.shard_tables import ShardFacts, files_of
from altalign.pipelines.run.units import Run
from altalign.pipelines.stages import write
from altalign.storage import Written, parquet

Numbers = npt.NDArray[np.int64]  # rising numbers of rows
Mask = npt.NDArray[np.bool_]  # a row each

# what follows from the bytes that were found and from settings, or from the place in a tar
_FOLLOWS = {*StoredColumns.__annotations__, "tar_offset", "tar_bytes"}
_COMPARED = [name for name in SAMPLE.names if name not in _FOLLOWS]
_AT_ONCE = 8  # side-cars in memory: a fetch unit lies in a few shards of each generation


@dataclass(frozen=True)
class Compared:
    """Samples of a larger pool against shards that are there.

    Attributes:
        stay: by shard, which rows stay.
        fresh: by fetch unit, in order, the numbers of its kept rows that have no place yet.
        images: how many images the pool keeps.
    """

    stay: Mapping[str, Mask]
    fresh: Mapping[str, Numbers]
    images: int


@dataclass(frozen=True)
class Placed:
    """The shards of a run after an addition, in order, and the files of all of them by their paths in the run."""

    shards: list[tuple[str, ShardFacts]]
    files: dict[str, Written]


def compared(run: Run, parent: Parent) -> Compared:
    """Compare what `run` keeps, whose decontamination is done, with the shards of the run that it has grown from."""
    ends = {shard.name: _ends(parent, shard) for shard in parent.shards}
    stay = {shard.name: np.zeros(shard.rows, bool) for shard in parent.shards}
    fresh, images = dict[str, Numbers](), 0

    @lru_cache(maxsize=_AT_ONCE)
    def side_car(name: str) -> pa.Table:
        return parquet.read_table(parent.path("shards", f"{name}.parquet")).select(_COMPARED).combine_chunks()

    for name, facts in run.all_facts(DECONTAMINATED):
        if not facts.kept:
            continue
        interrupts.check()
        rows = kept_rows(run, name).select(_COMPARED).combine_chunks()
        images += len(first_of_each_image(rows))
        first, last = str(rows["image_id"][0]), str(rows["image_id"][-1])
        is_fresh = np.ones(len(rows), bool)
        for shard, (begin, end) in ends.items():
            if begin <= last and first <= end:
                here, there = parquet.same_rows(rows, side_car(shard), by="key")
                is_fresh[here] = False
                stay[shard][there] = True
        if is_fresh.any():
            fresh[name] = np.flatnonzero(is_fresh)
    return Compared(stay, fresh, images)


def _ends(parent: Parent, shard: Shard) -> tuple[str, str]:
    """The first and the last image of a shard."""
    ids = parquet.read_table(parent.path("shards", f"{shard.name}.parquet"), ["image_id"])["image_id"]
    return str(ids[0]), str(ids[-1])


def written(run: Run, parent: Parent, found: Compared, generation: int) -> Placed:
    """Have all shards in `run`: the others written, and of those that are as they were the side-cars, as links."""
    kept = {shard: found.stay[shard.name] for shard in parent.shards if found.stay[shard.name].any()}
    of_old = in_threads(
        lambda shard: _old(run, parent, shard, kept[shard]), list(kept), rows_to_remove.at_once(run.folder)
    )
    units = [(name, len(numbers)) for name, numbers in found.fresh.items()]
    plan = copy_shards.filled(units, run.config.shards.samples_per_shard)
    names = [generations.named(generation, number) for number in range(len(plan))]

    def new(number: int) -> ShardFacts:
        parts = ((of.name, found.fresh[of.name][of.begin : of.end]) for of in plan[number])
        return write.write_rows(run, names[number], parts)

    of_new = [new(number) for number in range(len(plan))]  # each makes its images in threads
    shards = [*((shard.name, of) for shard, of in zip(kept, of_old, strict=True)), *zip(names, of_new, strict=True)]
    return Placed(shards, {path: of for name, facts in shards for path, of in files_of(name, facts)})


def _old(run: Run, parent: Parent, shard: Shard, stay: Mask) -> ShardFacts:
    """A shard of before: as it was, or without the samples that go."""
    if not stay.all():
        part = Part(parent.path("shards"), shard.name, np.flatnonzero(stay))
        return copy_shards.copied(run.path("shards"), shard.name, [[part]])
    name = f"{shard.name}.parquet"
    storage.link(parent.path("shards", name), run.path("shards", name))
    size = storage.stamp(run.path("shards", name)).size
    facts = remove.as_it_is(shard)
    return ShardFacts(
        **{**vars(facts), "parquet_bytes": size, "source_bytes": dict(remove.source_bytes(parent, shard))}
    )
