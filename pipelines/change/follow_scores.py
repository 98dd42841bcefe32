"""Scores of shards that a change writes anew: the values of samples that stay follow, and no others are there."""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import pyarrow as pa

from altalign import storage
from altalign.data import scores
from altalign.data.scores import Score
from altalign.pipelines.derive.copy_shards import Numbers
from altalign.pipelines.derive.parents import Shard
from altalign.pipelines.run import shard_files
from altalign.pipelines.run.shard_tables import ScoreFacts, ShardFacts
from altalign.storage.atomic_change import Change

AfterChange = Sequence[tuple[str, ShardFacts | Shard]]  # the shards that a run has then, in order


def follow(
    change: Change, shards: AfterChange, changed: Set[str], values: Callable[[Score, str], pa.Table | None]
) -> list[str]:
    """Write the scores of shards that are not as they were, and the manifests; returns paths of files that go.

    Args:
        change: of the run.
        shards: by their names.
        changed: names of shards of before that are another one now, or none.
        values: of a score, key and columns of the samples of a new shard in order; None where they are not known.
    """
    of_changed = {f"{name}.parquet" for name in changed}
    for score in scores.all_of(change.run_folder):
        entries = list[Any]()
        for name, of in shards:
            if name in score.files and name not in changed:
                entries.append(score.files[name])
            elif (table := values(score, name)) is not None:
                path = shard_files.score_path(score.name, name)
                with change.noted():
                    nulls = shard_files.write_score(change.path(path), table)
                facts = ScoreFacts(of=of.parquet_sha256, rows=of.rows, nulls={score.name: nulls})
                entries.append({"name": name, **shard_files.score_entry(facts, score.name, change.files[path])})
        if entries != list(score.files.values()):
            with change.noted():
                path = change.path(f"{scores.FOLDER}/{score.name}/manifest.json")
                storage.write_sealed(path, scores.manifest(score.facts, entries))
    deleted = list[str]()
    for path in sorted(storage.files_below(storage.join(change.run_folder, scores.FOLDER))):
        inside = storage.relative(path, change.run_folder)
        if inside and storage.name(path) in of_changed and inside not in change.files:
            deleted.append(inside)
    return deleted


def of_rows_that_stay(stay: Mapping[str, tuple[Shard, Numbers]], score: Score, name: str) -> pa.Table | None:
    """The values of the rows of a shard of before that stay: `stay` has the shard, and their rising numbers."""
    if name not in stay or not score.has(name, stay[name][0].parquet_sha256):
        return None
    return score.values(name).take(stay[name][1]).combine_chunks()
