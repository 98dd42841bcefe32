"""What came of each image of a set, and the numbers that follow from it: metrics, intervals, paired tests.

A task gives a row of outcomes an image, and a function from rows to metrics. So one mechanism resamples every metric
(whole images, with all their captions), leaves images out, and compares two models on the same images.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from altalign.eval.image_sources import Images

Outcomes = Mapping[str, npt.NDArray[Any]]  # columns of one length, a row an image
Measure = Callable[[Outcomes], dict[str, float]]
Intervals = dict[str, tuple[float, float]]  # of each metric, the lower and the upper end

RESAMPLES = 1_000  # ours: as many as bootstraps usually have
_ENDS = [2.5, 97.5]  # percentiles of the resampled values, between which an interval lies


class Result(NamedTuple):
    """What a task makes of a set."""

    images: Images  # all of the set
    rows: Sequence[int]  # the number in the set of each image that was evaluated
    outcomes: Outcomes  # a row of each of these
    metrics: dict[str, float]  # what is resampled
    facts: Mapping[str, float]  # numbers of the set: images, chance
    left_out: Mapping[str, Sequence[str]] = {}  # what was not evaluated, by the reason: names


class Difference(NamedTuple):
    """How much more one model has than another on the same images."""

    value: float
    low: float  # lower end of the 95 % interval of paired resamples
    high: float  # upper end
    p: float  # how often a random exchange of the two models' outcomes, image by image, gives as large a difference


def chosen(outcomes: Outcomes, rows: npt.NDArray[Any]) -> Outcomes:
    """The outcomes of these images (numbers, repeated ones too, or a mask)."""
    return {name: column[rows] for name, column in outcomes.items()}


def intervals(outcomes: Outcomes, measure: Measure, *, resamples: int = RESAMPLES, seed: int = 0) -> Intervals:
    """For each metric the middle 95 % of its values over resamples of the images (percentile bootstrap)."""
    random, images = np.random.default_rng(seed), len(next(iter(outcomes.values())))
    drawn = [measure(chosen(outcomes, random.integers(images, size=images))) for _ in range(resamples)]
    return {name: _middle([values[name] for values in drawn]) for name in drawn[0]}


def differences(
    a: Outcomes, b: Outcomes, measure: Measure, *, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Difference]:
    """Of each metric, the value of `a` less that of `b`, outcomes of the same images in the same order."""

    def less(one: Outcomes, other: Outcomes) -> dict[str, float]:
        of_one, of_other = measure(one), measure(other)
        return {name: of_one[name] - of_other[name] for name in of_one}

    random, images = np.random.default_rng(seed), len(next(iter(a.values())))
    drawn, exchanged = list[dict[str, float]](), list[dict[str, float]]()
    for _ in range(resamples):
        rows = random.integers(images, size=images)
        drawn.append(less(chosen(a, rows), chosen(b, rows)))
        swap = random.random(images) < 0.5
        exchanged.append(less(*({name: np.where(swap, y[name], x[name]) for name in a} for x, y in ((a, b), (b, a)))))
    compared = dict[str, Difference]()
    for name, value in less(a, b).items():
        as_large = sum(abs(values[name]) >= abs(value) - 1e-9 for values in exchanged)
        ends = _middle([values[name] for values in drawn])
        compared[name] = Difference(value, *ends, p=(1 + as_large) / (1 + resamples))
    return compared


def _middle(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.percentile(values, _ENDS)
    return float(low), float(high)
