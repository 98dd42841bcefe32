"""What `tables` leaves: hashes of each unit of the pool by partition, and the merged entries of each partition."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from altalign import storage
from altalign.pipelines.run.units import Facts, Files, Marks, Unit


class PoolUnit(Unit):
    """Row groups `first` to `last` of a file's pool, to be read so many rows at once.

    `order` is the unit's place in input order, `row` its first row.
    """

    order: int
    file: int
    direct: bool
    first: int
    last: int
    row: int
    rows: int
    rows_at_once: int


@dataclass(frozen=True)
class CountFacts(Facts):
    """Rows that were counted, where the slices of the spill file lie, and the histogram of words as JSON."""

    rows: int
    spilled: list[int]
    words: list[list[int]]


@dataclass(frozen=True)
class MergeFacts(Facts):
    """Histogram (as JSON) and number of a partition's entries, by kind of table; images by source."""

    ngrams: list[list[int]]
    ngrams_rows: int
    texts: list[list[int]]
    texts_rows: int
    images: list[list[int]]
    images_rows: int
    images_of_sources: list[int] | None


COUNTED = Marks("tables/units", CountFacts)
MERGED = Marks("tables/merged", MergeFacts)


class Counted(Files):
    """What counting a unit of the pool leaves."""

    step = COUNTED.step

    @property
    def spill(self) -> str:
        """Hashes by partition."""
        return self.path("spill")


class Merged(Files):
    """What merging a partition leaves: pairs (hash, count) for each kind of table."""

    step = MERGED.step

    def entries(self, kind: str) -> npt.NDArray[np.uint64]:
        """The entries for one kind of table: (hash, count) as uint64[n, 2], sorted by hash."""
        return np.frombuffer(storage.read_bytes(self.path(kind)), np.uint64).reshape(-1, 2)

    def write(self, kind: str, hashes: npt.NDArray[np.uint64], counts: npt.NDArray[np.int64]) -> None:
        """Write the entries for one kind of table: n hashes, sorted, and n counts."""
        storage.write_bytes(self.path(kind), np.stack([hashes, counts.astype(np.uint64)], axis=1).tobytes())
