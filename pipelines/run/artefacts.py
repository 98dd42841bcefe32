"""What stages hand on, declared once: the units of each step, the facts in their marks, and the files beside them.

A step is a folder of `work/`. Each unit leaves its mark there, and files with its name and an ending for each kind.
Stages import this module, and never each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.audit_tables import IMAGE_JOINT, IMAGE_VALUES, OUTCOME_JOINT
from altalign.pipelines.files import arrays, parquet
from altalign.pipelines.run.units import Facts, Marks, Run, Unit
from altalign.schema import SAMPLE, STRINGS


class Files:
    """The files of one unit of a step; `stem` is their path without the ending."""

    step: ClassVar[str]

    def __init__(self, run: Run, name: str):
        self.stem = run.work(self.step, name)

    def path(self, ending: str) -> str:
        """The file with this ending."""
        return f"{self.stem}.{ending}"


Rows = list[list[Any]]  # of counts, as JSON: `Counts.to_json`, `FailedCounts.to_json`


# extract --------------------------------------------------------------------------------------------------------------


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
        places: how many places of images it has; None where it has no images.
        broken: how many records could not be read.
        counts: rows by stage, source and reason.
        failed: rows by every rule that holds.
    """

    stamp: list[Any]
    direct: bool
    row_groups: list[int]
    places: int | None
    broken: int | None
    counts: Rows
    failed: Rows


EXTRACTED = Marks("extract", ExtractFacts)

# A file of a part of a folder: its name in the folder (bytes, as a file system has them) and its stamp.
FOLDER_FILE = pa.schema([("name", pa.binary()), ("size", pa.int64()), ("time_ns", pa.int64()), ("digest", pa.string())])


class Extracted(Files):
    """What `extract` leaves of an input file that is not its own pool."""

    step = EXTRACTED.step

    @property
    def pool(self) -> str:
        """Its candidates: Parquet of `CANDIDATE`."""
        return self.path("parquet")

    @property
    def broken(self) -> str:
        """Its broken records: Parquet of `DROPPED`."""
        return self.path("broken.parquet")

    @property
    def sample(self) -> str:
        """Dropped rows of the smallest keys: Parquet of `DROPPED`."""
        return self.path("sample.parquet")

    @property
    def images(self) -> str:
        """The bytes of images that cannot be read at an offset of the input."""
        return self.path("images")

    @property
    def files(self) -> str:
        """Of a part of a folder: its files. Parquet of `FOLDER_FILE`."""
        return self.path("files.parquet")

    @property
    def places(self) -> str:
        """Where its images are: rows of `image_places.PLACE`, sorted by image_id."""
        return self.path("places")


# tables ---------------------------------------------------------------------------------------------------------------


class PoolUnit(Unit):
    """Row groups `first` to `last` of a file's pool; `order`: the unit's place in input order, `row`: its first row."""

    order: int
    file: int
    direct: bool
    first: int
    last: int
    row: int
    rows: int


@dataclass(frozen=True)
class CountFacts(Facts):
    """Rows that were counted, where the slices of the spill file lie, and the histogram of words as JSON."""

    rows: int
    spilled: list[int]
    words: Any


@dataclass(frozen=True)
class MergeFacts(Facts):
    """Histogram (as JSON) and number of a partition's entries, by kind of table; images by source."""

    ngrams: Any
    ngrams_rows: int
    texts: Any
    texts_rows: int
    images: Any
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


# judge ----------------------------------------------------------------------------------------------------------------

# A candidate that passed every rule but `pair_repeated`; `file` and `row` say where in the input it stands.
SURVIVOR = pa.schema(
    [
        ("key", pa.binary(16)),
        ("image_id", pa.binary(16)),
        *((name, pa.string()) for name in STRINGS),
        ("file", pa.int32()),
        ("row", pa.int64()),
        ("words", pa.int32()),
        ("rarest_log2", pa.uint8()),
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
    counts: Rows
    failed: Rows


class RowGroup(TypedDict):
    """A row group of grouped survivors: one fetch unit."""

    rows: int
    images: int


@dataclass(frozen=True)
class GroupFacts(Facts):
    """The fetch units of a partition, and counts of kept rows and of repeated pairs."""

    row_groups: list[RowGroup]
    counts: Rows
    failed: Rows


JUDGED = Marks("judge/units", JudgeFacts)
GROUPED = Marks("judge/grouped", GroupFacts)


class JudgedUnit(Files):
    """What judging a unit of the pool leaves."""

    step = JUDGED.step

    @property
    def survivors(self) -> str:
        """Survivors (`SURVIVOR`) by partition: messages of Arrow's IPC without a schema."""
        return self.path("survivors")

    @property
    def joint(self) -> str:
        """Its part of `TEXT_JOINT`: `JointCounts`."""
        return self.path("joint")

    @property
    def seen(self) -> str:
        """Strings of wanted hashes, and scripts of captions: JSON."""
        return self.path("seen")

    @property
    def samples(self) -> str:
        """Dropped rows for the galleries: Parquet of `DROPPED`."""
        return self.path("samples")


class GroupedPartition(Files):
    """What grouping the survivors of a partition leaves."""

    step = GROUPED.step

    @property
    def rows(self) -> str:
        """Survivors sorted by (image_id, key), one row group a fetch unit: Parquet of `PLACED_SURVIVOR`."""
        return self.path("parquet")

    @property
    def pairs(self) -> str:
        """Its part of `PAIRS_JOINT`: `JointCounts`."""
        return self.path("pairs")


def slices_of_places(run: Run, file: str) -> str:
    """The file of slices that cuts an input file's places (`Extracted.places`) by partition."""
    return run.work("judge/places", f"{file}.slices")


# fetch ----------------------------------------------------------------------------------------------------------------


class FetchUnit(Unit):
    """A row group of grouped survivors.

    `units` is how many units there are in all; the sample of hosts has one image in `one_in`.
    """

    partition: str
    row_group: int
    rows: int
    images: int
    units: int
    one_in: int


@dataclass(frozen=True)
class GatherFacts(Facts):
    """How many images of a table were copied to a blob, and how many bytes they have."""

    images: int
    bytes: int


@dataclass(frozen=True)
class FetchFacts(Facts):
    """What became of a fetch unit.

    Attributes:
        kept: rows that go on.
        counts: rows by stage, source and reason.
        failed: rows by every rule that holds.
        pictures: image_id, offset and bytes of some dropped images, for the galleries.
        funnel: step, source, images and bytes, for the report.
        dropped_images: stage, reason and how many distinct images were dropped; None in marks of older versions.
        hosts: how many images of the sample each host has, how many were fetched, and how many were kept.
    """

    kept: int
    counts: Rows
    failed: Rows
    pictures: list[list[Any]]
    funnel: list[list[Any]]
    dropped_images: Rows | None
    hosts: Mapping[str, tuple[int, int, int]]


GATHERED = Marks("fetch/gathered", GatherFacts)
FETCHED = Marks("fetch/units", FetchFacts)

ROW_INDEX = np.dtype([("row", "<i8"), ("offset", "<i8"), ("length", "<i8")])

# A candidate that passed the image rules, with the place of its image in the blob of its fetch unit, and what the
# audit's joint counts need.
FETCHED_ROW = pa.schema(
    [
        *(field for field in SAMPLE if field.name not in ("bytes", "sha256", "tar_offset", "tar_bytes")),
        pa.field("blob_offset", pa.int64()),
        pa.field("blob_bytes", pa.int64()),
        pa.field("rarest_log2", pa.uint8()),
    ]
)


class Gathered(Files):
    """Images of a table's rows, copied in one pass over the table."""

    step = GATHERED.step

    @property
    def images(self) -> str:
        """Their bytes."""
        return self.path("images")

    def index(self) -> npt.NDArray[np.void]:
        """Rows of `ROW_INDEX`, sorted by row."""
        return np.frombuffer(storage.read_bytes(self.path("index")), ROW_INDEX)

    def write_index(self, entries: list[tuple[int, int, int]]) -> None:
        """Write row, offset and length of each image."""
        storage.write_bytes(self.path("index"), np.array(entries, ROW_INDEX).tobytes())


class Fetched(Files):
    """What fetching a unit leaves, beside its journal where the images come from the web."""

    step = FETCHED.step

    @property
    def images(self) -> str:
        """The bytes of all fetched images: a blob."""
        return self.path("images")

    def image(self, offset: int, size: int) -> bytes:
        """The bytes of one image."""
        return storage.read_range(self.images, offset, size)

    def rows(self) -> pa.Table:
        """The rows (`FETCHED_ROW`) that pass the image rules, sorted by (image_id, key)."""
        return parquet.read_table(self.path("parquet")).select(FETCHED_ROW.names)

    def write_rows(self, rows: pa.Table) -> None:
        """Write the rows that pass."""
        parquet.write(self.path("parquet"), rows.select(FETCHED_ROW.names), FETCHED_ROW)

    def kept_images(self) -> pa.Table:
        """The first row (`FETCHED_ROW`) of each kept image, in order."""
        rows = self.rows()
        return rows.take(first_of_each_image(rows))

    def features(self) -> npt.NDArray[np.int16]:
        """The features of the n kept images in their order, int16[n, d]; zeros for a flat image."""
        return arrays.read(self.path("features"))

    def mapped_features(self) -> npt.NDArray[np.int16]:
        """The same, mapped into memory."""
        return arrays.mapped(self.path("features"))

    def write_features(self, features: npt.NDArray[np.int16]) -> None:
        """Write the features."""
        arrays.save(self.path("features"), features)

    def write_evidence(self, image_joint: pa.Table, image_values: pa.Table, outcome_joint: pa.Table) -> None:
        """Write the unit's part of `IMAGE_JOINT`, `IMAGE_VALUES` and `OUTCOME_JOINT`."""
        parquet.write(self.path("image_joint"), image_joint, IMAGE_JOINT.schema)
        parquet.write(self.path("image_values"), image_values, IMAGE_VALUES.schema)
        parquet.write(self.path("outcome_joint"), outcome_joint, OUTCOME_JOINT.schema)


def survivors(run: Run, unit: FetchUnit) -> pa.Table:
    """The rows (`PLACED_SURVIVOR`) of a fetch unit, sorted by (image_id, key)."""
    path, number = GroupedPartition(run, unit["partition"]).rows, unit["row_group"]
    batches = list(parquet.read_row_groups(path, number, number))
    return pa.Table.from_batches(batches, PLACED_SURVIVOR).combine_chunks()


def first_of_each_image(rows: pa.Table) -> npt.NDArray[np.int64]:
    """The number of the first row of each image, int64[images]; `rows` are sorted by image_id."""
    ids = rows["image_id"].combine_chunks()
    return np.flatnonzero(np.r_[True, pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)][: len(rows)])


# decontaminate: the test side -----------------------------------------------------------------------------------------

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

    part: dict[str, Any]
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


class TestPart(Files):
    """Test images that were read as one unit."""

    step = TESTS.step

    @property
    def images(self) -> str:
        """Parquet of `TEST_IMAGE`."""
        return self.path("parquet")


class Augmented(Files):
    """The features of images and of their copies."""

    step = AUGMENTED.step

    @property
    def rows(self) -> str:
        """Parquet of `AUGMENTED_ROW`."""
        return self.path("parquet")


def test_names(run: Run) -> str:
    """Set and name of every test image: Parquet of `TEST_NAME`."""
    return run.work(INDEX.step, "names.parquet")


# decontaminate: what is found, and what goes --------------------------------------------------------------------------

# The test images near to each image of a fetch unit: at most one row a pair. The cosine is 1 where the bytes are equal.
NEAR = pa.schema([("image", pa.int32()), ("test", pa.int32()), ("cosine", pa.float64()), ("shares_bucket", pa.bool_())])


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
    of: list[str]


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
    counts: Rows
    funnel: list[list[Any]]


@dataclass(frozen=True)
class DropFacts(Facts):
    """How many rows stay, counts, the funnel's entries, and dropped images as in `FetchFacts`."""

    kept: int
    counts: Rows
    failed: Rows
    funnel: list[list[Any]]
    dropped_images: Rows | None


FOUND = Marks("decontaminate/search", FoundFacts)
CELLS = Marks("decontaminate/cells", CellFacts)
COMPARED = Marks("decontaminate/compared", CompareFacts)
JOINED = Marks("decontaminate/joined", JoinFacts)
REPLACED = Marks("decontaminate/replaced", ReplaceFacts)
DECONTAMINATED = Marks("decontaminate/units", DropFacts)


class Found(Files):
    """The pairs of images of a fetch unit and test images: Parquet of `NEAR`."""

    step = FOUND.step

    @property
    def above(self) -> str:
        """Above the threshold."""
        return self.path("parquet")

    @property
    def below(self) -> str:
        """Below it, for the gallery."""
        return self.path("below")


class Compared(Files):
    """The files of a unit whose images were scattered to cells."""

    step = COMPARED.step

    @property
    def spill(self) -> str:
        """Vectors and digests by cell."""
        return self.path("spill")

    @property
    def pairs(self) -> str:
        """Pairs that the unit found by itself: an array of `within_pool.PAIR`."""
        return self.path("pairs")


class Joined(Files):
    """The file of a joined cell."""

    step = JOINED.step

    @property
    def pairs(self) -> str:
        """Pairs of the cell: an array of `within_pool.PAIR`."""
        return self.path("pairs")


class Decontaminated(Files):
    """The files that decontamination leaves for a fetch unit some of whose rows go."""

    step = DECONTAMINATED.step

    @property
    def rows(self) -> str:
        """The numbers of the rows that stay: int64[n]."""
        return self.path("rows")

    @property
    def outcome_joint(self) -> str:
        """The changes to the unit's part of `OUTCOME_JOINT`."""
        return self.path("outcome_joint")


def kept_rows(run: Run, name: str) -> pa.Table:
    """The rows (`FETCHED_ROW`) of a fetch unit that decontamination keeps."""
    rows, path = Fetched(run, name).rows(), Decontaminated(run, name).rows
    return rows.take(arrays.read(path)) if storage.exists(path) else rows


# write ----------------------------------------------------------------------------------------------------------------


class ShardUnit(Unit):
    """A shard: how many rows it has, and from which fetch units: name, first row and end."""

    rows: int
    parts: list[list[Any]]


@dataclass(frozen=True)
class ShardFacts(Facts):
    """Rows, sizes and digests of a shard, the number of its images, and the first and last image_id."""

    rows: int
    bytes: int
    source_bytes: dict[str, int]
    sha256: str
    parquet_bytes: int
    parquet_sha256: str
    images: int
    first_image: str
    last_image: str


WRITTEN = Marks("write", ShardFacts)
