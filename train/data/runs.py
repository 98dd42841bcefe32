"""Finished runs that are trained on: shards and side-cars as their manifests have them."""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.data.schema import CLUSTER, SCHEMA_VERSION
from altalign.data.stages import damaged
from altalign.errors import UnreadableError, UsageError
from altalign.storage import atomic_change
from altalign.terminal import command
from altalign.train.data.pair_selection import Asked, Choice, Chosen


@dataclass(frozen=True)
class Shard:
    """A shard as the manifest of its run has it."""

    folder: str  # the run
    name: str  # NNNNN.tar
    rows: int
    bytes: int
    sidecar_sha256: str

    @property
    def stem(self) -> str:
        """Its name without an ending."""
        return self.name.removesuffix(".tar")

    @property
    def named(self) -> tuple[str, str]:
        """That name, and the SHA-256 of the side-car."""
        return self.stem, self.sidecar_sha256

    @property
    def tar(self) -> str:
        """Path of the tar."""
        return storage.join(self.folder, "shards", self.name)

    @property
    def sidecar(self) -> str:
        """Path of the side-car."""
        return f"{self.tar.removesuffix('.tar')}.parquet"

    @property
    def clusters(self) -> str:
        """Path of the clusters of its images."""
        return storage.join(self.folder, "clusters", f"{self.stem}.parquet")


@dataclass(frozen=True)
class Runs:
    """Finished runs of curation, and the SHA-256 of the manifest of each.

    Where clusters are the sources, `clusters` has their number in each run and the SHA-256 of its clusters.json.
    `chosen` says which pairs are trained on.
    """

    shards: list[Shard]
    manifests: dict[str, str]
    clusters: dict[str, tuple[int, str]] = field(default_factory=dict)
    chosen: Chosen = field(default_factory=Chosen)

    @classmethod
    def open(cls, folders: Sequence[str], *, clusters: bool = False, asked: Asked | None = None) -> "Runs":
        """Read the manifests.

        Raises:
            UsageError: a folder is not there, is no run, is not finished, or is given twice; its clusters are not
                there, or of other shards; what is asked of pairs cannot be asked of a run.
            DamagedError: a manifest is not as it was written.
        """
        shards: list[Shard] = []
        manifests: dict[str, str] = {}
        for folder in folders:
            if folder in manifests:
                raise UsageError(f"[data] runs: {folder} is there twice; name it once")
            manifests[folder], found = _manifest(folder)
            shards += found
        of_clusters = {folder: _clusters(folder, digest) for folder, digest in manifests.items()} if clusters else {}
        of_runs = {folder: [shard.named for shard in shards if shard.folder == folder] for folder in manifests}
        return cls(shards, manifests, of_clusters, Chosen.opened(asked or Asked(), of_runs))

    def sidecars(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """The side-cars with the numbers of their shards: these columns, and what `chosen` reads.

        Raises:
            DamagedError: one is not as its manifest says.
        """
        wanted = list(dict.fromkeys([*columns, *self.chosen.of_sidecar]))
        of = next((folder for folder in self.manifests if storage.is_remote(folder)), "")
        yield from enumerate(storage.each(lambda shard: _sidecar(shard, wanted), self.shards, of=of))

    def choice(self, number: int, table: pa.Table) -> Choice:
        """Which pairs of a shard are trained on; the table is that of its side-car."""
        shard = self.shards[number]
        return self.chosen.of(shard.folder, shard.stem, table)

    def sources_of(self, number: int, table: pa.Table) -> "pa.Array[pa.StringScalar]":
        """The source of each pair of a shard: its input, or its cluster.

        Raises:
            UnreadableError: the clusters are damaged, or of other pairs.
        """
        shard = self.shards[number]
        if shard.folder not in self.clusters:
            return table["source"].combine_chunks()
        try:
            found = pq.read_table(io.BytesIO(storage.read_bytes(shard.clusters)), use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise UnreadableError(f"{shard.clusters}: {error}; {_cluster_again(shard.folder)}") from None
        if found.schema != CLUSTER or found["key"] != table["key"]:
            raise UnreadableError(f"{shard.clusters}: not the clusters of {shard.name}; {_cluster_again(shard.folder)}")
        digits = len(str(self.clusters[shard.folder][0] - 1))
        names = [f"{shard.folder}#{cluster:0{digits}}" for cluster in found["cluster"].to_pylist()]
        return pa.array(names, pa.string())


def _manifest(folder: str) -> tuple[str, list[Shard]]:
    storage.check(folder)
    if storage.kind(folder) != "folder":
        raise UsageError(f"{folder}: no such run folder; give the [run] folder of a curation in [data] runs")
    atomic_change.settle(folder)
    path = storage.join(folder, "manifest.json")
    if not storage.exists(path):
        what = (
            "not finished (it has no manifest.json); let `altalign curate` end"
            if storage.exists(storage.join(folder, "run.json"))
            else "no run of altalign"
        )
        raise UsageError(f"{folder}: {what}, or give another folder in [data] runs")
    data = storage.read_bytes(path)
    try:
        manifest = json.loads(data)
        version = manifest["schema_version"]
        shards = [
            Shard(folder, str(s["name"]), int(s["rows"]), int(s["bytes"]), str(s["parquet_sha256"]))
            for s in manifest["shards"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(folder, path, f"no manifest of shards: {type(error).__name__} {error}") from None
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{path}: schema_version {version}, and this altalign reads {SCHEMA_VERSION}; curate again, or use the "
            "altalign that wrote it"
        )
    return sha256(data).hexdigest(), shards


def _sidecar(shard: Shard, columns: list[str]) -> pa.Table:
    path = shard.sidecar
    try:
        data = storage.read_bytes(path)
    except FileNotFoundError:
        raise damaged(shard.folder, path, "it is not there") from None
    if sha256(data).hexdigest() != shard.sidecar_sha256:
        raise damaged(shard.folder, path, "its SHA-256 is not the one in manifest.json")
    try:
        table = pq.read_table(io.BytesIO(data), columns=columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise damaged(shard.folder, path, f"cannot be read as Parquet ({error})") from None
    if len(table) != shard.rows:
        raise damaged(shard.folder, path, f"{len(table):,} rows, and manifest.json says {shard.rows:,}")
    return table


def _clusters(folder: str, manifest: str) -> tuple[int, str]:
    """How many clusters a run has, and the SHA-256 of its clusters.json.

    Raises:
        UsageError: there are none, or they are of other shards.
    """
    path = storage.join(folder, "clusters", "clusters.json")
    facts = storage.read_json(path)
    if not facts:
        raise UsageError(f'[data] sources = "clusters", and {folder} has none; {_cluster_again(folder)}')
    if facts.get("manifest_sha256") != manifest:
        raise UsageError(f"{path}: the clusters of other shards than there are now; {_cluster_again(folder)}")
    return int(facts["clusters"]), sha256(storage.read_bytes(path)).hexdigest()


def _cluster_again(folder: str) -> str:
    return f"`{command('score', folder, '--clusters', '100')}` makes them"
