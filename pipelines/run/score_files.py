"""What a step has written of a score, and the score's manifest."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from altalign import storage
from altalign.data import scores
from altalign.pipelines.run import marks
from altalign.pipelines.run.tables.scored import ScoreFacts
from altalign.pipelines.run.units import Marks, Run
from altalign.storage import Written, parquet

Entry = dict[str, Any]


def inside(score: str, shard: str) -> str:
    """The path of a score's file in its run."""
    return f"{scores.FOLDER}/{score}/{shard}.parquet"


def write(path: str, table: pa.Table) -> dict[str, int]:
    """Write key and values of a shard's samples; returns how many of each column are null."""
    parquet.write(path, table, table.schema)
    return {column: table[column].null_count for column in table.column_names[1:]}


def entry(facts: ScoreFacts, score: str, written: Written) -> Entry:
    """What a manifest says of a score's file, but the name of its shard."""
    nulls = dict(facts.nulls[score])
    return {"of": facts.of, "rows": facts.rows, "nulls": nulls, "bytes": written.bytes, "sha256": written.digest}


def made(run: Run, step: Marks[ScoreFacts], score: str, shard_of: Callable[[str], str]) -> dict[str, Entry]:
    """The entries of the files that the units of a step have written, by shard; `shard_of` knows it of a unit."""
    found = dict[str, Entry]()
    for unit, facts in run.all_facts(step):
        shard = shard_of(unit)
        written = marks.named(storage.read_sealed(run.mark(step.step, unit))).get(inside(score, shard))
        if written is not None:
            found[shard] = entry(facts, score, written)
    return found


def conclude(folder: str, said: Mapping[str, Any], shards: Sequence[Entry], *, durable: bool) -> None:
    """Write the manifest of a score whose files are in this folder, and delete files of shards that are not in it.

    Args:
        folder: of the score.
        said: what its values rest on.
        shards: entries with the names of their shards, in the order of the run.
        durable: whether to wait for the disk.
    """
    storage.write_sealed(storage.join(folder, "manifest.json"), scores.manifest(said, shards), durable=durable)
    kept = {f"{shard['name']}.parquet" for shard in shards}
    for name in storage.names(folder, ".parquet"):
        if name not in kept:
            storage.delete(storage.join(folder, name))
