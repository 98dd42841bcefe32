"""What came of each image of a set, and the numbers that follow from it: metrics, intervals, paired tests.

A task gives a row of outcomes an image, and a function from rows to metrics. So one mechanism resamples every metric
(whole images, with all their captions), leaves images out, and compares two models on the same images.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

Outcomes = Mapping[str, npt.NDArray[Any]]  # columns of one length, a row an image
Measure = Callable[[Outcomes], dict[str, float]]
Intervals = dict[str, tuple[float, float]]  # of each metric, the lower and the upper end

RESAMPLES = 1_000  # ours: as many as bootstraps usually have
EXAMPLES = 12  # queries that are shown of a set or direction
_SHARE = 95  # percent of the resampled values that an interval holds
Answer = str | int  # a text, or the number of an image in its set


@dataclass(frozen=True)
class Example:
    """A query and what was found for it, best first; `rank` is that of the right answer, from 1 (0: nobody says)."""

    query: Answer
    answers: tuple[Answer, ...]
    rank: int
    text: str = ""


@dataclass(frozen=True)
class Result:
    """What a task makes of a set."""

    metrics: dict[str, float]  # what is resampled
    facts: Mapping[str, float]  # numbers of the set: images, chance
    outcomes: Outcomes  # a row of each image that was evaluated
    rows: Sequence[int]  # the number of each of them in the set
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)  # what was not evaluated, by the reason: names
    examples: Sequence[Example] = ()  # queries, right and wrong
    classes: Sequence[str] = ()  # names of classes, where there are any


@dataclass(frozen=True)
class Difference:
    """How much more one model has than another on the same images."""

    value: float
    low: float  # lower end of the 95 % interval of paired resamples
    high: float  # upper end
    p: float  # how often a random exchange of the two models' outcomes, image by image, gives as large a difference


def shown(names: Sequence[str], ranks: Sequence[int], *, at_most: int) -> list[int]:
    """Places of queries to show: right ones and then wrong ones, half of each where there are so many, by hashes."""
    order = sorted(range(len(names)), key=lambda place: sha256(names[place].encode()).digest())
    return [
        place
        for is_right in (True, False)
        for place in [place for place in order if (ranks[place] == 1) == is_right][: at_most // 2]
    ]


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
        either = [{name: np.where(swap, y[name], x[name]) for name in a} for x, y in ((a, b), (b, a))]
        exchanged.append(less(*either))
    found = dict[str, Difference]()
    for name, value in less(a, b).items():
        as_large = sum(abs(values[name]) >= abs(value) - 1e-9 for values in exchanged)
        ends = _middle([values[name] for values in drawn])
        found[name] = Difference(value, *ends, p=(1 + as_large) / (1 + resamples))
    return found


def _middle(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.percentile(values, [(100 - _SHARE) / 2, (100 + _SHARE) / 2])
    return float(low), float(high)
