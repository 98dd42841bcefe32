"""What `decontaminate` leaves: test images, what is learned, pairs that are near, and which rows stay."""

from dataclasses import dataclass

import pyarrow as pa

from altalign import storage
from altalign.data.counts import CountRow, FailedRow
from altalign.pipelines.run.tables.fetched import Fetched, FunnelRow, ImagesRow
from altalign.pipelines.run.units import Facts, Files, Marks, Run, Unit
from altalign.storage import arrays

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


# What is found, and what goes -----------------------------------------------------------------------------------------

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


def kept_rows(run: Run, name: str) -> pa.Table:
    """The rows (`FETCHED_ROW`) of a fetch unit that decontamination keeps."""
    rows, path = Fetched(run, name).rows(), Decontaminated(run, name).rows
    return rows.take(arrays.read(path)) if storage.exists(path) else rows
