"""What the making of a run of other runs leaves: which rows of each shard stay, and files that are copied."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.data.counts import CountRow, FailedRow
from altalign.pipelines.run.units import Facts, Files, Marks, Unit
from altalign.storage import arrays


class ShardOfParent(Unit):
    """A shard of a parent, or stretches of several: the parent's number, and how many rows."""

    parent: int
    rows: int


class ShardsOfParent(Unit):
    """Shards of the one parent that follow one another, by their places from `first` to before `end`, and their rows.

    A unit of several shards costs a mark for all of them.
    """

    first: int
    end: int
    rows: int


@dataclass(frozen=True)
class ChosenFacts(Facts):
    """How many rows of a unit stay, and counts of the stage `select`."""

    kept: int
    counts: list[CountRow]
    failed: list[FailedRow]


@dataclass(frozen=True)
class ListedFacts(ChosenFacts):
    """The same of several shards, and how many rows of each stay."""

    of_shards: list[int]


class CarriedUnit(Unit):
    """Files of a parent that the new run has as they are, by their paths in the run."""

    parent: int
    files: list[str]


@dataclass(frozen=True)
class CarriedFacts(Facts):
    """How many bytes were copied."""

    bytes: int


CHOSEN = Marks("select/chosen", ChosenFacts)
LISTED = Marks("select/listed", ListedFacts)
CARRIED = Marks("select/carried", CarriedFacts)


class Listed(Files):
    """The keys of rows that stay, where keys alone are wanted."""

    step = LISTED.step

    def keys(self) -> npt.NDArray[np.uint8]:
        """Their digits, in the order of shards: uint8[n, 32]."""
        return arrays.read(self.path("keys"))

    def write_keys(self, keys: npt.NDArray[np.uint8]) -> None:
        """Write them."""
        arrays.save(self.path("keys"), keys)


class Chosen(Files):
    """Which rows of a shard of a parent stay."""

    step = CHOSEN.step

    def rows(self) -> npt.NDArray[np.int64]:
        """Their numbers, rising: int64[n]."""
        return arrays.read(self.path("rows"))

    def write_rows(self, rows: npt.NDArray[np.int64]) -> None:
        """Write their numbers."""
        arrays.save(self.path("rows"), rows)


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


class Common(Files):
    """What the rows of several runs have in common."""

    step = COMMON.step

    def path_of(self, kind: str) -> str:
        """Hashes of texts (`texts`) or images (`images`) over their limit, and their counts: uint64[n, 2], sorted."""
        return self.path(kind)

    @property
    def repeated(self) -> str:
        """Parquet of `REPEATED`."""
        return self.path("repeated")
