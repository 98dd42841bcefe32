"""What `extract` leaves: candidates, broken records and places of images of each input file."""

from dataclasses import dataclass

import pyarrow as pa

from altalign.data.counts import CountRow, FailedRow
from altalign.data.schema import CANDIDATE, DROPPED
from altalign.pipelines.run.image_places import PLACE
from altalign.pipelines.run.tables.table import Format, Table
from altalign.pipelines.run.units import Facts, Marks, Unit


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
STEPS = (EXTRACTED,)

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
