"""Finished runs that are trained on: shards, side-cars, and which of their pairs count how much.

A condition and a column of weights read columns of the side-cars, kept columns, and scores of `altalign score`.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

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
from altalign.settings.curate import CurateConfig
from altalign.storage import atomic_change
from altalign.terminal import command
from altalign.train.settings.data import DataSettings


class Shard(NamedTuple):
    """A shard as the manifest of its run has it."""

    folder: str  # the run
    stem: str  # NNNNN
    rows: int
    bytes: int
    sidecar_sha256: str

    def path(self, ending: str, folder: str = "shards") -> str:
        """A file of the shard by its ending: its .tar, and the .parquet beside it or in a folder of the run."""
        return storage.join(self.folder, folder, self.stem + ending)


class Runs:
    """Finished runs of curation, as `[data]` chooses of them.

    `manifests` has the SHA-256 of the manifest of each run. Where clusters are the sources, `clusters` has their number
    in each run and the SHA-256 of its clusters.json. `columns` are those that `where` and `weight_by` read, `scores`
    the SHA-256 of the manifest of each score that they are of, by its folder, as it was when it was opened.
    """

    def __init__(self, folders: Sequence[str], data: DataSettings | None = None) -> None:
        """Read the manifests.

        Raises UsageError where a folder is no finished run or given twice, where clusters, columns or scores are
        missing or of other shards, or where a column may be null and the settings say nothing of that; DamagedError
        where a manifest is not as it was written.
        """
        self.data = data or DataSettings()
        self.shards, self.manifests = list[Shard](), dict[str, str]()
        self.clusters, self.scores = dict[str, tuple[int, str]](), dict[str, str]()
        self._known, self._own_shares = dict[str, Known](), dict[str, Mapping[str, float]]()
        self._conditions = [where.parsed(self.data.where)] if self.data.where else []
        of_where = [name for condition in self._conditions for name in condition.columns()]
        self.columns = list(dict.fromkeys([*of_where, *filter(None, [self.data.weight_by])]))
        for folder in folders:
            if folder in self.manifests:
                raise UsageError(f"[data] runs: {folder} is there twice; name it once")
            self.manifests[folder], shards = _manifest(folder)
            settings = storage.join(folder, "config.toml")
            if self.data.captions == "drawn":  # packed tars and tables have no settings
                is_there = storage.exists(settings)
                self._own_shares[folder] = CurateConfig.load(settings, []).shards.caption_shares if is_there else {}
            self.shards.extend(shards)
            if self.data.sources == "clusters":
                path = storage.join(folder, "clusters", "clusters.json")
                if not (facts := storage.read_json(path)):
                    raise UsageError(f'[data] sources = "clusters", and {folder} has none; {_cluster_again(folder)}')
                if facts.get("manifest_sha256") != self.manifests[folder]:
                    why = "the clusters of other shards than there are now"
                    raise UsageError(f"{path}: {why}; {_cluster_again(folder)}")
                self.clusters[folder] = int(facts["clusters"]), sha256(storage.read_bytes(path)).hexdigest()
            if self.columns:
                self._known[folder] = known = self._checked_columns(folder)
                scores = known.scores_of(self.columns).values()
                columns.check_measured([(shard.stem, shard.sidecar_sha256) for shard in shards], scores)
                for score in scores:
                    manifest = storage.read_bytes(storage.join(score.folder, "manifest.json"))
                    self.scores[score.folder] = sha256(manifest).hexdigest()

    @property
    def remote(self) -> str:
        """A folder in a store, of which many reads go at a time; empty: there is none."""
        return next((folder for folder in self.manifests if storage.is_remote(folder)), "")

    def sidecars(self, names: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """The side-cars, of these columns and those that `[data]` reads, with the numbers of their shards."""
        read = list(dict.fromkeys([*names, *columns.of_sidecar(self.columns)]))

        def sidecar(shard: Shard) -> pa.Table:
            path = shard.path(".parquet")
            try:
                data = storage.read_bytes(path)
            except FileNotFoundError:
                raise damaged(shard.folder, path, "it is not there") from None
            if sha256(data).hexdigest() != shard.sidecar_sha256:
                raise damaged(shard.folder, path, "its SHA-256 is not the one in manifest.json")
            try:
                table = pq.read_table(io.BytesIO(data), columns=read, use_threads=False)
            except (pa.ArrowException, OSError) as error:
                raise damaged(shard.folder, path, f"cannot be read as Parquet ({error})") from None
            if len(table) != shard.rows:
                raise damaged(shard.folder, path, f"{len(table):,} rows, and manifest.json says {shard.rows:,}")
            return table

        yield from enumerate(storage.each(sidecar, self.shards, place=self.remote))

    def choice(self, number: int, rows: pa.Table) -> tuple[npt.NDArray[np.str_], npt.NDArray[np.float64]]:
        """Why each of the n pairs of a shard is left out (empty: it is not), and the weight of each, float64[n].

        `rows` are its side-car, of `sidecars`, with `key`. Raises UnreadableError: scores are damaged, or of other
        pairs. UsageError: a weight is negative, or missing.
        """
        shard, name, nulls = self.shards[number], self.data.weight_by, self.data.nulls
        why, weights = np.full(len(rows), "", "<U8"), np.ones(len(rows))
        if not self.columns:
            return why, weights
        table = columns.joined(rows, shard.stem, self.columns, self._known[shard.folder].scores)
        for holds in where.holds(self._conditions, table):
            why[~holds.fill_null(True).to_numpy(zero_copy_only=False)] = "where"  # noqa: FBT003
            if nulls != "keep":
                why[~holds.is_valid().to_numpy(zero_copy_only=False)] = "missing"
        if not name:
            return why, weights
        column, stays = table[name].combine_chunks(), why == ""
        has_value = column.is_valid().to_numpy(zero_copy_only=False)
        weights = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        place = f"[data] weight_by: {name} in {shard.path('')}"
        if nulls == "keep" and (stays & ~has_value).any():
            raise UsageError(f'{place}: no value, and nulls = "keep" gives no weight; give "drop"')
        if (wrong := stays & ~(weights >= 0) | np.isinf(weights)).any():
            raise UsageError(f"{place}: {weights[wrong][0]:g}; give a column of numbers that are 0 or more")
        why[stays & ~has_value] = "missing"
        why[stays & has_value & (weights == 0)] = "weight"
        return why, weights

    def shares(self, number: int, table: pa.Table) -> npt.NDArray[np.float64]:
        """How often each caption of a shard is drawn beside others of its image: float64[n], in any unit.

        Raises UsageError: `caption_shares` lacks one of the sources.
        """
        shares = self.data.caption_shares or self._own_shares.get(self.shards[number].folder, {})
        sources = [str(source) for source in table["source"].to_pylist()]
        if shares and (missing := sorted({*sources} - shares.keys())):
            why = f"no share for {missing[0]}; give each source one, 0 to leave it out"
            raise UsageError(f"[data] caption_shares: {why}")
        return np.array([shares.get(source, 1.0) for source in sources], np.float64)

    def sources_of(self, number: int, table: pa.Table) -> "pa.Array[pa.StringScalar]":
        """The source of each pair of a shard, its input or its cluster. Raises UnreadableError: of other pairs."""
        shard = self.shards[number]
        if shard.folder not in self.clusters:
            return table["source"].combine_chunks()
        path = shard.path(".parquet", "clusters")
        try:
            rows = pq.read_table(io.BytesIO(storage.read_bytes(path)), use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise UnreadableError(f"{path}: {error}; {_cluster_again(shard.folder)}") from None
        if rows.schema != CLUSTER or rows["key"] != table["key"]:
            raise UnreadableError(f"{path}: not the clusters of {shard.stem}.tar; {_cluster_again(shard.folder)}")
        digits = len(str(self.clusters[shard.folder][0] - 1))
        names = [f"{shard.folder}#{cluster:0{digits}}" for cluster in rows["cluster"].to_pylist()]
        return pa.array(names, pa.string())

    def _checked_columns(self, folder: str) -> Known:
        """The columns of a run, checked against what is read of them."""
        kept, settings, weight = list[str](), storage.join(folder, "config.toml"), self.data.weight_by
        # packed tars and tables have no settings, and keep no columns
        if any(name.startswith(columns.EXTRA) for name in self.columns) and storage.exists(settings):
            kept = [name for source in CurateConfig.load(settings, []).input for name in source.keep_columns]
        known, setting = columns.known(folder, kept), "where"
        try:
            for condition in self._conditions:
                where.check(condition, known.types)
            setting = "weight_by"
            if weight and (kind := where.kind_of(weight, known.types)) != "a number":
                raise where.WhereError(f"{weight} is {kind}; give a column of numbers")
        except where.WhereError as error:
            raise UsageError(f"[data] {setting}: {folder}: {error}") from None
        read = [name for condition in self._conditions for name in condition.columns(but_of_nulls=True)]
        if (missing := known.missing([*read, *filter(None, [weight])])) and not self.data.nulls:
            raise UsageError(f'{folder}: {missing}; say what becomes of those: [data] nulls = "drop", or "keep"')
        return known


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


def _cluster_again(folder: str) -> str:
    return f"`{command('score', folder, '--clusters', '100')}` makes them"
