"""Finished runs that another run is made of: their shards, which are the units of their samples, and their counts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.data import generations, listing
from altalign.data.audit_tables import FAILED_ROWS
from altalign.data.reasons import KEPT, Stage
from altalign.data.schema import RULES_VERSION, SCHEMA_VERSION
from altalign.data.stages import damaged, own_files
from altalign.errors import UnreadableError, UsageError
from altalign.machine import interrupts
from altalign.pipelines.derive.copy_shards import Numbers, Part, Slice, copied, filled, slices
from altalign.pipelines.run.shard_tables import ShardFacts
from altalign.settings.curate import CurateConfig
from altalign.storage import parquet

Places = npt.NDArray[np.bytes_]  # S64[n]: image_id and key


@dataclass(frozen=True, slots=True)  # there may be hundreds of thousands
class Shard:
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

    def sidecar(self, shard: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The side-car of a shard, or some of its columns."""
        return parquet.read_table(self.path("shards", f"{shard}.parquet"), columns)

    def samples(self, shard: Shard, columns: Sequence[str] | None = None) -> pa.Table:
        """The same of a shard, which has as many rows as the manifest says."""
        return self.whole(shard, self.sidecar(shard.name, columns))

    def whole(self, shard: Shard, rows: pa.Table) -> pa.Table:
        """What was read of a shard; an UnreadableError where it is not a row for each sample."""
        if len(rows) != shard.rows:
            path = self.path("shards", f"{shard.name}.parquet")
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


def of_unit(parents: Sequence[Parent], name: str) -> tuple[Parent, Shard]:
    """The run and the shard that a unit is; its name has their numbers."""
    number, place = map(int, name.split("-"))
    return parents[number], parents[number].shards[place]


def in_one_order(
    parents: Sequence[Parent], things: Sequence[tuple[str, int]], chosen: Callable[[str], Numbers], per_shard: int
) -> list[list[Slice]]:
    """Cuts units, each with how many of its rows are chosen, into full shards in the order of (image_id, key).

    Samples of one generation of a run are in that order; `chosen` as of `write_shard`.
    """

    def places(name: str) -> Places:
        parent, shard = of_unit(parents, name)
        rows = parent.samples(shard, ["image_id", "key"]).take(chosen(name))
        both = zip(*(parquet.values(rows, column) for column in ("image_id", "key")), strict=True)
        return np.array([image_id + key for image_id, key in both], "S64")

    sequences = dict[tuple[int, int], list[tuple[str, int]]]()
    for name, rows in things:
        sequences.setdefault(sequence_of(parents, name), []).append((name, rows))
    if len(sequences) <= 1:
        return filled(things, per_shard)
    return merged(", ".join(parent.folder for parent in parents), list(sequences.values()), places, per_shard)


def sequence_of(parents: Sequence[Parent], name: str) -> tuple[int, int]:
    """The numbers of the run and the generation that a unit is of."""
    return int(name.partition("-")[0]), generations.number_of(of_unit(parents, name)[1].name)


def write_shard(
    parents: Sequence[Parent], folder: str, name: str, parts: Iterable[Slice], chosen: Callable[[str], Numbers]
) -> ShardFacts:
    """Writes a shard of slices of units; `chosen` gives the rising numbers of the rows of a unit that they are of."""
    sequences = dict[tuple[int, int], list[Part]]()
    for unit, begin, end in parts:
        parent, shard = of_unit(parents, unit)
        part = Part(parent.path("shards"), shard.name, chosen(unit)[begin:end])
        sequences.setdefault(sequence_of(parents, unit), []).append(part)
    return copied(folder, name, sequences.values())


def merged(
    where: str, sequences: Sequence[Sequence[tuple[str, int]]], read: Callable[[str], Places], per_unit: int
) -> list[list[Slice]]:
    """Cuts sequences of things (names and rows) into units of so many rows, of all in one order; the last may be less.

    Returns for each unit the slices of things of each sequence. `read` gives the places of a thing, which rise in a
    sequence; those of one thing of each are in memory. `where` is what an error names.
    """
    waiting = [_rising(where, map(read, (name for name, _ in things))) for things in sequences]
    heads = {number: block for number, blocks in enumerate(waiting) if (block := next(blocks, None)) is not None}
    owners, sizes = np.zeros(0, np.int64), list[list[int]]()  # sizes: rows of each sequence in each unit
    while heads:
        interrupts.check()
        last = min(block[-1] for block in heads.values())  # all up to here are in memory
        taken = {number: int(np.searchsorted(block, last, side="right")) for number, block in heads.items()}
        places = np.concatenate([heads[number][:many] for number, many in taken.items()])
        in_order = np.repeat(list(taken), list(taken.values()))[np.argsort(places, kind="stable")]
        owners = np.concatenate([owners, in_order])
        for number, many in taken.items():
            rest = heads.pop(number)[many:]
            block = rest if len(rest) else next(waiting[number], None)
            if block is not None:
                heads[number] = block
        while len(owners) >= per_unit or (len(owners) and not heads):
            sizes.append(np.bincount(owners[:per_unit], minlength=len(sequences)).tolist())
            owners = owners[per_unit:]
    of_sequences = [slices(things, [of_unit[number] for of_unit in sizes]) for number, things in enumerate(sequences)]
    return [list(chain(*of_unit)) for of_unit in zip(*of_sequences, strict=True)]


def _rising(where: str, blocks: Iterable[Places]) -> Iterator[Places]:
    """Yields the blocks that have places."""
    before = b""
    for block in blocks:
        if not len(block):
            continue
        if block[0] < before or (block[1:] < block[:-1]).any():
            raise UnreadableError(f"{where}: samples are not in the order of image_id and key")
        yield block
        before = block[-1]


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
