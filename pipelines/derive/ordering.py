"""The shards of several runs in one order, that of image_id and key: which rows of which run each has.

64 bytes a sample are in memory, twice while they are sorted.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from altalign.errors import UnreadableError
from altalign.machine import interrupts
from altalign.pipelines.derive.copying import Slice
from altalign.pipelines.derive.parents import Parent, of_unit
from altalign.pipelines.files import parquet
from altalign.pipelines.run.artefacts.derived import Chosen
from altalign.pipelines.run.units import Run

Places = npt.NDArray[np.bytes_]  # S64[n]: image_id and key


def filled(run: Run, parents: Sequence[Parent], kept: Sequence[tuple[str, int]], per_shard: int) -> list[list[Slice]]:
    """The chosen rows (units and how many, parent after parent) in shards of exactly `per_shard`, in one order.

    Raises:
        UnreadableError: the shards of a parent are not in that order.
    """
    of_parents = [[unit for unit in kept if unit[0].startswith(f"{number:03d}-")] for number in range(len(parents))]
    places = [_places(run, parents, units) for units in of_parents]
    for parent, of in zip(parents, places, strict=True):
        if (of[1:] < of[:-1]).any():
            raise UnreadableError(f"{parent.folder}: its samples are not in the order of image_id and key")
    owner = np.repeat(np.arange(len(parents)), [len(of) for of in places])
    owner = owner[np.argsort(np.concatenate(places), kind="stable")]
    ends = np.append(np.arange(per_shard, len(owner), per_shard), len(owner)) if len(owner) else np.zeros(0, np.int64)
    shards = list[list[Slice]]([[] for _ in ends])
    for number, units in enumerate(of_parents):
        before = np.concatenate([[0], np.cumsum(owner == number)])[ends].tolist()
        for shard, (begin, end) in zip(shards, zip([0, *before[:-1]], before, strict=True), strict=True):
            shard += _slices(units, begin, end)
    return shards


def _places(run: Run, parents: Sequence[Parent], units: Sequence[tuple[str, int]]) -> Places:
    found = [np.zeros(0, "S64")]
    for name, _ in units:
        interrupts.check()
        parent, shard = of_unit(parents, name)
        rows = parquet.read_table(parent.path("shards", f"{shard.name}.parquet"), ["image_id", "key"])
        ids, keys = (parquet.values(rows.take(Chosen(run, name).rows()), column) for column in ("image_id", "key"))
        found.append(np.array([image_id + key for image_id, key in zip(ids, keys, strict=True)], "S64"))
    return np.concatenate(found)


def _slices(units: Sequence[tuple[str, int]], begin: int, end: int) -> Iterator[Slice]:
    """The rows `begin` to `end` of all that is chosen of a run, unit by unit."""
    before = 0
    for name, rows in units:
        first, last = max(begin, before), min(end, before + rows)
        if first < last:
            yield Slice(name, first - before, last - before)
        before += rows
