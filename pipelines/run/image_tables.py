"""What `fetch` and `decontaminate` hand on: units, facts in their marks, and tables."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.audit_tables import IMAGE_MEASURES
from altalign.data.counts import CountRow, FailedRow
from altalign.data.schema import SAMPLE
from altalign.pipelines.run.text_tables import GROUPED_SURVIVORS, PLACED_SURVIVOR
from altalign.pipelines.run.units import Marks, Run, Table, Unit
from altalign.storage import parquet

# entries of marks, which JSON has as lists
FunnelRow = tuple[str, str | None, int | None, int | None]  # step, source (None: all), images, bytes (None: not known)
ImagesRow = tuple[str, str, int]  # stage, reason, images

# Units, beside their names. `digest`: of all that the unit rests on.
# A `row_group` of the grouped survivors of a `partition`, its `rows` and `images`; `units`: how many units there are
# in all; the sample of hosts has one image in `one_in`.
FetchUnit = Unit
TestUnit = Unit  # a part of a test set: `part` (`test_sets.Part` as a dict) and `digest`
FindUnit = Unit  # a fetch unit; `looks_below`: whether pairs below the threshold are looked for too
PoolImagesUnit = Unit  # `fetch_units` that follow one another: their names, and the place of the `first`; `order`
DropUnit = Unit  # a fetch unit, and its `place` in their order


class GatherFacts(NamedTuple):
    """How many images of a table were copied to a blob, and how many bytes they have."""

    images: int
    bytes: int


class ChosenFacts(NamedTuple):
    """How many rows of a unit stay, and counts."""

    kept: int
    counts: list[CountRow]  # rows by stage, source and reason
    failed: list[FailedRow]  # rows by every rule that holds


class FetchFacts(NamedTuple):
    """What became of a fetch unit."""

    kept: int
    counts: list[CountRow]
    failed: list[FailedRow]
    funnel: list[FunnelRow]
    dropped_images: list[ImagesRow] | None  # None in marks of older versions
    hosts: Mapping[str, tuple[int, int, int]]  # images of the sample by host, how many came, how many were kept


class DropFacts(NamedTuple):
    """What decontamination leaves of a fetch unit."""

    kept: int
    counts: list[CountRow]
    failed: list[FailedRow]
    funnel: list[FunnelRow]
    dropped_images: list[ImagesRow] | None


class TestFacts(NamedTuple):
    """How many test images of a part were read, how many are flat, and the digest of their unit."""

    digest: str
    test_set: str
    images: int
    flat: int


class LearnedFacts(NamedTuple):
    """How many clusters were found, and how many images the map was learned from."""

    clusters: int
    training_images: int


class IndexFacts(NamedTuple):
    """How many test images are in the index, and how many of them are flat."""

    test_images: int
    flat_test_images: int


class FoundFacts(NamedTuple):
    """How many images were searched for, and how many pairs were found above the threshold and below it."""

    images: int
    flat_images: int
    pairs: int
    pairs_below: int
    pairs_without_a_bucket: int
    images_above: int
    images_without_a_bucket: int


class CellFacts(NamedTuple):
    """How many cells there are."""

    cells: int


class CompareFacts(NamedTuple):
    """Where the slices of cells lie, how many images were compared, and how many have the same bytes as another."""

    spilled: list[int]
    images: int
    same_bytes: int


class JoinFacts(NamedTuple):
    """How many pairs have the same bytes, and how many images the cell has."""

    same_bytes: int
    largest_cell: int


class ReplaceFacts(NamedTuple):
    """How many images go, and how many stay in their place."""

    images_that_go: int
    images_that_stay_for_others: int


ONLY = "00000"  # name of the unit of a step that has one
GATHERED = Marks("fetch/gathered", GatherFacts)
FETCHED = Marks("fetch/units", FetchFacts)
TESTS = Marks("test_images", TestFacts)
LEARNED = Marks("decontaminate/map", LearnedFacts)
INDEX = Marks("decontaminate/index", IndexFacts)
FOUND = Marks("decontaminate/search", FoundFacts)
CELLS = Marks("decontaminate/cells", CellFacts)
COMPARED = Marks("decontaminate/compared", CompareFacts)
JOINED = Marks("decontaminate/joined", JoinFacts)
REPLACED = Marks("decontaminate/replaced", ReplaceFacts)
DECONTAMINATED = Marks("decontaminate/units", DropFacts)
STEPS = (GATHERED, FETCHED, TESTS, LEARNED, INDEX, FOUND, CELLS, COMPARED, JOINED, REPLACED, DECONTAMINATED)

# fetch

_INT16, _INT64, _BINARY = np.dtype(np.int16), np.dtype(np.int64), pa.binary()
ROW_INDEX = np.dtype([("row", "<i8"), ("offset", "<i8"), ("length", "<i8")])

# A candidate that passed the image rules: its width, height and format are those of its image as found.
_OF_SHARDS = ("bytes", "sha256", "tar_offset", "tar_bytes")
FETCHED_ROW = pa.schema(
    [*(field for field in SAMPLE if field.name not in _OF_SHARDS), pa.field("found_bytes", pa.int64())]
)
# An image of them: what a shard says of it, where the unit's blob has that, and where an input file has it as found.
STORED_COLUMNS = ("width", "height", "format", "bytes", "sha256")
_PLACE = [field for field in PLACED_SURVIVOR if field.name.startswith("place_")]
STORED_IMAGE = pa.schema(
    [
        SAMPLE.field("image_id"),
        *(SAMPLE.field(name) for name in STORED_COLUMNS),
        pa.field("stored_at", pa.int64()),
        *_PLACE,
    ]
)
# A dropped image that galleries show; null where nobody is to see it, or can.
PICTURE = pa.schema([("image_id", pa.string()), ("picture", pa.binary())])

GATHERED_IMAGES = Table("work/fetch/gathered/*.images", "images of a table's surviving rows")
GATHERED_INDEX = Table("work/fetch/gathered/*.index", "row, offset, length of each", ROW_INDEX, is_raw=True)
IMAGES = Table("work/fetch/units/*.images", "a blob: images as shards hold them, but those that input files have so")
OUTCOMES = Table("work/fetch/units/*.journal", "what came of each image from the web")
FETCHED_ROWS = Table("work/fetch/units/*.parquet", "rows that pass", FETCHED_ROW)
STORED_IMAGES = Table("work/fetch/units/*.stored", "their images in order, and where these are", STORED_IMAGE)
PICTURES = Table("work/fetch/units/*.pictures", "some dropped images, for the galleries", PICTURE)
FEATURES = Table("work/fetch/units/*.features", "of the kept images in their order, int16[n, d]; zeros: flat", _INT16)
MEASURED_IMAGES = Table("work/fetch/units/*.measures", "a unit's part of the histograms", IMAGE_MEASURES.schema)

# decontaminate

# One row a test image. `features` and `mirrored` are int16[d] as bytes; both are null where the image is flat, the
# second also where settings do not ask for it.
TEST_NAME = pa.schema([("test_set", pa.string()), ("test_image", pa.string())])
_OF_TEST = {"sha256": pa.string(), "features": _BINARY, "mirrored": _BINARY}
TEST_IMAGE = pa.schema([*TEST_NAME, *(pa.field(name, kind) for name, kind in _OF_TEST.items())])
# The test images near to each image of a fetch unit: at most one row a pair. The cosine is 1 where the bytes are equal.
NEAR = pa.schema([("image", pa.int32()), ("test", pa.int32()), ("cosine", pa.float64()), ("shares_bucket", pa.bool_())])
# A pair of images of the pool by their numbers; the key of the left one.
PAIR = np.dtype([("left", "<i8"), ("right", "<i8"), ("cosine", "<f8"), ("key", "u1", 16)])
# What stays in the place of an image: its key, and their cosine.
REPLACEMENT = np.dtype([("key", "u1", 16), ("cosine", "<f8")])

TEST_IMAGES = Table("work/test_images/*.parquet", "features of a part of a test set", TEST_IMAGE)
TEST_NAMES = Table("work/decontaminate/index/names.parquet", "set and name of each image", TEST_NAME)
INDEX_ARRAYS = Table("work/decontaminate/index/*.npy", "vectors of test images, as the search maps them")
CALIBRATION = Table("audit/near_duplicates/calibration.json", "threshold, embedder, map")
CALIBRATION_ARRAYS = Table("audit/near_duplicates/*.npy", "the map and the centroids of clusters")
SIMILAR = Table("work/decontaminate/search/*.parquet", "pairs above the threshold", NEAR)
LESS_SIMILAR = Table("work/decontaminate/search/*.below", "pairs below it, for the gallery", NEAR)
CENTROIDS_OF_CELLS = Table("work/decontaminate/cells/centroids.npy", "int16[cells, d]", _INT16)
SPILLED_VECTORS = Table("work/decontaminate/compared/*.spill", "vectors and digests by cell")
PAIRS_OF_UNIT = Table("work/decontaminate/compared/*.pairs", "pairs that a unit found by itself", PAIR)
PAIRS_OF_CELL = Table("work/decontaminate/joined/*.pairs", "pairs of a cell", PAIR)
REPLACED_IMAGES = Table("work/decontaminate/replaced/goes.npy", "numbers of the images that go, rising", _INT64)
REPLACED_BY = Table("work/decontaminate/replaced/kept.npy", "what stays in their place", REPLACEMENT)
KEPT_ROWS = Table("work/decontaminate/units/*.rows", "numbers of the rows that stay; missing where all do", _INT64)
FOUND_FACTS = Table("audit/near_duplicates/found.json", "what was looked for and found")

# Rows and images of fetch units ---------------------------------------------------------------------------------------


def survivors(run: Run, unit: FetchUnit) -> pa.Table:
    """The rows (`PLACED_SURVIVOR`) of a fetch unit, sorted by (image_id, key)."""
    path, number = GROUPED_SURVIVORS.path(run, unit["partition"]), unit["row_group"]
    batches = list(parquet.read_row_groups(path, number, number))
    return pa.Table.from_batches(batches, PLACED_SURVIVOR).combine_chunks()


def kept_images(run: Run, name: str) -> pa.Table:
    """The first row (`FETCHED_ROW`) of each image that a fetch unit keeps, in order."""
    rows = FETCHED_ROWS.read(run, name)
    return rows.take(first_of_each_image(rows))


def kept_rows(run: Run, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows (`FETCHED_ROW`, or some columns of it) of a fetch unit that decontamination keeps."""
    rows = parquet.read_table(FETCHED_ROWS.path(run, name), columns) if columns else FETCHED_ROWS.read(run, name)
    return rows.take(KEPT_ROWS.array(run, name)) if storage.exists(KEPT_ROWS.path(run, name)) else rows


def stored_images(run: Run, name: str, rows: pa.Table) -> pa.Table:
    """The images (`STORED_IMAGE`) of rows of a fetch unit, each once, in their order."""
    images = STORED_IMAGES.read(run, name)
    return images.filter(pc.is_in(images["image_id"], value_set=rows["image_id"]))


def first_of_each_image(rows: pa.Table) -> npt.NDArray[np.int64]:
    """The number of the first row of each image, int64[images]; `rows` are sorted by image_id."""
    ids = rows["image_id"].combine_chunks()
    return np.flatnonzero(np.r_[True, pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)][: len(rows)])


def images_of(rows: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The number of the first row of each image, int64[images], and of each row's image, int64[rows]."""
    firsts = first_of_each_image(rows)
    return firsts, np.repeat(np.arange(len(firsts)), np.diff(np.r_[firsts, len(rows)]))
