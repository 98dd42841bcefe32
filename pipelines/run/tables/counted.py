"""What `tables` leaves: hashes of each unit of the pool by partition, and the merged entries of each partition."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from altalign.pipelines.run.tables.table import Format, Table
from altalign.pipelines.run.units import Facts, Marks, Run, Unit


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
STEPS = (COUNTED, MERGED)

_HASH, _COUNT = np.dtype(np.uint64), np.dtype(np.int64)
# kinds of tables by their names in `work/`, and the names of the final tables
KINDS = {"ngrams": "vocabulary", "texts": "over_shared_texts", "images": "over_captioned_images"}

HASHES = Table("work/tables/units/*.spill", Format.ROWS, _HASH, "hashes of n-grams, texts and images by partition")
ENTRIES = {
    kind: Table(f"work/tables/merged/*.{kind}", Format.ROWS, _HASH, f"pairs of hash and count of {kind}, by hash")
    for kind in KINDS
}
TABLES = {kind: Table(f"tables/{name}.npy", Format.NUMPY, _HASH, "hashes, sorted") for kind, name in KINDS.items()}
COUNTS = {
    "ngrams": Table("tables/vocabulary_log2.npy", Format.NUMPY, np.dtype(np.uint8), "eight times log2 of each count"),
    "texts": Table("tables/over_shared_texts_counts.npy", Format.NUMPY, _COUNT, "the count of each hash"),
    "images": Table("tables/over_captioned_images_counts.npy", Format.NUMPY, _COUNT, "the count of each hash"),
}
TABLE_FACTS = {
    kind: Table(f"tables/{name}.json", Format.JSON, holds="rows, threshold, versions") for kind, name in KINDS.items()
}
WANTED_HASHES = Table("work/tables/wanted.json", Format.JSON, holds="hashes whose strings the report shows")
FINAL = (*TABLES.values(), *COUNTS.values(), *TABLE_FACTS.values(), WANTED_HASHES)  # what later stages read
HISTOGRAMS = Table("audit/histograms.json", Format.JSON, holds="counts of words, n-grams, texts and images")


def entries(run: Run, partition: str, kind: str) -> npt.NDArray[np.uint64]:
    """The entries of a partition for one kind of table: (hash, count) as uint64[n, 2], sorted by hash."""
    return ENTRIES[kind].array(run, partition).reshape(-1, 2)
