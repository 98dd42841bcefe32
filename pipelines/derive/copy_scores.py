"""Scores follow their samples into other shards: values are copied, and nothing is measured."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data import scores
from altalign.data.scores import Score
from altalign.errors import UnreadableError
from altalign.machine.threads import in_threads
from altalign.pipelines.derive.copy_shards import Numbers, at_once
from altalign.pipelines.derive.parents import Parent, Shard, of_unit
from altalign.pipelines.run import shard_files
from altalign.pipelines.run.shard_tables import CHOSEN_ROWS, ScoreFacts, ShardFacts, ShardUnit
from altalign.pipelines.run.units import Run
from altalign.storage import Written, parquet
from altalign.storage.atomic_change import Change


def follow(parents: Sequence[Parent], run: Run, units: Sequence[ShardUnit], shards: Mapping[str, ShardFacts]) -> None:
    """Write the scores that all parents have, measured by the same settings, models and versions.

    A shard of the new run has those that all its samples have.
    """
    every = [{score.name: score for score in scores.all_of(parent.folder)} for parent in parents]
    for name in every[0]:
        same = [score for of_parent in every if (score := of_parent.get(name))]
        if len(same) < len(parents) or len({score.facts["digest"] for score in same}) > 1:
            continue

        def write(unit: ShardUnit, same: Sequence[Score] = same) -> dict[str, Any] | None:
            shard = unit["name"]
            if (table := _values(parents, same, run, unit)) is None:
                return None
            path = run.path(*shard_files.score_path(same[0].name, shard).split("/"))
            return _write(path, same[0].name, shard, shards[shard], table)[0]

        if entries := [entry for entry in in_threads(write, units, at_once(run.folder)) if entry]:
            folder = scores.folder_of(run.folder, name)
            if run.config.run.durable:  # before the manifest names them
                storage.sync(storage.Block({storage.join(folder, f"{each['name']}.parquet"): None for each in entries}))
            shard_files.conclude_score(folder, same[0].facts, entries, durable=run.config.run.durable)


def _values(parents: Sequence[Parent], same: Sequence[Score], run: Run, unit: ShardUnit) -> pa.Table | None:
    """The values of a shard's samples; None where those of a parent's shard are not measured."""
    tables = list[pa.Table]()
    for name, begin, end in unit["parts"]:
        parent, shard = of_unit(parents, name)
        score = same[parents.index(parent)]
        if not score.has(shard.name, shard.parquet_sha256):
            return None
        tables.append(score.values(shard.name).take(CHOSEN_ROWS.array(run, name)[begin:end]))
    table = pa.concat_tables(tables)
    keys = parquet.read_table(run.path("shards", f"{unit['name']}.parquet"), ["key"])["key"]
    order = pc.index_in(keys, table["key"])  # samples of several sequences come in one order
    if len(table) != len(keys) or order.null_count:
        raise UnreadableError(f"{same[0].folder}: its keys are not those of the shards; measure it again")
    return table.take(order).combine_chunks()


def change_scores(
    change: Change, shards: Mapping[str, ShardFacts | Shard], stay: Mapping[str, tuple[Shard, Numbers]]
) -> list[str]:
    """Write the scores of shards that are not as they were, and the manifests; returns paths of files that go.

    What is measured of dropped images goes: `altalign score` measures those that are left again. `shards` are those
    that the run has then. `stay` has shards of before that are another one then, or gone, and the
    rising numbers of their rows that stay.
    """
    for score in scores.all_of(change.run_folder):
        entries = list[Any]()
        for name, shard in shards.items():
            if name not in stay:
                entries += [score.files[name]] if name in score.files else []
            elif score.has(name, stay[name][0].parquet_sha256):
                path = shard_files.score_path(score.name, name)
                table = score.values(name).take(stay[name][1]).combine_chunks()
                entry, change.files[path] = _write(change.path(path), score.name, name, shard, table)
                entries.append(entry)
        if entries != list(score.files.values()):
            with change.noted():
                path = change.path(f"{scores.FOLDER}/{score.name}/manifest.json")
                storage.write_sealed(path, scores.manifest(score.facts, entries))
    files = sorted(storage.files_below(storage.join(change.run_folder, scores.FOLDER)))
    inside = (storage.relative(path, change.run_folder) for path in files)
    of_changed = {f"{name}.parquet" for name in (*stay, scores.DROPPED)}
    return [path for path in inside if path and storage.name(path) in of_changed and path not in change.files]


def _write(
    path: str, score: str, name: str, shard: ShardFacts | Shard, table: pa.Table
) -> tuple[dict[str, Any], Written]:
    """Write the values of a shard's samples; returns what the manifest of the score says of the file."""
    with storage.noted() as block:
        nulls = shard_files.write_score(path, table)
    (written,) = block.files.values()
    assert written is not None
    facts = ScoreFacts(of=shard.parquet_sha256, rows=shard.rows, nulls={score: nulls})
    return {"name": name, **shard_files.score_entry(facts, score, written)}, written
