"""The folder of a score in a run: a Parquet file for each shard, and a manifest.

    RUN/scores/NAME/NNNNN.parquet   key, and the score's columns: a row a sample, in the order of the shard
    RUN/scores/NAME/manifest.json   what the values rest on, and each file with the side-car that it was made for

A file counts as long as its shard's side-car has the digest that it was made for.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from altalign import storage
from altalign.errors import UnreadableError, first_line

FOLDER = "scores"
_COLUMNS = {"name": pa.string(), "of": pa.string(), "rows": pa.int64(), "bytes": pa.int64(), "sha256": pa.string()}


class Files(Mapping[str, Mapping[str, Any]]):
    """What a manifest says of each file, by the name of its shard.

    A thousand million samples have a hundred thousand shards: columns take a fifth of the memory of as many dicts.
    """

    def __init__(self, stated: dict[str, Any]):
        """Takes the columns of a manifest, and leaves none."""
        nulls = {name: pa.array(counts, pa.int64()) for name, counts in stated.pop("nulls").items()}
        columns = {name: pa.array(stated.pop(name), kind) for name, kind in _COLUMNS.items()}
        self._table = pa.table({**columns, "nulls": pa.StructArray.from_arrays([*nulls.values()], [*nulls])})
        self._places: Any = pc.sort_indices(columns["name"])
        self._sorted: Any = columns["name"].take(self._places)

    def _place(self, name: str) -> int:
        at = bisect_left(range(len(self)), name, key=lambda place: self._sorted[place].as_py())
        if at == len(self) or self._sorted[at].as_py() != name:
            raise KeyError(name)
        return self._places[at].as_py()

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        return self._table.slice(self._place(name), 1).to_pylist()[0]

    def __iter__(self) -> Iterator[str]:
        return map(str, self._table["name"].to_pylist())

    def __len__(self) -> int:
        return len(self._sorted)

    def sizes(self) -> "Files":
        """The same with sizes and digests alone, by which `Score.values` knows that a file is whole."""
        light = copy(self)
        light._table = self._table.select(["name", "bytes", "sha256"])
        return light

    def sums(self, columns: Sequence[str]) -> tuple[int, dict[str, int]]:
        """How many rows all files have, and how many of each column have no value."""
        nulls: Any = self._table["nulls"]
        rows: Any = pc.sum(self._table["rows"], min_count=0)
        missing: dict[str, Any] = {name: pc.sum(pc.struct_field(nulls, name), min_count=0) for name in columns}
        return rows.as_py(), {name: count.as_py() for name, count in missing.items()}


@dataclass(frozen=True)
class Score:
    """A score of a run: its manifest without the files, and these by the names of their shards."""

    folder: str
    name: str
    facts: Mapping[str, Any]
    files: Files

    @property
    def columns(self) -> dict[str, str]:
        """Its columns and their types in Arrow's words."""
        return dict(self.facts["columns"])

    def path(self, shard: str) -> str:
        """The file of a shard."""
        return storage.join(self.folder, f"{shard}.parquet")

    def has(self, shard: str, sidecar_sha256: str) -> bool:
        """Whether the values of a shard are there, and of its side-car as it is."""
        file, path = self.files.get(shard), self.path(shard)
        if file is None or file["of"] != sidecar_sha256 or not storage.exists(path):
            return False
        return storage.stamp(path).size == file["bytes"]

    def read(self, shard: str) -> bytes:
        """The file of a shard.

        Raises:
            UnreadableError: it is missing, or not as it was written.
        """
        path = self.path(shard)
        data = storage.read_bytes(path) if storage.exists(path) else b""
        if hashlib.sha256(data).hexdigest() != self.files[shard]["sha256"]:
            raise UnreadableError(f"{path}: not as it was written; measure it again with `altalign score`")
        return data

    def values(self, shard: str, names: Sequence[str] = ()) -> pa.Table:
        """These columns of a shard's samples, or key and all, in the order of the shard.

        Raises:
            UnreadableError: the file is missing, or not as it was written.
        """
        path, data = self.path(shard), pa.BufferReader(self.read(shard))
        try:
            return pq.ParquetFile(data, pre_buffer=False).read(
                columns=list(names or ("key", *self.columns)), use_threads=False
            )
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            why = first_line(error)
            raise UnreadableError(f"{path}: cannot be read as Parquet ({why}); measure it again") from None


def manifest(facts: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A manifest, with what it says of files in columns.

    Args:
        facts: what the values rest on.
        entries: of each file the name of its shard, `of`, `rows`, `bytes`, `sha256`, and `nulls` of each column.
    """
    nulls = {column: [entry["nulls"][column] for entry in entries] for column in facts["columns"]}
    return {**facts, "shards": {**{name: [entry[name] for entry in entries] for name in _COLUMNS}, "nulls": nulls}}


def folder_of(run_folder: str, name: str) -> str:
    """The folder of a score."""
    return storage.join(run_folder, FOLDER, name)


def opened(run_folder: str, name: str) -> Score | None:
    """A score of a run; None where it has none of the name.

    Raises:
        UnreadableError: its manifest is not as it was written.
    """
    folder = folder_of(run_folder, name)
    facts = storage.read_sealed(storage.join(folder, "manifest.json"))
    return Score(folder, name, facts, Files(facts.pop("shards"))) if facts else None


def all_of(run_folder: str) -> Iterator[Score]:
    """The scores of a run, by name."""
    for name in sorted(storage.entries(storage.join(run_folder, FOLDER))):
        if (score := opened(run_folder, name)) is not None:
            yield score
