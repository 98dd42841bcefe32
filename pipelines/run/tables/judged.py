"""What `judge` leaves: survivors of each unit of the pool, grouped by image."""

from dataclasses import dataclass
from typing import TypedDict

import pyarrow as pa

from altalign.data.counts import CountRow, FailedRow
from altalign.data.schema import STRINGS
from altalign.pipelines.run.units import Facts, Files, Marks, Run

# A candidate that passed every rule but `pair_repeated`; `file` and `row` say where in the input it stands.
SURVIVOR = pa.schema(
    [
        ("key", pa.binary(16)),
        ("image_id", pa.binary(16)),
        *((name, pa.string()) for name in STRINGS),
        ("file", pa.int32()),
        ("row", pa.int64()),
        ("words", pa.int32()),
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
    counts: list[CountRow]
    failed: list[FailedRow]


class RowGroup(TypedDict):
    """A row group of grouped survivors: one fetch unit."""

    rows: int
    images: int


@dataclass(frozen=True)
class GroupFacts(Facts):
    """The fetch units of a partition, and counts of kept rows and of repeated pairs."""

    row_groups: list[RowGroup]
    counts: list[CountRow]
    failed: list[FailedRow]


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
    def measures(self) -> str:
        """Its part of `TEXT_MEASURES`."""
        return self.path("measures")

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


def slices_of_places(run: Run, file: str) -> str:
    """The file of slices that cuts an input file's places (`Extracted.places`) by partition."""
    return run.work("judge/places", f"{file}.slices")
