"""Finished runs that another run is made of: their shards, the units of their samples, in one order, and their counts.

A unit is a shard or, of a run of several generations, what a shard has after `altalign merge`: stretches of several.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any, NamedTuple

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
from altalign.pipelines.derive.copy_shards import Numbers, Part, Slice, slices
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


class Piece(NamedTuple):
    """Rows `begin` to `end` of a shard, by its place among those of a run."""

    shard: int
    begin: int
    end: int


@dataclass(frozen=True)
class Parent:
    """A finished run: its settings, its number (SHA-256 of the list of its files) and its shards in order."""

    folder: str
    config: CurateConfig
    digest: str
    shards: tuple[Shard, ...]
    lineage: Mapping[str, Any] | None = None  # of its manifest; None of a curation
    generations: int = 1
    cuts: tuple[tuple[Piece, ...], ...] | None = None  # of several generations: what lies together (`as_one`)

    def path(self, *parts: str) -> str:
        """A path inside the run."""
        return storage.join(self.folder, *parts)

    def sidecar(self, shard: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The side-car of a shard, or some of its columns."""
        return parquet.read_table(self.path("shards", f"{shard}.parquet"), columns)

    @property
    def units(self) -> Sequence[tuple[Piece, ...]]:
        """What each unit of its samples is of: a shard, where nothing else was cut."""
        return self.cuts or [(Piece(place, 0, shard.rows),) for place, shard in enumerate(self.shards)]


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


def opened_in_order(folder: str, config: CurateConfig) -> Parent:
    """A finished run, with its units in one order."""
    parent = opened(folder, config)
    return parent if parent.generations == 1 else as_one(parent)


# Units ---------------------------------------------------------------------------------------------------------------


def of_unit(parents: Sequence[Parent], name: str) -> tuple[Parent, tuple[Piece, ...]]:
    """The run and the rows that a unit is of; its name has their numbers."""
    number, place = (int(number) for number in name.split("-"))
    parent = parents[number]
    return parent, parent.cuts[place] if parent.cuts else (Piece(place, 0, parent.shards[place].rows),)


def places_of(rows: pa.Table) -> Places:
    """The places of n samples in the order of shards."""
    both = zip(*(parquet.values(rows, name) for name in ("image_id", "key")), strict=True)
    return np.array([image_id + key for image_id, key in both], "S64")


def samples_of(parent: Parent, pieces: Sequence[Piece], columns: Sequence[str] | None = None) -> pa.Table:
    """The samples of a unit in order, or some of their columns."""
    return rows_of(parent, pieces, lambda shard: parent.sidecar(shard.name, columns))


def rows_of(parent: Parent, pieces: Sequence[Piece], read: Callable[[Shard], pa.Table]) -> pa.Table:
    """The rows of a unit in order; `read` gives those of a whole shard."""
    rows = _piece_by_piece(parent, pieces, read)
    return rows if len(pieces) == 1 else rows.take(_order(parent, pieces)).combine_chunks()


def _piece_by_piece(parent: Parent, pieces: Sequence[Piece], read: Callable[[Shard], pa.Table]) -> pa.Table:
    parts = list[pa.Table]()
    for piece in pieces:
        shard = parent.shards[piece.shard]
        rows = read(shard)
        if len(rows) != shard.rows:
            path = parent.path("shards", f"{shard.name}.parquet")
            raise UnreadableError(f"{path}: has {len(rows):,} rows, where the manifest says {shard.rows:,}")
        parts.append(rows.slice(piece.begin, piece.end - piece.begin))
    return pa.concat_tables(parts)


def _order(parent: Parent, pieces: Sequence[Piece]) -> Numbers:
    """In which order the rows of the pieces, one after the other, are a unit's."""
    rows = _piece_by_piece(parent, pieces, lambda shard: parent.sidecar(shard.name, ["image_id", "key"]))
    return np.argsort(places_of(rows), kind="stable")


def shard_names_of(parent: Parent, pieces: Sequence[Piece]) -> pa.Table:
    """Key, and the name of its shard (`shard`), of each row of a unit in order."""

    def read(shard: Shard) -> pa.Table:
        keys = parent.sidecar(shard.name, ["key"])
        return keys.append_column("shard", pa.repeat(pa.scalar(shard.name), len(keys)))

    return rows_of(parent, pieces, read)


def parts_of(parent: Parent, pieces: Sequence[Piece], rows: Numbers) -> list[list[Part]]:
    """Where these rows of a unit, by their rising numbers, are: for each generation in order."""
    ends = np.cumsum([piece.end - piece.begin for piece in pieces])
    if len(pieces) > 1 and len(rows) < ends[-1]:
        rows = np.sort(_order(parent, pieces)[rows])
    places, parts = np.searchsorted(ends, rows, side="right"), list[tuple[int, Part]]()
    for number in np.unique(places).tolist():
        piece, shard = pieces[number], parent.shards[pieces[number].shard]
        numbers = rows[places == number] - (ends[number] - piece.end)
        parts.append((generations.number_of(shard.name), Part(parent.path("shards"), shard.name, numbers)))
    return [[part for _, part in group] for _, group in groupby(parts, lambda each: each[0])]


# One order -----------------------------------------------------------------------------------------------------------


def as_one(parent: Parent) -> Parent:
    """A run with its units as the shards that it would have if they were of one generation, and full."""
    of_generations = [
        [(str(place), shard.rows) for place, shard in group]
        for _, group in groupby(enumerate(parent.shards), lambda each: generations.number_of(each[1].name))
    ]

    def places(name: str) -> Places:
        return places_of(parent.sidecar(parent.shards[int(name)].name, ["image_id", "key"]))

    units = merged(parent.folder, of_generations, places, parent.config.shards.samples_per_shard)
    cuts = (tuple(Piece(int(name), begin, end) for name, begin, end in unit) for unit in units)
    return replace(parent, cuts=tuple(cuts))


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
