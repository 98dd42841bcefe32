"""What the making of a run of other runs leaves: which rows of each shard stay, and files that are copied."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from altalign.data.counts import CountRow, FailedRow
from altalign.pipelines.run.tables.table import Format, Table
from altalign.pipelines.run.units import Facts, Marks, Unit


class ShardOfParent(Unit):
    """A shard of a parent, or stretches of several: the parent's number, and how many rows."""

    parent: int
    rows: int


@dataclass(frozen=True)
class ChosenFacts(Facts):
    """How many rows of a unit stay, and counts of the stage `select`."""

    kept: int
    counts: list[CountRow]
    failed: list[FailedRow]


class CarriedUnit(Unit):
    """Files of a parent that the new run has as they are, by their paths in the run."""

    parent: int
    files: list[str]


@dataclass(frozen=True)
class CarriedFacts(Facts):
    """How many bytes were copied."""

    bytes: int


CHOSEN = Marks("select/chosen", ChosenFacts)
CARRIED = Marks("select/carried", CarriedFacts)


@dataclass(frozen=True)
class CommonFacts(Facts):
    """What runs that are merged have too much of together: texts, images; and what several of them have.

    That is pairs, images whose bytes differ from run to run, and pairs whose image one run lacks and another one has.
    """

    texts: int
    images: int
    pairs: int
    images_that_differ: int
    pairs_without_image: int = 0


COMMON = Marks("select/common", CommonFacts)

# A key that several runs have, and the number of a run whose row goes.
REPEATED = pa.schema([("key", pa.string()), ("parent", pa.int32())])


@dataclass(frozen=True)
class CountedFacts(Facts):
    """How many samples of a unit the condition keeps and have a value, for each column."""

    rows: list[int]


@dataclass(frozen=True)
class ThresholdFacts(Facts):
    """For each column the smallest number (`tops.ordered`) that stays; None where no sample has a value."""

    numbers: list[int | None]


@dataclass(frozen=True)
class BalanceFacts(Facts):
    """The limit of concept balance, how many entries occur, and how often all of them do."""

    limit: int
    entries: int
    matches: int


CONCEPTS = Marks("select/concepts", CountedFacts)
BALANCE = Marks("select/balance", BalanceFacts)
VALUES = Marks("select/values", CountedFacts)
THRESHOLDS = Marks("select/thresholds", ThresholdFacts)
STEPS = (CONCEPTS, BALANCE, VALUES, THRESHOLDS, COMMON, CHOSEN, CARRIED)

CHOSEN_ROWS = Table("work/select/chosen/*.rows", Format.NUMPY, np.dtype(np.int64), "numbers of the rows that stay")
COMMON_HASHES = {
    kind: Table(
        f"work/select/common/*.{kind}",
        Format.NUMPY,
        np.dtype(np.uint64),
        f"hashes of {kind} over their limit, and counts",
    )
    for kind in ("texts", "images")
}
REPEATED_KEYS = Table("work/select/common/*.repeated", Format.PARQUET, REPEATED, "keys that several runs have")
VALUES_OF_COLUMN = Table("work/select/values/*.values", Format.NUMPY, holds="distinct values and how often, [2, k]")
