"""The folder of a score in a run: a Parquet file for each shard, and a manifest.

    RUN/scores/NAME/NNNNN.parquet   key, and the score's columns: a row a sample, in the order of the shard
    RUN/scores/NAME/manifest.json   what the values rest on, and each file with the side-car that it was made for

A file counts as long as its shard's side-car has the digest that it was made for.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.errors import UnreadableError

FOLDER = "scores"


@dataclass(frozen=True)
class Score:
    """A score of a run: its manifest, and the files by the names of their shards."""

    folder: str
    name: str
    facts: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]

    @property
    def columns(self) -> dict[str, str]:
        """Its columns and their types in Arrow's words."""
        return dict(self.facts["columns"])

    def path(self, shard: str) -> str:
        """The file of a shard."""
        return storage.join(self.folder, f"{shard}.parquet")

    def has(self, shard: str, sidecar_sha256: str) -> bool:
        """Whether the values of a shard are there, and of its side-car as it is."""
        of = self.files.get(shard)
        if of is None or of["of"] != sidecar_sha256 or not storage.exists(self.path(shard)):
            return False
        return storage.stamp(self.path(shard)).size == of["bytes"]

    def values(self, shard: str, names: Sequence[str]) -> pa.Table:
        """These columns of a shard's samples, `key` among them or not, in the order of the shard.

        Raises:
            UnreadableError: the file is missing, or not as it was written.
        """
        path, wanted = self.path(shard), self.files[shard]["bytes"]
        if not storage.exists(path) or storage.stamp(path).size != wanted:
            raise UnreadableError(f"{path}: not as it was written; measure it again with `altalign score`")
        try:
            with storage.open_read(path) as file:
                return pq.ParquetFile(file, pre_buffer=False).read(columns=list(names), use_threads=False)
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            why = next(iter(str(error).splitlines()), type(error).__name__)
            raise UnreadableError(f"{path}: cannot be read as Parquet ({why}); measure it again") from None


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
    return Score(folder, name, facts, {each["name"]: each for each in facts["shards"]}) if facts else None


def all_of(run_folder: str) -> Iterator[Score]:
    """The scores of a run, by name."""
    for name in sorted(storage.entries(storage.join(run_folder, FOLDER))):
        if (score := opened(run_folder, name)) is not None:
            yield score
