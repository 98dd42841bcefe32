"""What `fetch` leaves: images of each fetch unit, rows that pass the image rules, and features."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.audit_tables import IMAGE_MEASURES, IMAGE_VALUES
from altalign.data.counts import CountRow, FailedRow
from altalign.data.schema import SAMPLE
from altalign.pipelines.run.tables.judged import PLACED_SURVIVOR, GroupedPartition
from altalign.pipelines.run.units import Facts, Files, Marks, Run, Unit
from altalign.storage import arrays, parquet
from altalign.storage.ranges import Range

# entries of marks, which JSON has as lists
FunnelRow = tuple[str, str | None, int | None, int | None]  # step, source (None: all), images, bytes (None: not known)
ImagesRow = tuple[str, str, int]  # stage, reason, images


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
        known: the first and the last image of `Fetched.known`; None where it has none.
    """

    kept: int
    counts: list[CountRow]
    failed: list[FailedRow]
    pictures: list[tuple[str, int, int]]
    funnel: list[FunnelRow]
    dropped_images: list[ImagesRow] | None
    hosts: Mapping[str, tuple[int, int, int]]
    known: tuple[str, str] | None


@dataclass(frozen=True)
class BorrowFacts(Facts):
    """The highest number of a blob that was borrowed of the runs that this one has grown from."""

    blobs: int


BORROWED = Marks("fetch/borrowed", BorrowFacts)
GATHERED = Marks("fetch/gathered", GatherFacts)
FETCHED = Marks("fetch/units", FetchFacts)

ROW_INDEX = np.dtype([("row", "<i8"), ("offset", "<i8"), ("length", "<i8")])

# A candidate that passed the image rules, with the place of its image in the blob of its fetch unit.
FETCHED_ROW = pa.schema(
    [
        *(field for field in SAMPLE if field.name not in ("bytes", "sha256", "tar_offset", "tar_bytes")),
        pa.field("blob_offset", pa.int64()),
        pa.field("blob_bytes", pa.int64()),
    ]
)


# What is known of an image of the input's own files: its place there, its place in a blob, `measuring.Measured`.
KNOWN = pa.schema(
    [
        *(field for field in PLACED_SURVIVOR if field.name == "image_id" or field.name.startswith("place_")),
        pa.field("reason", pa.string()),
        pa.field("blob_offset", pa.int64()),
        pa.field("blob_bytes", pa.int64()),
        pa.field("format", pa.string()),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("damage", pa.string()),
        pa.field("is_blocked", pa.bool_()),
        pa.field("nsfw_score", pa.float32()),
        pa.field("found_sha256", pa.string()),
        pa.field("features", pa.binary()),
    ]
)
# The first and the last image of what a borrowed blob's unit knew, by the number of the blob.
KNOWN_OF = np.dtype([("number", "<i8"), ("first", "S32"), ("last", "S32")])
BLOB = 1 << 36  # a borrowed blob has fewer bytes; `blob_offset` below zero is of one


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


class Borrowed(Files):
    """A blob of a run that this one has grown from, by its number, and what that run's unit knew of its images.

    Number 0 has the one mark, which names the files of all, and `KNOWN_OF`. A number stays with its blob however often
    the run grows.
    """

    step = BORROWED.step

    def __init__(self, run: Run, number: int = 0):
        super().__init__(run, f"{number:09d}")

    @property
    def images(self) -> str:
        """The bytes of images."""
        return self.path("images")

    @property
    def known(self) -> str:
        """What its unit knew: Parquet of `KNOWN`."""
        return self.path("known")

    @property
    def known_of(self) -> str:
        """Rows of `KNOWN_OF`."""
        return self.path("index")


class Fetched(Files):
    """What fetching a unit leaves, beside its journal where the images come from the web."""

    step = FETCHED.step

    def __init__(self, run: Run, name: str):
        super().__init__(run, name)
        self._run = run

    @property
    def images(self) -> str:
        """The bytes of the images that this unit has fetched: a blob."""
        return self.path("images")

    def range(self, offset: int, size: int) -> Range:
        """Where the bytes of an image are, by its `blob_offset`: in this blob or, below zero, in a borrowed one."""
        if offset >= 0:
            return Range(self.images, offset, size)
        number, offset = divmod(offset, BLOB)
        return Range(Borrowed(self._run, -number).images, offset, size)

    def image(self, offset: int, size: int) -> bytes:
        """The bytes of one image."""
        path, begin, *_ = self.range(offset, size)
        return storage.read_range(path, begin, size)

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

    @property
    def known(self) -> str:
        """What is known of images of the input's own files, so that an addition need not read them: of `KNOWN`."""
        return self.path("known")

    def write_figures(self, measures: pa.Table, values: pa.Table) -> None:
        """Write the unit's part of `IMAGE_MEASURES` and of `IMAGE_VALUES`."""
        parquet.write(self.path("measures"), measures, IMAGE_MEASURES.schema)
        parquet.write(self.path("image_values"), values, IMAGE_VALUES.schema)


def survivors(run: Run, unit: FetchUnit) -> pa.Table:
    """The rows (`PLACED_SURVIVOR`) of a fetch unit, sorted by (image_id, key)."""
    path, number = GroupedPartition(run, unit["partition"]).rows, unit["row_group"]
    batches = list(parquet.read_row_groups(path, number, number))
    return pa.Table.from_batches(batches, PLACED_SURVIVOR).combine_chunks()


def first_of_each_image(rows: pa.Table) -> npt.NDArray[np.int64]:
    """The number of the first row of each image, int64[images]; `rows` are sorted by image_id."""
    ids = rows["image_id"].combine_chunks()
    return np.flatnonzero(np.r_[True, pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)][: len(rows)])
