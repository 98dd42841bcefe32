"""What `extract`, `tables` and `judge` hand on: units, facts in their marks, and tables."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.data.audit_tables import TEXT_MEASURES
from altalign.data.counts import CountRow, FailedRow
from altalign.data.schema import CANDIDATE, CARRIED, DROPPED
from altalign.pipelines.run.image_places import PLACE
from altalign.pipelines.run.units import Marks, Run, Table, Unit

FileUnit = Unit  # `file`: the number of an input file in input order
# Row groups `first` to `last` of the pool of an input file (`file`), which is the file itself where it is `direct`;
# `order`: of the unit in input order; `row`: its first row, of `rows`; `rows_at_once`: how many may be read at a time.
PoolUnit = Unit


RowGroup = dict[str, int]  # a row group of grouped survivors, which is one fetch unit: its `rows` and `images`


class ExtractFacts(NamedTuple):
    """What was read of an input file."""

    stamp: list[int | str]  # size and time of change of the file, or its digest in the store, before it was read
    direct: bool  # whether the file is its own pool (a Parquet table of one caption a row, without images)
    row_groups: list[int]  # rows of each row group of its pool
    rows_at_once: int  # how many rows of it may be read at a time
    bytes: int  # of its rows in memory, at most; 0 where a table that is its own pool has no long values
    places: int | None  # how many places of images it has; None where it has no images
    broken: int | None  # how many records could not be read
    counts: list[CountRow]  # rows by stage, source and reason
    failed: list[FailedRow]  # rows by every rule that holds


class CountFacts(NamedTuple):
    """Rows that were counted, where the slices of the spill file lie, and the histogram of words as JSON."""

    rows: int
    spilled: list[int]
    words: list[list[int]]


class MergeFacts(NamedTuple):
    """Histogram (as JSON) and number of a partition's entries, by kind of table; images by source."""

    ngrams: list[list[int]]
    ngrams_rows: int
    texts: list[list[int]]
    texts_rows: int
    images: list[list[int]]
    images_rows: int
    images_of_sources: list[int] | None = None


class JudgeFacts(NamedTuple):
    """Rows that were judged, where the slices of survivors lie, and counts of dropped rows."""

    rows: int
    spilled: list[int]
    counts: list[CountRow]
    failed: list[FailedRow]


class GroupFacts(NamedTuple):
    """The fetch units of a partition, and counts of kept rows and of repeated pairs."""

    row_groups: list[RowGroup]
    counts: list[CountRow]
    failed: list[FailedRow]


EXTRACTED = Marks("extract", ExtractFacts)
COUNTED = Marks("tables/units", CountFacts)
MERGED = Marks("tables/merged", MergeFacts)
JUDGED = Marks("judge/units", JudgeFacts)
GROUPED = Marks("judge/grouped", GroupFacts)
STEPS = (EXTRACTED, COUNTED, MERGED, JUDGED, GROUPED)

# extract

# A file of a part of a folder: its name in the folder (bytes, as a file system has them) and its stamp.
FOLDER_FILE = pa.schema([("name", pa.binary()), ("size", pa.int64()), ("time_ns", pa.int64()), ("digest", pa.string())])

CANDIDATES = Table("work/extract/*.parquet", "the candidates of an input file: its pool", CANDIDATE)
BROKEN_RECORDS = Table("work/extract/*.broken.parquet", "records that cannot be read", DROPPED)
EXTRACT_SAMPLE = Table("work/extract/*.sample.parquet", "dropped rows of the smallest keys", DROPPED)
COPIED_IMAGES = Table("work/extract/*.images", "images that cannot be read at an offset")
FOLDER_FILES = Table("work/extract/*.files.parquet", "the files of a part of a folder", FOLDER_FILE)
PLACES = Table("work/extract/*.places", "where images are, sorted by image_id", PLACE, is_raw=True)
_OF_PAYLOADS = "the same by payload, and revisits; missing where none"
PAYLOADS = Table("work/extract/*.payloads", _OF_PAYLOADS, PLACE, is_raw=True)
REVISITS = Table("work/extract/revisits", "places of images that only revisit records have", PLACE, is_raw=True)
_OF_NOTICES = "places of the robots.txt and tdmrep.json of an archive; missing where none"
NOTICES = Table("work/extract/*.notices", _OF_NOTICES, PLACE, is_raw=True)
ALL_NOTICES = Table("work/extract/notices.npy", "of all archives those of each origin that count, sorted", PLACE)
POOL_SIZE = Table("work/extract/pool/size.json", "rows and bytes of the whole pool")

# tables

_HASH, _COUNT, _LOG2 = np.dtype(np.uint64), np.dtype(np.int64), np.dtype(np.uint8)
# kinds of tables by their names in `work/`, and the names of the final tables
KINDS = {"ngrams": "vocabulary", "texts": "over_shared_texts", "images": "over_captioned_images"}

HASHES = Table("work/tables/units/*.spill", "hashes by partition", _HASH, is_raw=True)
ENTRIES = {
    kind: Table(f"work/tables/merged/*.{kind}", f"hashes and counts of {kind}", _HASH, is_raw=True) for kind in KINDS
}
TABLES = {kind: Table(f"tables/{name}.npy", "hashes, sorted", _HASH) for kind, name in KINDS.items()}
COUNTS = {
    "ngrams": Table("tables/vocabulary_log2.npy", "eight times log2 of each count", _LOG2),
    "texts": Table("tables/over_shared_texts_counts.npy", "the count of each hash", _COUNT),
    "images": Table("tables/over_captioned_images_counts.npy", "the count of each hash", _COUNT),
}
TABLE_FACTS = {kind: Table(f"tables/{name}.json", "rows, threshold, versions") for kind, name in KINDS.items()}
WANTED_HASHES = Table("work/tables/wanted.json", "hashes whose strings the report shows")
FINAL = (*TABLES.values(), *COUNTS.values(), *TABLE_FACTS.values(), WANTED_HASHES)  # what later stages read
HISTOGRAMS = Table("audit/histograms.json", "counts of words, n-grams, texts and images")


def entries_of(run: Run, partition: str, kind: str) -> npt.NDArray[np.uint64]:
    """The entries of a partition for one kind of table: (hash, count) as uint64[n, 2], sorted by hash."""
    return ENTRIES[kind].array(run, partition).reshape(-1, 2)


# judge

# A candidate that passed every rule but `pair_repeated`; `file` and `row` say where in the input it stands.
_IDS = [(name, pa.binary(16)) for name in ("key", "image_id")]
_IN_POOL = [("file", pa.int32()), ("row", pa.int64()), ("words", pa.int32())]
SURVIVOR = pa.schema([*_IDS, *((name, pa.string()) for name in CARRIED), *_IN_POOL])

# A survivor after the grouping, with the place of its image: null where no archive has it.
_PLACE = {"file": pa.int32(), "kind": pa.int32(), "offset": pa.int64(), "length": pa.int64()}
PLACED_SURVIVOR = pa.schema([*SURVIVOR, *(pa.field(f"place_{name}", kind) for name, kind in _PLACE.items())])

SURVIVORS = Table("work/judge/units/*.survivors", "candidates that pass, by partition", SURVIVOR, is_raw=True)
MEASURED_TEXTS = Table("work/judge/units/*.measures", "a unit's part of the histograms", TEXT_MEASURES.schema)
SEEN_STRINGS = Table("work/judge/units/*.seen", "strings of wanted hashes, and scripts of captions")
JUDGE_SAMPLE = Table("work/judge/units/*.samples", "dropped rows for the galleries", DROPPED)
_OF_OFFSETS = "how buckets cut an input file's places"
OFFSETS_OF_PLACES = Table("work/judge/places/*.offsets", _OF_OFFSETS, np.dtype("<i8"), is_raw=True)
_OF_GROUPED = "each pair once, by image_id and key, with the place of its image"
GROUPED_SURVIVORS = Table("work/judge/grouped/*.parquet", _OF_GROUPED, PLACED_SURVIVOR)
