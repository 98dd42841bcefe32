"""Finished runs that another run is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from altalign import storage
from altalign.data import generations, listing
from altalign.data.schema import RULES_VERSION, SCHEMA_VERSION
from altalign.data.stages import damaged, own_files
from altalign.errors import UsageError
from altalign.settings.curate import CurateConfig


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
    cuts: tuple[tuple[Piece, ...], ...] | None = None  # of several generations: what lies together (`ordering.opened`)

    def path(self, *parts: str) -> str:
        """A path inside the run."""
        return storage.join(self.folder, *parts)

    @property
    def units(self) -> Sequence[tuple[Piece, ...]]:
        """What each unit of its samples is of: a shard, where nothing else was cut."""
        return self.cuts or [(Piece(place, 0, shard.rows),) for place, shard in enumerate(self.shards)]


def name_of(parent: int, place: int) -> str:
    """The name of a unit: by the numbers of its run among the parents, and of it in the run."""
    return f"{parent:03d}-{place:05d}"


def of_unit(parents: Sequence[Parent], name: str) -> tuple[Parent, tuple[Piece, ...]]:
    """The run and the rows that a unit is of."""
    number, place = (int(number) for number in name.split("-"))
    parent = parents[number]
    return parent, parent.cuts[place] if parent.cuts else (Piece(place, 0, parent.shards[place].rows),)


def opened(folder: str, config: CurateConfig) -> Parent:
    """A finished run of this version's rules.

    Raises:
        UsageError: it is not finished, or another version made it.
        DamagedError: its manifest is not as it was written.
    """
    path = storage.join(folder, "manifest.json")
    with own_files(folder):
        manifest = storage.read_sealed(path)
    if not manifest:
        raise UsageError(f"{folder}: not finished (it has no manifest.json); `altalign curate` goes on with it")
    for name, here in (("rules_version", RULES_VERSION), ("schema_version", SCHEMA_VERSION)):
        if (there := manifest.get(name)) != here:
            raise UsageError(
                f"{folder}: made with {name} = {there!r}, and this altalign has {here!r}; curate it anew, or use the "
                "altalign that made it"
            )
    shards, lineage = shards_of(folder, manifest), manifest.get("lineage")
    return Parent(folder, config, listing.number(folder), shards, lineage, generations.in_manifest(manifest))


def shards_of(folder: str, manifest: dict[str, Any]) -> tuple[Shard, ...]:
    """The shards that a manifest names, in order.

    Raises:
        DamagedError: it does not.
    """
    names = ("rows", "bytes", "sha256", "parquet_sha256")
    try:
        return tuple(
            Shard(str(shard["name"]).removesuffix(".tar"), *(shard[name] for name in names))
            for shard in manifest["shards"]
        )
    except (KeyError, TypeError) as error:
        why = f"no manifest of shards: {type(error).__name__} {error}"
        raise damaged(folder, storage.join(folder, "manifest.json"), why) from None
