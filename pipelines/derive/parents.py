"""Finished runs that another run is made of: their shards, which are the units of their samples, and their counts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from altalign import storage
from altalign.data import generations, listing
from altalign.data.audit_tables import FAILED_ROWS
from altalign.data.reasons import KEPT, Stage
from altalign.data.schema import RULES_VERSION, SCHEMA_VERSION
from altalign.data.stages import damaged, own_files
from altalign.errors import UnreadableError, UsageError
from altalign.pipelines.run.shard_tables import ShardOfParent
from altalign.pipelines.run.units import Run
from altalign.settings.curate import CurateConfig
from altalign.storage import parquet


class Shard(NamedTuple):
    """A shard as its run's manifest has it; `name` is without an ending."""

    name: str
    rows: int
    bytes: int
    sha256: str
    parquet_sha256: str


@dataclass(frozen=True)
class Parent:
    """A finished run: its settings, its number (SHA-256 of the list of its files) and its shards in order."""

    folder: str
    config: CurateConfig
    digest: str
    shards: tuple[Shard, ...]
    lineage: Mapping[str, Any] | None = None  # of its manifest; None of a curation
    generations: int = 1

    def path(self, *parts: str) -> str:
        """A path inside the run."""
        return storage.join(self.folder, *parts)

    def samples(self, shard: Shard, columns: Sequence[str] | None = None) -> pa.Table:
        """The side-car of a shard, or some of its columns.

        UnreadableError: it has not as many rows as the manifest says.
        """
        path = self.path("shards", f"{shard.name}.parquet")
        if len(rows := parquet.read_table(path, columns)) != shard.rows:
            raise UnreadableError(f"{path}: has {len(rows):,} rows, where the manifest says {shard.rows:,}")
        return rows


def opened(folder: str, config: CurateConfig) -> Parent:
    """A finished run of this version's rules."""
    path = storage.join(folder, "manifest.json")
    with own_files(folder):
        manifest = storage.read_sealed(path)
    if not manifest:
        raise UsageError(f"{folder}: not finished (it has no manifest.json); `altalign curate` goes on with it")
    for name, here in (("rules_version", RULES_VERSION), ("schema_version", SCHEMA_VERSION)):
        if (version := manifest.get(name)) != here:
            raise UsageError(
                f"{folder}: made with {name} = {version!r}, and this altalign has {here!r}; curate it anew, or use the "
                "altalign that made it"
            )
    names = ("rows", "bytes", "sha256", "parquet_sha256")
    try:
        shards = tuple(
            Shard(str(shard["name"]).removesuffix(".tar"), *(shard[name] for name in names))
            for shard in manifest["shards"]
        )
    except (KeyError, TypeError) as error:
        raise damaged(folder, path, f"no manifest of shards: {type(error).__name__} {error}") from None
    number, grown = listing.number(folder), generations.in_manifest(manifest)
    return Parent(folder, config, number, shards, manifest.get("lineage"), grown)


def plan_of(parents: Sequence[Parent], _run: Run) -> list[ShardOfParent]:
    """One unit a shard of each parent, in their order."""
    return [
        ShardOfParent(name=f"{number:03d}-{place:05d}", parent=number, rows=shard.rows)
        for number, parent in enumerate(parents)
        for place, shard in enumerate(parent.shards)
    ]


def of_unit(parents: Sequence[Parent], name: str) -> tuple[Parent, Shard]:
    """The run and the shard that a unit is."""
    number, place = map(int, name.split("-"))
    return parents[number], parents[number].shards[place]


# Counts --------------------------------------------------------------------------------------------------------------


def counts_of(parent: Parent) -> list[list[Any]]:
    """Its counts: stage, source, reason, rows."""
    return _counted(parent.path("counts.parquet"), "reason")


def received(counts: Iterable[list[Any]]) -> Iterator[list[Any]]:
    """Yields the counts but those of what a selection kept: a further one receives that."""
    return (row for row in counts if (row[0], row[2]) != (Stage.SELECT.value, KEPT))


def failed_of(parent: Parent) -> list[list[Any]]:
    """The same by every rule that holds: stage, source, failed, rows."""
    return [row for row in _counted(parent.path(FAILED_ROWS.path), "failed") if row[0] != Stage.SELECT.value or row[2]]


def _counted(path: str, by: str) -> list[list[Any]]:
    return [[row[name] for name in ("stage", "source", by, "rows")] for row in parquet.read_table(path).to_pylist()]
