"""`altalign merge RUN`: the shards of all generations become those of one, as one run over all the input has them.

A tar depends on its samples alone, so it is enough to bring these into one order and to cut it as `write` does
(`ordering.as_one`). Images are copied.
"""

from collections import Counter

import numpy as np
import pyarrow as pa

from altalign import storage
from altalign.data import generations, scores
from altalign.data.counts import Counts
from altalign.data.scores import Score
from altalign.data.stages import REPORT
from altalign.errors import UsageError
from altalign.machine.threads import in_threads
from altalign.pipelines.change import rows_to_remove
from altalign.pipelines.change.conclude import conclude, lineage, write_funnel
from altalign.pipelines.change.follow_scores import follow
from altalign.pipelines.derive import copy_shards, counting, ordering, units
from altalign.pipelines.derive.parents import Parent
from altalign.pipelines.run.shard_tables import ShardFacts
from altalign.pipelines.run.units import Run
from altalign.storage.atomic_change import Change

_GO = ("clusters", *REPORT)  # rest on the shards as they were


def compact(run: Run, parent: Parent) -> int | None:
    """Write all shards anew, and have them come at once; the caller holds the run's lock.

    Returns:
        How many shards there are; None where the run is as it would become.
    """
    per_shard = run.config.shards.samples_per_shard
    if _is_one(run, parent, per_shard):
        return None
    for score in scores.all_of(run.folder):
        _check_whole(parent, score)
    full, change = ordering.as_one(parent), Change(run.folder, durable=run.config.run.durable)

    def make(number: int) -> ShardFacts:
        pieces = full.units[number]
        parts = units.parts_of(full, pieces, np.arange(sum(of.end - of.begin for of in pieces)))
        with change.noted():
            return copy_shards.copied(change.path("shards"), generations.named(1, number), parts)

    made = in_threads(make, list(range(len(full.units))), rows_to_remove.at_once(run.folder))
    shards = [(generations.named(1, number), facts) for number, facts in enumerate(made)]
    deleted = [*_GO, *(f"shards/{shard.name}.{ending}" for shard in parent.shards for ending in ("tar", "parquet"))]
    pieces_of = {name: pieces for (name, _), pieces in zip(shards, full.units, strict=True)}

    def values(score: Score, name: str) -> pa.Table:
        return units.rows_of(full, pieces_of[name], lambda shard: score.values(shard.name)).combine_chunks()

    deleted += follow(change, shards, {*pieces_of, *(shard.name for shard in parent.shards)}, values)
    size, of_sources = sum(of.bytes for of in made), Counter[str]()
    for of in made:
        of_sources.update(of.source_bytes)
    write_funnel(run, change, lambda row: row.update(bytes=of_sources[row["source"]] if row["source"] else size))
    counts, facts = Counts.from_json(counting.rows(parent)), storage.read_json(run.path("summary.json"))
    said = {"lineage": lineage(parent, "compact", {"shards": len(shards)})}
    conclude(run, change, shards, deleted, counts=counts, facts={**facts, "bytes": size}, more=said)
    change.commit(deleted)
    return len(shards)


def _is_one(run: Run, parent: Parent, per_shard: int) -> bool:
    """Whether all shards have the names and sizes that one run gives them."""
    said = storage.read_json(run.path("manifest.json"))
    full = [shard.rows == per_shard for shard in parent.shards[:-1]]
    names = [shard.name == generations.named(1, number) for number, shard in enumerate(parent.shards)]
    return generations.in_manifest(said) == 1 and all(full) and all(names)


def _check_whole(parent: Parent, score: Score) -> None:
    """Refuse a score that lacks values.

    Raises:
        UsageError: naming a shard.
    """
    if missing := next((shard for shard in parent.shards if not score.has(shard.name, shard.parquet_sha256)), None):
        raise UsageError(
            f"{score.folder}: has no values of shard {missing.name}; measure them with `altalign score`, or delete it"
        )
