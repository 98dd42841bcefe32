"""The list of the chosen samples' keys, where no shards are to be made.

OUT/keys.parquet has key and shard, in the order of image_id and key; OUT/keys.json says what it was made of.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from altalign import storage, terminal
from altalign.data.counts import Counts
from altalign.machine import interrupts
from altalign.pipelines.derive import units
from altalign.pipelines.derive.parents import Parent, of_unit
from altalign.pipelines.run.shard_tables import CHOSEN, CHOSEN_ROWS
from altalign.pipelines.run.units import Run
from altalign.storage import parquet

FILE = "keys.parquet"
KEYS = pa.schema(
    [
        ("key", pa.string()),  # The sample.
        ("shard", pa.string()),  # The name of its shard, without an ending.
    ]
)


def conclude(run: Run, parents: Sequence[Parent], counts: Counts, lineage: dict[str, Any]) -> None:
    """Write keys, counts, and what they are of last."""
    pairs = 0
    with storage.noted() as block, parquet.writing(run.path(FILE), KEYS) as file:
        for name in run.finished(CHOSEN.step):
            interrupts.check()
            rows = units.shards_of(*of_unit(parents, name)).take(CHOSEN_ROWS.array(run, name))
            file.write(rows.cast(KEYS))
            pairs += len(rows)
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
