"""What `altalign select` finds before it decides: values of the columns that only the largest stay of."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from altalign.pipelines.run.units import Facts, Files, Marks
from altalign.storage import arrays


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


class Values(Files):
    """The values of some shards' samples that the condition keeps."""

    step = VALUES.step

    def read(self, column: int) -> npt.NDArray[np.unsignedinteger[Any]]:
        """The distinct values of a column (`tops.ordered`), and how often each occurs: [2, k]."""
        return arrays.read(self.path(f"{column}.values"))

    def write(self, column: int, distinct: npt.NDArray[np.unsignedinteger[Any]]) -> None:
        """Write them."""
        arrays.save(self.path(f"{column}.values"), distinct)
