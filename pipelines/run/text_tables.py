"""What `extract`, `tables` and `judge` hand on: units, facts in their marks, and tables."""

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.data.audit_tables import TEXT_MEASURES
from altalign.data.counts import CountRow, FailedRow
from altalign.data.schema import CANDIDATE, DROPPED, STRINGS
from altalign.pipelines.run.image_places import PLACE
from altalign.pipelines.run.units import Facts, Format, Marks, Run, Table, Unit


class FileUnit(Unit):
    """One input file, by its number in input order."""

    file: int


@dataclass(frozen=True)
class ExtractFacts(Facts):
    """What was read of an input file.

    Attributes:
        stamp: size and time of change of the file, or its digest in the store, before it was read.
        direct: whether the file is its own pool (a Parquet table of one caption a row, without images).
        row_groups: rows of each row group of its pool.
        rows_at_once: how many rows of it may be read at a time.
        bytes: of its rows in memory, at most; 0 where a table that is its own pool has no long values.
        places: how many places of images it has; None where it has no images.
        broken: how many records could not be read.
        counts: rows by stage, source and reason.
        failed: rows by every rule that holds.
    """

    stamp: list[int | str]
    direct: bool
    row_groups: list[int]
    rows_at_once: int
    bytes: int
    places: int | None
    broken: int | None
    counts: list[CountRow]
    failed: list[FailedRow]


EXTRACTED = Marks("extract", ExtractFacts)

# A file of a part of a folder: its name in the folder (bytes, as a file system has them) and its stamp.
FOLDER_FILE = pa.schema([("name", pa.binary()), ("size", pa.int64()), ("time_ns", pa.int64()), ("digest", pa.string())])

CANDIDATES = Table("work/extract/*.parquet", Format.PARQUET, CANDIDATE, "the candidates of an input file: its pool")
BROKEN_RECORDS = Table("work/extract/*.broken.parquet", Format.PARQUET, DROPPED, "records that cannot be read")
EXTRACT_SAMPLE = Table("work/extract/*.sample.parquet", Format.PARQUET, DROPPED, "dropped rows of the smallest keys")
COPIED_IMAGES = Table("work/extract/*.images", Format.BYTES, holds="images that cannot be read at an offset")
FOLDER_FILES = Table("work/extract/*.files.parquet", Format.PARQUET, FOLDER_FILE, "the files of a part of a folder")
PLACES = Table("work/extract/*.places", Format.ROWS, PLACE, "where images are, sorted by image_id")
PAYLOADS = Table(
    "work/extract/*.payloads",
    Format.ROWS,
    PLACE,
    "the same by the ids of their payloads' names, and revisits; missing where there are none",
)
REVISITS = Table("work/extract/revisits", Format.ROWS, PLACE, "places of images that only revisit records have")
POOL_SIZE = Table("work/extract/pool/size.json", Format.JSON, holds="rows and bytes of the whole pool")


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


def entries_of(run: Run, partition: str, kind: str) -> npt.NDArray[np.uint64]:
    """The entries of a partition for one kind of table: (hash, count) as uint64[n, 2], sorted by hash."""
    return ENTRIES[kind].array(run, partition).reshape(-1, 2)


# A candidate that passed every rule but `pair_repeated`; `file` and `row` say where in the input it stands.
SURVIVOR = pa.schema(
    [
        ("key", pa.binary(16)),
        ("image_id", pa.binary(16)),
        *((name, pa.string()) for name in STRINGS),
        ("file", pa.int32()),
        ("row", pa.int64()),
        ("words", pa.int32()),
    ]
)

# A survivor after the grouping, with the place of its image: null where no archive has it.
PLACED_SURVIVOR = pa.schema(
    [
        *SURVIVOR,
        pa.field("place_file", pa.int32()),
        pa.field("place_kind", pa.int32()),
        pa.field("place_offset", pa.int64()),
        pa.field("place_length", pa.int64()),
    ]
)


@dataclass(frozen=True)
class JudgeFacts(Facts):
    """Rows that were judged, where the slices of survivors lie, and counts of dropped rows."""

    rows: int
    spilled: list[int]
    counts: list[CountRow]
    failed: list[FailedRow]


class RowGroup(TypedDict):
    """A row group of grouped survivors: one fetch unit."""

    rows: int
    images: int


@dataclass(frozen=True)
class GroupFacts(Facts):
    """The fetch units of a partition, and counts of kept rows and of repeated pairs."""

    row_groups: list[RowGroup]
    counts: list[CountRow]
    failed: list[FailedRow]


JUDGED = Marks("judge/units", JudgeFacts)
GROUPED = Marks("judge/grouped", GroupFacts)
STEPS = (EXTRACTED, COUNTED, MERGED, JUDGED, GROUPED)

SURVIVORS = Table("work/judge/units/*.survivors", Format.ARROW, SURVIVOR, "candidates that pass, by partition")
MEASURED_TEXTS = Table(
    "work/judge/units/*.measures", Format.PARQUET, TEXT_MEASURES.schema, "a unit's part of the histograms"
)
SEEN_STRINGS = Table("work/judge/units/*.seen", Format.JSON, holds="strings of wanted hashes, and scripts of captions")
JUDGE_SAMPLE = Table("work/judge/units/*.samples", Format.PARQUET, DROPPED, "dropped rows for the galleries")
SLICES_OF_PLACES = Table(
    "work/judge/places/*.slices",
    Format.ROWS,
    np.dtype([("bucket", "<i8"), ("offset", "<i8"), ("length", "<i8")]),
    "how partitions cut an input file's places",
)
GROUPED_SURVIVORS = Table(
    "work/judge/grouped/*.parquet",
    Format.PARQUET,
    PLACED_SURVIVOR,
    "each pair once, sorted by image_id and key, with the place of its image; a row group is a fetch unit",
)
