"""What a run that grows takes from the partitions of the smaller one: these were merged, and are not merged again."""

from typing import NamedTuple

import numpy as np

from altalign import storage
from altalign.data import listing
from altalign.dedup.merge import CountHistogram, Entries
from altalign.errors import UnreadableError
from altalign.pipelines.run import marks
from altalign.pipelines.run.sampled import Grown, has_work
from altalign.pipelines.run.tables.counted import COUNTED, MERGED, MergeFacts, entries
from altalign.pipelines.run.units import Run


class Before(NamedTuple):
    """A partition as the smaller run has merged it, and how many units of the pool that run has."""

    units: int
    run: Run
    name: str
    facts: MergeFacts

    def entries(self, kind: str) -> Entries:
        """What was merged, of a kind of table."""
        found, histogram = entries(self.run, self.name, kind), CountHistogram.from_json(getattr(self.facts, kind))
        return found[:, 0], found[:, 1].astype(np.int64), histogram


def of_partition(run: Run, name: str, partitions: int) -> Before | None:
    """A partition of the smaller run; None where there is none, or none that is whole or cut alike."""
    if not isinstance(run, Grown):
        return None
    before = Run(run.before, run.config, run.files)
    if not has_work(before) or len(before.finished(MERGED.step)) != partitions:
        return None
    try:
        said = storage.read_sealed(before.mark(MERGED.step, name))
    except UnreadableError:
        return None
    if not said or listing.differences(before.folder, marks.named(said), sizes_alone=storage.is_remote(run.before)):
        return None
    return Before(len(before.finished(COUNTED.step)), before, name, MergeFacts.from_json(said))
