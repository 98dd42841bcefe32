"""Finished runs that another run is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from altalign import listing, storage
from altalign.curation import CurateConfig
from altalign.errors import UsageError
from altalign.schema import RULES_VERSION, SCHEMA_VERSION
from altalign.stages import damaged, own_files


@dataclass(frozen=True)
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

    def path(self, *parts: str) -> str:
        """A path inside the run."""
        return storage.join(self.folder, *parts)


def name_of(parent: int, place: int) -> str:
    """The name of the unit of a shard: by the numbers of its run among the parents, and of it in the run."""
    return f"{parent:03d}-{place:05d}"


def of_unit(parents: Sequence[Parent], name: str) -> tuple[Parent, Shard]:
    """The run and the shard that a unit is of."""
    parent, place = (int(number) for number in name.split("-"))
    return parents[parent], parents[parent].shards[place]


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
    return Parent(folder, config, listing.number(folder), shards_of(folder, manifest), manifest.get("lineage"))


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
