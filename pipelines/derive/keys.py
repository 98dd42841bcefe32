"""The list of the chosen samples' keys, where no shards are to be made.

OUT/keys.parquet has key and shard, in the order of the parents' shards; OUT/keys.json says what it was made of.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage, terminal
from altalign.data.counts import Counts
from altalign.pipelines.derive.parents import Parent, Shard
from altalign.pipelines.run.tables.derived import LISTED, LISTED_KEYS, ListedFacts, ShardsOfParent
from altalign.pipelines.run.units import Run
from altalign.storage import parquet

FILE = "keys.parquet"
KEYS = pa.schema(
    [
        ("key", pa.string()),  # The sample.
        ("shard", pa.string()),  # The name of its shard, without an ending.
    ]
)


ROWS_PER_UNIT = 100_000  # about: a mark, and what an engine does for a unit, cost as much as a shard's verdicts


def plan(parent: Parent, _run: Run) -> list[ShardsOfParent]:
    """Units of shards that follow one another."""
    units, first, rows = list[ShardsOfParent](), 0, 0
    for end, shard in enumerate(parent.shards, start=1):
        rows += shard.rows
        if rows >= ROWS_PER_UNIT or end == len(parent.shards):
            units.append(ShardsOfParent(name=f"{first:05d}-{end:05d}", first=first, end=end, rows=rows))
            first, rows = end, 0
    return units


def conclude(run: Run, parent: Parent, counts: Counts, lineage: dict[str, Any]) -> None:
    """Write keys, counts, and what they are of last."""
    pairs = 0
    with storage.noted() as block, parquet.writing(run.path(FILE), KEYS) as file:
        for name, facts in run.all_facts(LISTED):
            file.write(_rows(LISTED_KEYS.array(run, name), facts, parent.shards[int(name.split("-")[0]) :]))
            pairs += facts.kept
    with storage.noted() as of_counts:
        parquet.write(run.path("counts.parquet"), counts.to_arrow(), counts.to_arrow().schema)
    if run.config.run.durable:
        storage.sync(block)
        storage.sync(of_counts)
    stages = counts.summary(counts.stages_of_run())
    stated = {"pairs": pairs, "stages": stages, "lineage": lineage}
    storage.write_sealed(run.path("keys.json"), stated, durable=run.config.run.durable)
    said = f"{terminal.shown(run.path(FILE))}: the keys of {pairs:,} pairs"
    terminal.stdout().print(said, highlight=False, soft_wrap=True)


def _rows(digits: npt.NDArray[np.uint8], facts: ListedFacts, shards: Sequence[Shard]) -> pa.Table:
    """The rows of a unit: keys, and the names of their shards."""
    ends = np.arange(0, 32 * facts.kept + 1, 32, dtype=np.int32)
    keys = pa.StringArray.from_buffers(facts.kept, pa.py_buffer(ends.data), pa.py_buffer(digits.data))
    of = [pa.repeat(pa.scalar(shard.name), rows) for shard, rows in zip(shards, facts.of_shards, strict=False)]
    return pa.table([keys, pa.chunked_array(of, pa.string())], schema=KEYS)
