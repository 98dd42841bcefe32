"""The folder of a score in a run: a Parquet file for each shard, and a manifest.

    RUN/scores/NAME/NNNNN.parquet   key, and the score's columns: a row a sample, in the order of the shard
    RUN/scores/NAME/dropped.parquet the same of dropped images that galleries show, of an embedding
    RUN/scores/NAME/manifest.json   what the values rest on, and each file with the side-car that it was made for

A file counts as long as its shard's side-car has the digest that it was made for.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.errors import UnreadableError, first_line

FOLDER = "scores"
DROPPED = "dropped"  # in the place of a shard's name, with the digest of the galleries' pictures in that of a side-car
_COLUMNS = ("name", "of", "rows", "bytes", "sha256")  # of what a manifest says of files


@dataclass(frozen=True)
class Score:
    """A score of a run: its manifest without the files, and these by the names of their shards."""

    folder: str
    name: str
    facts: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]

    @property
    def columns(self) -> dict[str, str]:
        """Its columns and their types in Arrow's words."""
        return dict(self.facts["columns"])

    @property
    def is_embedding(self) -> bool:
        """Whether its values are vectors, which no condition takes."""
        return self.facts["kind"] == "embedding"

    def path(self, shard: str) -> str:
        """The file of a shard."""
        return storage.join(self.folder, f"{shard}.parquet")

    def sums(self) -> tuple[int, dict[str, int]]:
        """How many rows the files of shards have, and how many of each column have no value."""
        files = [file for name, file in self.files.items() if name != DROPPED]
        nulls = {name: sum(file["nulls"][name] for file in files) for name in self.columns}
        return sum(file["rows"] for file in files), nulls

    def has(self, shard: str, sidecar_sha256: str) -> bool:
        """Whether the values of a shard are there, and of its side-car as it is."""
        file, path = self.files.get(shard), self.path(shard)
        if file is None or file["of"] != sidecar_sha256 or not storage.exists(path):
            return False
        return storage.stamp(path).size == file["bytes"]

    def read(self, shard: str) -> bytes:
        """The file of a shard; UnreadableError where it is missing, or not as it was written."""
        path = self.path(shard)
        data = storage.read_bytes(path) if storage.exists(path) else b""
        if hashlib.sha256(data).hexdigest() != self.files[shard]["sha256"]:
            raise UnreadableError(f"{path}: not as it was written; measure it again with `altalign score`")
        return data

    def values(self, shard: str, names: Sequence[str] = ()) -> pa.Table:
        """These columns of a shard's samples, or key and all, in the order of the shard."""
        path, data = self.path(shard), pa.BufferReader(self.read(shard))
        try:
            file = pq.ParquetFile(data, pre_buffer=False)
            return file.read(columns=list(names or ("key", *self.columns)), use_threads=False)
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            why = first_line(error)
            raise UnreadableError(f"{path}: cannot be read as Parquet ({why}); measure it again") from None


def manifest(facts: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A manifest: what the values rest on, and of each file `_COLUMNS` and the `nulls` of each column, in columns."""
    nulls = {column: [entry["nulls"][column] for entry in entries] for column in facts["columns"]}
    return {**facts, "shards": {**{name: [entry[name] for entry in entries] for name in _COLUMNS}, "nulls": nulls}}


def sidecars(run_manifest: Mapping[str, Any]) -> dict[str, str]:
    """The shards of a run's manifest by their names without an ending: SHA-256 of each side-car."""
    return {str(each["name"]).removesuffix(".tar"): str(each["parquet_sha256"]) for each in run_manifest["shards"]}


def folder_of(run_folder: str, name: str) -> str:
    """The folder of a score."""
    return storage.join(run_folder, FOLDER, name)


def opened(run_folder: str, name: str) -> Score | None:
    """A score of a run; None where it has none of the name."""
    folder = folder_of(run_folder, name)
    facts = storage.read_sealed(storage.join(folder, "manifest.json"))
    if not facts:
        return None
    stated = facts.pop("shards")
    counts = zip(*stated["nulls"].values(), strict=True)
    stated["nulls"] = [dict(zip(stated["nulls"], each, strict=True)) for each in counts]
    entries = zip(*(stated[column] for column in (*_COLUMNS, "nulls")), strict=True)
    files: dict[str, Mapping[str, Any]] = {
        entry[0]: dict(zip((*_COLUMNS, "nulls"), entry, strict=True)) for entry in entries
    }
    return Score(folder, name, facts, files)


def all_of(run_folder: str) -> Iterator[Score]:
    """The scores of a run, by name."""
    for name in sorted(storage.entries(storage.join(run_folder, FOLDER))):
        if (score := opened(run_folder, name)) is not None:
            yield score
