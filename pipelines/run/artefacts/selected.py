"""What `altalign select` finds before it decides: histograms of the columns that only the largest values of stay."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from altalign.pipelines.files import arrays
from altalign.pipelines.run.units import Facts, Files, Marks


@dataclass(frozen=True)
class CountedFacts(Facts):
    """How many samples a shard has that the condition keeps and that have a value, for each column."""

    rows: list[int]


@dataclass(frozen=True)
class BoundFacts(Facts):
    """For each column the rows that were counted, the bucket of the bound, and the rank of the bound inside it."""

    rows: list[int]
    buckets: list[int]
    ranks: list[int]


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
HIGH = Marks("select/high", CountedFacts)
BOUNDS = Marks("select/bounds", BoundFacts)
LOW = Marks("select/low", CountedFacts)
THRESHOLDS = Marks("select/thresholds", ThresholdFacts)


class Histograms(Files):
    """The histograms of a shard: only what occurs."""

    def __init__(self, stem: str):
        self.stem = stem

    def read(self) -> npt.NDArray[np.int64]:
        """Rows of (column, bucket, count): int64[n, 3]."""
        return arrays.read(self.path("counts"))

    def write(self, rows: npt.NDArray[np.int64]) -> None:
        """Write them."""
        arrays.save(self.path("counts"), rows)
