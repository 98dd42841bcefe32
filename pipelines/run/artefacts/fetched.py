"""What `fetch` leaves: images of each fetch unit, rows that pass the image rules, and features."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.audit_tables import IMAGE_JOINT, IMAGE_VALUES, OUTCOME_JOINT
from altalign.counts import CountRow, FailedRow
from altalign.pipelines.files import arrays, parquet
from altalign.pipelines.run.artefacts.judged import PLACED_SURVIVOR, GroupedPartition
from altalign.pipelines.run.units import Facts, Files, Marks, Run, Unit
from altalign.schema import SAMPLE

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


# `measuring.Measured`, an image a row
MEASURES = pa.schema(
    [
        ("format", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("damage", pa.string()),
        ("is_blocked", pa.bool_()),
        ("nsfw_score", pa.float32()),
        ("found_sha256", pa.string()),
        ("features", pa.binary()),
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

    @property
    def measures(self) -> str:
        """What was measured of images of the input's own files that the image rules dropped: Parquet of `MEASURES`."""
        return self.path("measures")

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
