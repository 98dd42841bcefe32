"""What `decontaminate` leaves: test images, what is learned, pairs that are near, and which rows stay."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from altalign import storage
from altalign.data.counts import CountRow, FailedRow
from altalign.pipelines.run.tables.fetched import FETCHED_ROWS, FunnelRow, ImagesRow
from altalign.pipelines.run.tables.table import Format, Table
from altalign.pipelines.run.units import Facts, Marks, Run, Unit

# One row a test image. `features` and `mirrored` are int16[d] as bytes; both are null where the image is flat, the
# second also where settings do not ask for it.
TEST_IMAGE = pa.schema(
    [
        ("test_set", pa.string()),
        ("test_image", pa.string()),
        ("sha256", pa.string()),
        ("features", pa.binary()),
        ("mirrored", pa.binary()),
    ]
)
TEST_NAME = pa.schema([TEST_IMAGE.field("test_set"), TEST_IMAGE.field("test_image")])
# copy_of is null for an original, which comes before its copies
AUGMENTED_ROW = pa.schema([("features", pa.binary()), ("copy_of", pa.int32())])


class TestUnit(Unit):
    """A part of a test set (`test_sets.Part.to_json`), and a digest of the files and settings that reading it uses."""

    part: dict[str, object]
    digest: str


class AugmentedUnit(Unit):
    """Images whose copies teach the map: unit, offset and bytes of each; and a digest of what they rest on."""

    images: list[tuple[str, int, int]]
    digest: str


@dataclass(frozen=True)
class TestFacts(Facts):
    """How many test images of a part were read, how many are flat, and the digest of their unit."""

    digest: str
    test_set: str
    images: int
    flat: int


@dataclass(frozen=True)
class AugmentedFacts(Facts):
    """How many images were copied, and the digest of their unit."""

    digest: str
    images: int


@dataclass(frozen=True)
class LearnedFacts(Facts):
    """How many clusters were found, and how many images the map was learned from."""

    clusters: int
    training_images: int


@dataclass(frozen=True)
class IndexFacts(Facts):
    """How many test images are in the index, and how many of them are flat."""

    test_images: int
    flat_test_images: int


ONLY = "00000"  # name of the unit of a step that has one
TESTS = Marks("test_images", TestFacts)
AUGMENTED = Marks("augmented", AugmentedFacts)
LEARNED = Marks("decontaminate/map", LearnedFacts)
INDEX = Marks("decontaminate/index", IndexFacts)


_INT16 = np.dtype(np.int16)
TEST_IMAGES = Table("work/test_images/*.parquet", Format.PARQUET, TEST_IMAGE, "features of a part of a test set")
AUGMENTED_IMAGES = Table(
    "work/augmented/*.parquet", Format.PARQUET, AUGMENTED_ROW, "features of images and their copies"
)
TEST_NAMES = Table("work/decontaminate/index/names.parquet", Format.PARQUET, TEST_NAME, "set and name of each image")
INDEX_ARRAYS = Table(
    "work/decontaminate/index/*.npy", Format.NUMPY, holds="vectors of test images, as the search maps them"
)
CALIBRATION = Table("audit/near_duplicates/calibration.json", Format.JSON, holds="threshold, embedder, map")
CALIBRATION_ARRAYS = Table("audit/near_duplicates/*.npy", Format.NUMPY, holds="the map and the centroids of clusters")

# What is found, and what goes -----------------------------------------------------------------------------------------

# The test images near to each image of a fetch unit: at most one row a pair. The cosine is 1 where the bytes are equal.
NEAR = pa.schema([("image", pa.int32()), ("test", pa.int32()), ("cosine", pa.float64()), ("shares_bucket", pa.bool_())])

# A pair of images of the pool by their numbers; the key of the left one.
PAIR = np.dtype([("left", "<i8"), ("right", "<i8"), ("cosine", "<f8"), ("key", "u1", 16)])
# What stays in the place of an image: its key, and their cosine.
REPLACEMENT = np.dtype([("key", "u1", 16), ("cosine", "<f8")])


class FindUnit(Unit):
    """A fetch unit; whether pairs below the threshold are looked for too."""

    looks_below: bool


@dataclass(frozen=True)
class FoundFacts(Facts):
    """How many images were searched for, and how many pairs were found above the threshold and below it."""

    images: int
    flat_images: int
    pairs: int
    pairs_below: int
    pairs_without_a_bucket: int
    images_above: int
    images_without_a_bucket: int


class PoolImagesUnit(Unit):
    """Fetch units that follow one another: the place of the first in their order, and their names."""

    order: int
    first: int
    fetch_units: list[str]


@dataclass(frozen=True)
class CellFacts(Facts):
    """How many cells there are."""

    cells: int


@dataclass(frozen=True)
class CompareFacts(Facts):
    """Where the slices of cells lie, how many images were compared, and how many have the same bytes as another."""

    spilled: list[int]
    images: int
    same_bytes: int


@dataclass(frozen=True)
class JoinFacts(Facts):
    """How many pairs have the same bytes, and how many images the cell has."""

    same_bytes: int
    largest_cell: int


@dataclass(frozen=True)
class ReplaceFacts(Facts):
    """How many images go, and how many stay in their place."""

    images_that_go: int
    images_that_stay_for_others: int


class DropUnit(Unit):
    """A fetch unit, its place in the order of units, and the facts of its mark."""

    place: int
    kept: int
    counts: list[CountRow]
    funnel: list[FunnelRow]


@dataclass(frozen=True)
class DropFacts(Facts):
    """How many rows stay, counts, the funnel's entries, and dropped images as in `FetchFacts`."""

    kept: int
    counts: list[CountRow]
    failed: list[FailedRow]
    funnel: list[FunnelRow]
    dropped_images: list[ImagesRow] | None


FOUND = Marks("decontaminate/search", FoundFacts)
CELLS = Marks("decontaminate/cells", CellFacts)
COMPARED = Marks("decontaminate/compared", CompareFacts)
JOINED = Marks("decontaminate/joined", JoinFacts)
REPLACED = Marks("decontaminate/replaced", ReplaceFacts)
DECONTAMINATED = Marks("decontaminate/units", DropFacts)
STEPS = (TESTS, AUGMENTED, LEARNED, INDEX, FOUND, CELLS, COMPARED, JOINED, REPLACED, DECONTAMINATED)


SIMILAR = Table("work/decontaminate/search/*.parquet", Format.PARQUET, NEAR, "pairs above the threshold")
LESS_SIMILAR = Table("work/decontaminate/search/*.below", Format.PARQUET, NEAR, "pairs below it, for the gallery")
CENTROIDS_OF_CELLS = Table("work/decontaminate/cells/centroids.npy", Format.NUMPY, _INT16, "int16[cells, d]")
SPILLED_VECTORS = Table("work/decontaminate/compared/*.spill", Format.BYTES, holds="vectors and digests by cell")
PAIRS_OF_UNIT = Table("work/decontaminate/compared/*.pairs", Format.NUMPY, PAIR, "pairs that a unit found by itself")
PAIRS_OF_CELL = Table("work/decontaminate/joined/*.pairs", Format.NUMPY, PAIR, "pairs of a cell")
REPLACED_IMAGES = Table(
    "work/decontaminate/replaced/goes.npy", Format.NUMPY, np.dtype(np.int64), "numbers of the images that go, rising"
)
REPLACED_BY = Table("work/decontaminate/replaced/kept.npy", Format.NUMPY, REPLACEMENT, "what stays in their place")
KEPT_ROWS = Table(
    "work/decontaminate/units/*.rows",
    Format.NUMPY,
    np.dtype(np.int64),
    "numbers of the rows of `work/fetch/units/*.parquet` that stay; missing where all do",
)
FOUND_FACTS = Table("audit/near_duplicates/found.json", Format.JSON, holds="what was looked for and found")


def kept_rows(run: Run, name: str) -> pa.Table:
    """The rows (`FETCHED_ROW`) of a fetch unit that decontamination keeps."""
    rows = FETCHED_ROWS.read(run, name)
    return rows.take(KEPT_ROWS.array(run, name)) if storage.exists(KEPT_ROWS.path(run, name)) else rows
