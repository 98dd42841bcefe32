"""Differences of runs with the same seeds, and how sure they are: 95 % intervals of Student's t."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

# The 0.975 quantiles of Student's t with 1, 2, … degrees of freedom, as tables have them.
T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093,
)  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """The mean difference of pairs, and its 95 % interval; without an interval where there is one pair."""

    mean: float
    low: float
    high: float
    pairs: int


def difference(values: Sequence[float], others: Sequence[float]) -> Difference:
    """How much greater values are than the others at the same places, of 1 to 20 pairs."""
    apart = [value - other for value, other in zip(values, others, strict=True)]
    mean = fmean(apart)
    if len(apart) == 1:
        return Difference(mean, -math.inf, math.inf, 1)
    half = T_975[len(apart) - 2] * stdev(apart) / math.sqrt(len(apart))
    return Difference(mean, mean - half, mean + half, len(apart))
