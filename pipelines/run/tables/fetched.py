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
from altalign.pipelines.run.tables.judged import GROUPED_SURVIVORS, PLACED_SURVIVOR
from altalign.pipelines.run.tables.table import Format, Table
from altalign.pipelines.run.units import Facts, Marks, Run, Unit
from altalign.storage import parquet
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
    """

    kept: int
    counts: list[CountRow]
    failed: list[FailedRow]
    pictures: list[tuple[str, int, int]]
    funnel: list[FunnelRow]
    dropped_images: list[ImagesRow] | None
    hosts: Mapping[str, tuple[int, int, int]]


GATHERED = Marks("fetch/gathered", GatherFacts)
FETCHED = Marks("fetch/units", FetchFacts)
STEPS = (GATHERED, FETCHED)

ROW_INDEX = np.dtype([("row", "<i8"), ("offset", "<i8"), ("length", "<i8")])

# A candidate that passed the image rules, with the place of its image in the blob of its fetch unit.
FETCHED_ROW = pa.schema(
    [
        *(field for field in SAMPLE if field.name not in ("bytes", "sha256", "tar_offset", "tar_bytes")),
        pa.field("blob_offset", pa.int64()),
        pa.field("blob_bytes", pa.int64()),
    ]
)


GATHERED_IMAGES = Table("work/fetch/gathered/*.images", Format.BYTES, holds="images of a table's surviving rows")
GATHERED_INDEX = Table("work/fetch/gathered/*.index", Format.ROWS, ROW_INDEX, "row, offset and length of each, by row")

IMAGES = Table("work/fetch/units/*.images", Format.BYTES, holds="a blob: the bytes of the images that a unit fetched")
OUTCOMES = Table(
    "work/fetch/units/*.journal", Format.JSON, holds="of images from the web: what came of each, a line an image"
)
FETCHED_ROWS = Table(
    "work/fetch/units/*.parquet",
    Format.PARQUET,
    FETCHED_ROW,
    "rows that pass the image rules, sorted by image_id and key, with the place of their image in the blob",
)
FEATURES = Table(
    "work/fetch/units/*.features",
    Format.NUMPY,
    np.dtype(np.int16),
    "features of the kept images in their order, int16[n, d]; zeros for a flat image",
)
MEASURED_IMAGES = Table(
    "work/fetch/units/*.measures", Format.PARQUET, IMAGE_MEASURES.schema, "a unit's part of the histograms"
)
VALUES_OF_IMAGES = Table(
    "work/fetch/units/*.image_values", Format.PARQUET, IMAGE_VALUES.schema, "a unit's part of formats and sizes"
)


def image_range(run: Run, name: str, offset: int, size: int) -> Range:
    """Where the bytes of an image are, by its `blob_offset` in its unit's blob."""
    return Range(IMAGES.path(run, name), offset, size)


def image_bytes(run: Run, name: str, offset: int, size: int) -> bytes:
    """The bytes of one image of a fetch unit."""
    path, begin, *_ = image_range(run, name, offset, size)
    return storage.read_range(path, begin, size)


def kept_images(run: Run, name: str) -> pa.Table:
    """The first row (`FETCHED_ROW`) of each image that a fetch unit keeps, in order."""
    rows = FETCHED_ROWS.read(run, name)
    return rows.take(first_of_each_image(rows))


def survivors(run: Run, unit: FetchUnit) -> pa.Table:
    """The rows (`PLACED_SURVIVOR`) of a fetch unit, sorted by (image_id, key)."""
    path, number = GROUPED_SURVIVORS.path(run, unit["partition"]), unit["row_group"]
    batches = list(parquet.read_row_groups(path, number, number))
    return pa.Table.from_batches(batches, PLACED_SURVIVOR).combine_chunks()


def first_of_each_image(rows: pa.Table) -> npt.NDArray[np.int64]:
    """The number of the first row of each image, int64[images]; `rows` are sorted by image_id."""
    ids = rows["image_id"].combine_chunks()
    return np.flatnonzero(np.r_[True, pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)][: len(rows)])
