"""Scores follow their samples into other shards: values are copied, and nothing is measured."""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data import scores
from altalign.data.scores import Score
from altalign.errors import UnreadableError
from altalign.pipelines.derive.copy_shards import Numbers
from altalign.pipelines.derive.parents import Parent, Shard, of_unit
from altalign.pipelines.run import shard_files
from altalign.pipelines.run.shard_tables import CHOSEN_ROWS, WRITTEN, ScoreFacts, ShardFacts, ShardUnit
from altalign.pipelines.run.units import Marks, Run, digest
from altalign.storage import parquet
from altalign.storage.atomic_change import Change

OfParents = Mapping[str, tuple[Score, ...]]  # the score of each parent, by name
AfterChange = Sequence[tuple[str, ShardFacts | Shard]]  # the shards that a run has then, in order


# Into a run of other runs --------------------------------------------------------------------------------------------


def of_all(parents: Sequence[Parent]) -> OfParents:
    """The scores that all of these runs have, measured by the same settings, models and versions."""
    every = [{score.name: score for score in scores.all_of(parent.folder)} for parent in parents]
    in_all = [name for name in every[0] if all(name in of_run for of_run in every)]
    by_name = {name: tuple(of_run[name] for of_run in every) for name in in_all}
    return {name: same for name, same in by_name.items() if len({score.facts["digest"] for score in same}) == 1}


def step_of(followed: OfParents) -> Marks[ScoreFacts]:
    """The marks of shards whose scores are there: for these scores alone."""
    digests = [[name, same[0].facts["digest"]] for name, same in sorted(followed.items())]
    return Marks(f"select/scores/{digest(digests)[:16]}", ScoreFacts)


def follow(parents: tuple[Parent, ...], followed: OfParents, run: Run, unit: ShardUnit) -> ScoreFacts:
    """Write the scores of a shard that all its samples have."""
    name = unit["name"]
    nulls = dict[str, dict[str, int]]()
    for score, same in followed.items():
        table = _rows(parents, same, run, unit)
        if table is not None:
            table = in_order_of(run.path("shards", f"{name}.parquet"), table, same[0].folder)
            nulls[score] = shard_files.write_score(run.path(*shard_files.score_path(score, name).split("/")), table)
    return ScoreFacts(of=run.facts_of(WRITTEN, name).parquet_sha256, rows=unit["rows"], nulls=nulls)


def _rows(parents: tuple[Parent, ...], same: Sequence[Score], run: Run, unit: ShardUnit) -> pa.Table | None:
    """The values of a shard's samples; None where those of a parent's shard are not measured."""
    tables = list[pa.Table]()
    for name, begin, end in unit["parts"]:
        parent, shard = of_unit(parents, name)
        score = same[parents.index(parent)]
        if not score.has(shard.name, shard.parquet_sha256):
            return None
        values = parent.whole(shard, score.values(shard.name))
        tables.append(values.take(CHOSEN_ROWS.array(run, name)[begin:end]))
    return pa.concat_tables(tables)


def in_order_of(sidecar: str, table: pa.Table, folder: str) -> pa.Table:
    """Values with their `key`, in the order of a side-car: samples of several sequences come in one order."""
    keys = parquet.read_table(sidecar, ["key"])["key"]
    order = pc.index_in(keys, table["key"])
    if len(table) != len(keys) or order.null_count:
        raise UnreadableError(f"{folder}: its keys are not those of the shards; measure it again")
    return table.take(order).combine_chunks()


def conclude(run: Run, followed: OfParents, step: Marks[ScoreFacts]) -> None:
    """Write the manifests of the scores."""
    for name, same in followed.items():
        if shards := shard_files.scores_made(run, step, name, lambda unit: unit):
            entries = [{"name": shard, **entry} for shard, entry in shards.items()]
            folder = scores.folder_of(run.folder, name)
            shard_files.conclude_score(folder, same[0].facts, entries, durable=run.config.run.durable)


# In a change of a run ------------------------------------------------------------------------------------------------


def change_scores(
    change: Change, shards: AfterChange, changed: Set[str], values: Callable[[Score, str], pa.Table | None]
) -> list[str]:
    """Write the scores of shards that are not as they were, and the manifests; returns paths of files that go.

    `changed` names shards of before that are another one now, or none. `values` gives, of a score, key and columns of
    the samples of a new shard in order; None where they are not known.
    """
    for score in scores.all_of(change.run_folder):
        entries = list[Any]()
        for name, shard in shards:
            if name in score.files and name not in changed:
                entries.append(score.files[name])
            elif (table := values(score, name)) is not None:
                path = shard_files.score_path(score.name, name)
                with change.noted():
                    nulls = shard_files.write_score(change.path(path), table)
                facts = ScoreFacts(of=shard.parquet_sha256, rows=shard.rows, nulls={score.name: nulls})
                entries.append({"name": name, **shard_files.score_entry(facts, score.name, change.files[path])})
        if entries != list(score.files.values()):
            with change.noted():
                path = change.path(f"{scores.FOLDER}/{score.name}/manifest.json")
                storage.write_sealed(path, scores.manifest(score.facts, entries))
    files = sorted(storage.files_below(storage.join(change.run_folder, scores.FOLDER)))
    inside = (storage.relative(path, change.run_folder) for path in files)
    of_changed = {f"{name}.parquet" for name in changed}
    return [path for path in inside if path and storage.name(path) in of_changed and path not in change.files]


def of_rows_that_stay(stay: Mapping[str, tuple[Shard, Numbers]], score: Score, name: str) -> pa.Table | None:
    """The values of the rows of a shard of before that stay: `stay` has the shard, and their rising numbers."""
    if name not in stay or not score.has(name, stay[name][0].parquet_sha256):
        return None
    return score.values(name).take(stay[name][1]).combine_chunks()
