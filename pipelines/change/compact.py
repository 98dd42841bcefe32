"""`altalign merge RUN`: the shards of all generations become those of one, as one run over all the input has them.

A tar depends on its samples alone, so it is enough to bring these into one order and to cut it as `write` does
(`ordering.as_one`). Images are copied.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from altalign import storage
from altalign.data import generations, scores
from altalign.data.counts import Counts
from altalign.data.stages import REPORT
from altalign.errors import UsageError
from altalign.machine.threads import in_threads
from altalign.pipelines.change import rows_to_remove
from altalign.pipelines.change.conclude import conclude, lineage, write_funnel
from altalign.pipelines.derive import copy_shards, counting, ordering, units
from altalign.pipelines.derive.copy_scores import values_of
from altalign.pipelines.derive.parents import Parent
from altalign.pipelines.run import score_files
from altalign.pipelines.run.tables.scored import ScoreFacts
from altalign.pipelines.run.tables.written import ShardFacts
from altalign.pipelines.run.units import Run
from altalign.storage import parquet
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
    followed = [_whole(parent, score) for score in scores.all_of(run.folder)]
    full, change = ordering.as_one(parent), Change(run.folder, durable=run.config.run.durable)

    def make(number: int) -> ShardFacts:
        pieces = full.units[number]
        parts = units.parts_of(full, pieces, np.arange(sum(of.end - of.begin for of in pieces)))
        with change.noted():
            return copy_shards.copied(change.path("shards"), generations.named(1, number), parts)

    made = in_threads(make, list(range(len(full.units))), rows_to_remove.at_once(run.folder))
    shards = [(generations.named(1, number), facts) for number, facts in enumerate(made)]
    deleted = [*_GO, *(f"shards/{shard.name}.{ending}" for shard in parent.shards for ending in ("tar", "parquet"))]
    deleted += _scores(change, full, followed, shards)
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


# Scores --------------------------------------------------------------------------------------------------------------


def _whole(parent: Parent, score: scores.Score) -> scores.Score:
    """A score that has a value of every shard.

    Raises:
        UsageError: it lacks some.
    """
    if missing := next((shard for shard in parent.shards if not score.has(shard.name, shard.parquet_sha256)), None):
        raise UsageError(
            f"{score.folder}: has no values of shard {missing.name}; measure them with `altalign score`, or delete it"
        )
    return score


def _scores(
    change: Change,
    parent: Parent,
    followed: Sequence[scores.Score],
    shards: Sequence[tuple[str, ShardFacts]],
) -> list[str]:
    """Write the values of scores in the order of the new shards; returns the files that go."""
    deleted = list[str]()
    for score in followed:
        entries = list[dict[str, Any]]()
        for (name, facts), pieces in zip(shards, parent.units, strict=True):
            table = units.rows_of(parent, pieces, partial(values_of, score)).combine_chunks()
            path = score_files.inside(score.name, name)
            with change.noted():
                parquet.write(change.path(path), table, table.schema)
            nulls = {score.name: {column: table[column].null_count for column in score.columns}}
            of = ScoreFacts(of=facts.parquet_sha256, rows=facts.rows, nulls=nulls)
            entries.append({"name": name, **score_files.entry(of, score.name, change.files[path])})
        with change.noted():
            path = change.path(f"{scores.FOLDER}/{score.name}/manifest.json")
            storage.write_sealed(path, scores.manifest(score.facts, entries))
        deleted += [score_files.inside(score.name, shard.name) for shard in parent.shards]
    return deleted
