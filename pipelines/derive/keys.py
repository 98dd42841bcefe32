"""The list of the chosen samples' keys, where no shards are to be made.

OUT/keys.parquet has key and shard, in the order of the parents' shards; OUT/keys.json says what it was made of.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from altalign import storage
from altalign.counts import Counts
from altalign.pipelines.derive.parents import Parent, of_unit
from altalign.pipelines.files import parquet
from altalign.pipelines.run.artefacts.derived import Chosen, ChosenFacts
from altalign.pipelines.run.units import Run

FILE = "keys.parquet"
KEYS = pa.schema(
    [
        ("key", pa.string()),  # The sample.
        ("shard", pa.string()),  # The name of its shard, without an ending.
    ]
)


def conclude(
    run: Run,
    parents: Sequence[Parent],
    chosen: Sequence[tuple[str, ChosenFacts]],
    counts: Counts,
    lineage: dict[str, Any],
) -> None:
    """Write keys, counts, and what they are of last."""
    pairs = sum(facts.kept for _, facts in chosen)
    with storage.noted() as block, parquet.writing(run.path(FILE), KEYS) as file:
        for name, _ in chosen:
            parent, shard = of_unit(parents, name)
            sidecar = parquet.read_table(parent.path("shards", f"{shard.name}.parquet"), ["key"])
            keys = sidecar["key"].take(Chosen(run, name).rows())
            file.write(pa.table([keys, pa.repeat(pa.scalar(shard.name), len(keys))], schema=KEYS))
    with storage.noted() as of_counts:
        parquet.write(run.path("counts.parquet"), counts.to_arrow(), counts.to_arrow().schema)
    if run.config.run.durable:
        storage.sync(block)
        storage.sync(of_counts)
    stages = counts.summary(counts.stages_of_run())
    stated = {"pairs": pairs, "stages": stages, "lineage": lineage}
    storage.write_sealed(run.path("keys.json"), stated, durable=run.config.run.durable)
