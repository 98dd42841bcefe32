"""What `extract` leaves: candidates, broken records and places of images of each input file."""

from dataclasses import dataclass

import pyarrow as pa

from altalign.data.counts import CountRow, FailedRow
from altalign.pipelines.run.units import Facts, Files, Marks, Run, Unit


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
        """The files of a part of a folder: Parquet of `FOLDER_FILE`."""
        return self.path("files.parquet")

    @property
    def places(self) -> str:
        """Where its images are: rows of `image_places.PLACE`, sorted by image_id."""
        return self.path("places")

    @property
    def payloads(self) -> str:
        """The same places by the ids of their payloads' names, and revisits; missing where there are none."""
        return self.path("payloads")


def followed_revisits(run: Run) -> str:
    """The places of images that only revisit records have, of all files."""
    return run.work(EXTRACTED.step, "revisits")
