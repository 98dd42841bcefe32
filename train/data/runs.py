"""Finished runs that are trained on: shards, side-cars, and which of their pairs count how much.

A condition and a column of weights read columns of the side-cars, kept columns, and scores of `altalign score`.
"""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.data import columns
from altalign.data.columns import Known
from altalign.data.schema import CLUSTER, SCHEMA_VERSION
from altalign.data.stages import damaged
from altalign.errors import UnreadableError, UsageError
from altalign.filters import where
from altalign.filters.where import Condition
from altalign.settings.curate import CurateConfig
from altalign.storage import atomic_change
from altalign.terminal import command
from altalign.train.settings.data import DataSettings

# Why pairs are left out, in the words of the line that counts them.
LEFT_OUT = {
    "where": "for which [data] where does not hold",
    "missing": "without a value",
    "weight": "whose weight is 0",
}


@dataclass(frozen=True)
class Shard:
    """A shard as the manifest of its run has it."""

    folder: str  # the run
    stem: str  # NNNNN
    rows: int
    bytes: int
    sidecar_sha256: str

    @property
    def tar(self) -> str:
        """Path of the tar."""
        return storage.join(self.folder, "shards", f"{self.stem}.tar")

    @property
    def sidecar(self) -> str:
        """Path of the side-car."""
        return storage.join(self.folder, "shards", f"{self.stem}.parquet")


@dataclass(frozen=True)
class Selection:
    """What the settings ask of pairs: `[data] where`, `weight_by` and `nulls`; empty: nothing."""

    where: str = ""
    weight_by: str = ""
    nulls: Literal["", "drop", "keep"] = ""

    @property
    def conditions(self) -> list[Condition]:
        """The condition, where there is one."""
        return [where.parsed(self.where)] if self.where else []

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        of_where = [name for condition in self.conditions for name in condition.columns()]
        return list(dict.fromkeys([*of_where, *([self.weight_by] if self.weight_by else [])]))


EVERYTHING = Selection()


class Choice(NamedTuple):
    """Of the n pairs of a shard: why each is left out (empty: it is not), and its weight, float64[n]."""

    why: npt.NDArray[np.str_]
    weights: npt.NDArray[np.float64]

    @property
    def stays(self) -> npt.NDArray[np.bool_]:
        """Which pairs are trained on."""
        return self.why == ""


@dataclass(frozen=True)
class Runs:
    """Finished runs of curation, and the SHA-256 of the manifest of each.

    Where clusters are the sources, `clusters` has their number in each run and the SHA-256 of its clusters.json. Where
    `selection` reads columns, `known` has those of each run, and `scores` the SHA-256 of the manifest of each score
    by its folder, as it was when it was opened.
    """

    shards: list[Shard]
    manifests: dict[str, str]
    clusters: dict[str, tuple[int, str]]
    selection: Selection
    known: dict[str, Known]
    scores: dict[str, str]

    @classmethod
    def of_settings(cls, folders: Sequence[str], data: DataSettings) -> Self:
        """Open runs as `[data]` says. Raises as `open`."""
        selection = Selection(data.where, data.weight_by, data.nulls)
        return cls.open(folders, clusters=data.sources == "clusters", selection=selection)

    @classmethod
    def open(cls, folders: Sequence[str], *, clusters: bool = False, selection: Selection = EVERYTHING) -> Self:
        """Read the manifests.

        Raises UsageError where a folder is no finished run or given twice, where clusters, columns or scores are
        missing or of other shards, or where a column may be null and the settings say nothing of that; DamagedError
        where a manifest is not as it was written.
        """
        runs = cls([], {}, {}, selection, {}, {})
        for folder in folders:
            if folder in runs.manifests:
                raise UsageError(f"[data] runs: {folder} is there twice; name it once")
            runs.manifests[folder], shards = _manifest(folder)
            runs.shards.extend(shards)
            if clusters:
                runs.clusters[folder] = _clusters(folder, runs.manifests[folder])
            if selection.columns:
                runs.known[folder] = known = _columns(folder, selection)
                scores = known.scores_of(selection.columns).values()
                columns.check_measured([(shard.stem, shard.sidecar_sha256) for shard in shards], scores)
                for score in scores:
                    data = storage.read_bytes(storage.join(score.folder, "manifest.json"))
                    runs.scores[score.folder] = sha256(data).hexdigest()
        return runs

    def sidecars(self, names: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """The side-cars, of these columns and those that the selection reads, with the numbers of their shards."""
        read = list(dict.fromkeys([*names, *columns.of_sidecar(self.selection.columns)]))
        yield from enumerate(storage.each(lambda shard: _sidecar(shard, read), self.shards, place=self.remote))

    @property
    def remote(self) -> str:
        """A folder in a store, of which many reads go at a time; empty: there is none."""
        return next((folder for folder in self.manifests if storage.is_remote(folder)), "")

    def choice(self, number: int, rows: pa.Table) -> Choice:
        """Which pairs of a shard are trained on; `rows` are its side-car, of `sidecars`, with `key`.

        Raises UnreadableError: scores are damaged, or of other pairs. UsageError: a weight is negative, or missing.
        """
        selection, shard = self.selection, self.shards[number]
        why, weights = np.full(len(rows), "", "<U8"), np.ones(len(rows))
        if not selection.columns:
            return Choice(why, weights)
        table = columns.joined(rows, shard.stem, selection.columns, self.known[shard.folder].scores)
        for holds in where.holds(selection.conditions, table):
            why[~holds.fill_null(True).to_numpy(zero_copy_only=False)] = "where"  # noqa: FBT003
            if selection.nulls != "keep":
                why[~holds.is_valid().to_numpy(zero_copy_only=False)] = "missing"
        if not (name := selection.weight_by):
            return Choice(why, weights)
        column, stays = table[name].combine_chunks(), why == ""
        has_value = column.is_valid().to_numpy(zero_copy_only=False)
        weights = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        place = f"[data] weight_by: {name} in {storage.join(shard.folder, 'shards', shard.stem)}"
        if selection.nulls == "keep" and (stays & ~has_value).any():
            raise UsageError(f'{place}: no value, and nulls = "keep" gives no weight; give "drop"')
        if (wrong := stays & ~(weights >= 0) | np.isinf(weights)).any():
            raise UsageError(f"{place}: {weights[wrong][0]:g}; give a column of numbers that are 0 or more")
        why[stays & ~has_value] = "missing"
        why[stays & has_value & (weights == 0)] = "weight"
        return Choice(why, weights)

    def sources_of(self, number: int, table: pa.Table) -> "pa.Array[pa.StringScalar]":
        """The source of each pair of a shard, its input or its cluster. Raises UnreadableError: of other pairs."""
        shard = self.shards[number]
        if shard.folder not in self.clusters:
            return table["source"].combine_chunks()
        path = storage.join(shard.folder, "clusters", f"{shard.stem}.parquet")
        try:
            rows = pq.read_table(io.BytesIO(storage.read_bytes(path)), use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise UnreadableError(f"{path}: {error}; {_cluster_again(shard.folder)}") from None
        if rows.schema != CLUSTER or rows["key"] != table["key"]:
            raise UnreadableError(f"{path}: not the clusters of {shard.stem}.tar; {_cluster_again(shard.folder)}")
        digits = len(str(self.clusters[shard.folder][0] - 1))
        names = [f"{shard.folder}#{cluster:0{digits}}" for cluster in rows["cluster"].to_pylist()]
        return pa.array(names, pa.string())


def _manifest(folder: str) -> tuple[str, list[Shard]]:
    """The SHA-256 of a run's manifest, and its shards."""
    storage.check(folder)
    if storage.kind(folder) != "folder":
        raise UsageError(f"{folder}: no such run folder; give the [run] folder of a curation in [data] runs")
    atomic_change.settle(folder)
    path = storage.join(folder, "manifest.json")
    if not storage.exists(path):
        is_begun = storage.exists(storage.join(folder, "run.json"))
        what = "not finished (it has no manifest.json); let `altalign curate` end" if is_begun else "no run of altalign"
        raise UsageError(f"{folder}: {what}, or give another folder in [data] runs")
    data, shards = storage.read_bytes(path), list[Shard]()
    try:
        manifest = json.loads(data)
        version = manifest["schema_version"]
        for shard in manifest["shards"]:
            stem, digest = str(shard["name"]).removesuffix(".tar"), str(shard["parquet_sha256"])
            shards.append(Shard(folder, stem, int(shard["rows"]), int(shard["bytes"]), digest))
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(folder, path, f"no manifest of shards: {type(error).__name__} {error}") from None
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{path}: schema_version {version}, and this altalign reads {SCHEMA_VERSION}; curate again, or use the "
            "altalign that wrote it"
        )
    return sha256(data).hexdigest(), shards


def _sidecar(shard: Shard, names: list[str]) -> pa.Table:
    path = shard.sidecar
    try:
        data = storage.read_bytes(path)
    except FileNotFoundError:
        raise damaged(shard.folder, path, "it is not there") from None
    if sha256(data).hexdigest() != shard.sidecar_sha256:
        raise damaged(shard.folder, path, "its SHA-256 is not the one in manifest.json")
    try:
        table = pq.read_table(io.BytesIO(data), columns=names, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise damaged(shard.folder, path, f"cannot be read as Parquet ({error})") from None
    if len(table) != shard.rows:
        raise damaged(shard.folder, path, f"{len(table):,} rows, and manifest.json says {shard.rows:,}")
    return table


def _clusters(folder: str, manifest: str) -> tuple[int, str]:
    path = storage.join(folder, "clusters", "clusters.json")
    facts = storage.read_json(path)
    if not facts:
        raise UsageError(f'[data] sources = "clusters", and {folder} has none; {_cluster_again(folder)}')
    if facts.get("manifest_sha256") != manifest:
        raise UsageError(f"{path}: the clusters of other shards than there are now; {_cluster_again(folder)}")
    return int(facts["clusters"]), sha256(storage.read_bytes(path)).hexdigest()


def _cluster_again(folder: str) -> str:
    return f"`{command('score', folder, '--clusters', '100')}` makes them"


def _columns(folder: str, selection: Selection) -> Known:
    """The columns of a run, checked against the selection."""
    kept, settings = list[str](), storage.join(folder, "config.toml")
    # packed tars and tables have no settings, and keep no columns
    if any(name.startswith(columns.EXTRA) for name in selection.columns) and storage.exists(settings):
        kept = [name for source in CurateConfig.load(settings, []).input for name in source.keep_columns]
    known, setting, weight = columns.known(folder, kept), "where", selection.weight_by
    try:
        for condition in selection.conditions:
            where.check(condition, known.types)
        setting = "weight_by"
        kind = where.kind_of(weight, known.types) if weight else ""
    except where.WhereError as error:
        raise UsageError(f"[data] {setting}: {folder}: {error}") from None
    if weight and kind != "a number":
        raise UsageError(f"[data] weight_by: {folder}: {weight} is {kind}; give a column of numbers")
    of_where = [name for condition in selection.conditions for name in condition.columns(but_of_nulls=True)]
    missing = known.missing([*of_where, *([weight] if weight else [])])
    if missing and not selection.nulls:
        raise UsageError(f'{folder}: {missing}; say what becomes of those: [data] nulls = "drop", or "keep"')
    return known
