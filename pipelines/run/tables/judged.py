"""What `judge` leaves: survivors of each unit of the pool, grouped by image."""

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import pyarrow as pa

from altalign.data.audit_tables import TEXT_MEASURES
from altalign.data.counts import CountRow, FailedRow
from altalign.data.schema import DROPPED, STRINGS
from altalign.pipelines.run.tables.table import Format, Table
from altalign.pipelines.run.units import Facts, Marks

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
STEPS = (JUDGED, GROUPED)

SURVIVORS = Table("work/judge/units/*.survivors", Format.ARROW, SURVIVOR, "candidates that pass, by partition")
MEASURED_TEXTS = Table(
    "work/judge/units/*.measures", Format.PARQUET, TEXT_MEASURES.schema, "a unit's part of the histograms"
)
SEEN_STRINGS = Table("work/judge/units/*.seen", Format.JSON, holds="strings of wanted hashes, and scripts of captions")
JUDGE_SAMPLE = Table("work/judge/units/*.samples", Format.PARQUET, DROPPED, "dropped rows for the galleries")
SLICES_OF_PLACES = Table(
    "work/judge/places/*.slices",
    Format.ROWS,
    np.dtype([("bucket", "<i8"), ("offset", "<i8"), ("length", "<i8")]),
    "how partitions cut an input file's places",
)
GROUPED_SURVIVORS = Table(
    "work/judge/grouped/*.parquet",
    Format.PARQUET,
    PLACED_SURVIVOR,
    "each pair once, sorted by image_id and key, with the place of its image; a row group is a fetch unit",
)
