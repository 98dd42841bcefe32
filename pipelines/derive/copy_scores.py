"""Scores that follow their samples into the shards of another run: values are copied, and nothing is measured."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data import scores
from altalign.data.scores import Score
from altalign.errors import UnreadableError
from altalign.pipelines.derive import units
from altalign.pipelines.derive.parents import Parent, Shard, of_unit
from altalign.pipelines.run import marks, shard_files
from altalign.pipelines.run.shard_tables import CHOSEN_ROWS, WRITTEN, ScoreFacts, ShardUnit
from altalign.pipelines.run.units import Marks, Run
from altalign.storage import parquet

OfParents = Mapping[str, tuple[Score, ...]]  # the score of each parent, by name


def of_all(parents: Sequence[Parent]) -> OfParents:
    """The scores that all of these runs have, measured by the same settings, models and versions."""
    first, *others = ({score.name: score for score in scores.all_of(parent.folder)} for parent in parents)
    found = {name: (score, *(of[name] for of in others if name in of)) for name, score in first.items()}
    return {
        name: same
        for name, same in found.items()
        if len(same) == len(parents) and len({score.facts["digest"] for score in same}) == 1
    }


def step_of(found: OfParents) -> Marks[ScoreFacts]:
    """The marks of shards whose scores are there: for these scores alone."""
    said = json.dumps([[name, same[0].facts["digest"]] for name, same in sorted(found.items())])
    return Marks(f"select/scores/{hashlib.sha256(said.encode()).hexdigest()[:16]}", ScoreFacts)


def unmark_damaged(run: Run, step: Marks[ScoreFacts]) -> None:
    """Forget shards whose scores are not as they were written."""
    for damage in marks.look(run, (step,)):
        storage.delete(damage.mark.path)


def follow(parents: tuple[Parent, ...], found: OfParents, run: Run, unit: ShardUnit) -> ScoreFacts:
    """Write the scores of a shard that all its samples have.

    Raises:
        UnreadableError: scores are damaged, or not of the parents' shards.
    """
    name = unit["name"]
    keys = parquet.read_table(run.path("shards", f"{name}.parquet"), ["key"])["key"]
    nulls = dict[str, dict[str, int]]()
    for score, same in found.items():
        table = _rows(parents, same, run, unit)
        if table is None:
            continue
        order = pc.index_in(keys, table["key"])  # samples of several runs come in one order
        if len(table) != len(keys) or order.null_count:
            raise UnreadableError(f"{same[0].folder}: its keys are not those of the shards; measure it again")
        table = table.take(order)
        nulls[score] = shard_files.write_score(run.path(*shard_files.score_path(score, name).split("/")), table)
    return ScoreFacts(of=run.facts_of(WRITTEN, name).parquet_sha256, rows=unit["rows"], nulls=nulls)


def _rows(parents: tuple[Parent, ...], same: Sequence[Score], run: Run, unit: ShardUnit) -> pa.Table | None:
    """The values of a shard's samples; None where those of a parent's shard are not measured."""
    tables = list[pa.Table]()
    for name, begin, end in unit["parts"]:
        parent, pieces = of_unit(parents, name)
        score = same[parents.index(parent)]
        shards = [parent.shards[of.shard] for of in pieces]
        if not all(score.has(shard.name, shard.parquet_sha256) for shard in shards):
            return None
        values = units.rows_of(parent, pieces, partial(_values, score))
        tables.append(values.take(CHOSEN_ROWS.array(run, name)[begin:end]))
    return pa.concat_tables(tables).combine_chunks()


def _values(score: Score, shard: Shard) -> pa.Table:
    return score.values(shard.name)


def conclude(run: Run, found: OfParents, step: Marks[ScoreFacts]) -> None:
    """Write the manifests of the scores."""
    for name, same in found.items():
        shards = shard_files.scores_made(run, step, name, lambda unit: unit)
        if shards:
            entries = [{"name": shard, **entry} for shard, entry in shards.items()]
            shard_files.conclude_score(
                scores.folder_of(run.folder, name), same[0].facts, entries, durable=run.config.run.durable
            )
