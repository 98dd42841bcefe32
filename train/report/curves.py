"""From lines of metrics to curves that fit on a page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from statistics import fmean
from typing import Any

from altalign.train.step.learner import NEGATIVES, OWN_LOSSES

POINTS_AT_MOST = 300  # of a curve: a long run has a hundred thousand lines
SOURCES_AT_MOST = 8  # curves that a chart can hold apart
_TICKS = (1, 2, 5, 10)
_TITLES = {
    "Temperature": "temperature",
    "Learning rate": "rate",
    "Norm of the gradient": "gradient_norm",
    "Drift": "drift",
    "Pairs a second": "samples_per_s",
}

Line = Mapping[str, Any]
Points = Sequence[tuple[float, float]]  # step and value


@dataclass(frozen=True)
class Chart:
    """Curves of one unit, and the range that they are drawn in; a point is the mean of so many lines of metrics."""

    title: str
    curves: Mapping[str, Points]
    steps: int
    lines_a_point: int = 1

    @property
    def ticks(self) -> list[float]:
        """Round numbers up the side, the first below all values and the last above."""
        values = [value for points in self.curves.values() for _, value in points]
        least, most = min(values), max(values)
        span = most - least or abs(most)
        exact = (span if span > 1e-300 else 1.0) / 3  # a third of less may be 0
        power = 10.0 ** floor(log10(exact))
        size = next(tick * power for tick in _TICKS if tick * power >= exact * (1 - 1e-9))
        first, last = floor(least / size), -floor(-most / size)
        return [number * size for number in range(first, max(last, first + 1) + 1)]

    def places(self, points: Points) -> Points:
        """A curve's points in a square of 100 by 100, up is less."""
        low, high = self.ticks[0], self.ticks[-1]
        return [
            (round(100 * step / self.steps, 2), round(100 * (high - value) / (high - low), 2)) for step, value in points
        ]

    def rows(self, at_most: int = 12) -> list[tuple[int, list[str]]]:
        """Steps, spread evenly, and what each curve has there: the last point at that step or before."""
        steps = sorted({round(step) for points in self.curves.values() for step, _ in points})
        count, rows = min(at_most, len(steps)), dict[int, list[str]]()
        for number in reversed(range(count)):
            step = steps[-1 - number * (len(steps) - 1) // max(1, count - 1)]
            reached = [[value for at, value in points if at <= step] for points in self.curves.values()]
            rows[step] = [f"{values[-1]:.4g}" if values else "" for values in reached]
        return list(rows.items())


def charts(lines: Sequence[Line], steps: int) -> list[Chart]:
    """Loss, temperature, rate, gradient and drift of the lines that have them."""
    others = [_chart(title, lines, {title: name}, steps) for title, name in _TITLES.items()]
    return [chart for chart in (losses(lines, steps), *others) if chart is not None]


def losses(lines: Sequence[Line], steps: int) -> Chart | None:
    """The loss, and beside it those of decoders, where there are any."""
    of_decoders = {name.removeprefix("loss_"): name for name in OWN_LOSSES if any(name in line for line in lines)}
    return _chart("Loss", lines, {"sum": "loss", **of_decoders} if of_decoders else {"Loss": "loss"}, steps)


def recalls(lines: Sequence[Line], steps: int) -> Chart | None:
    """The mean recall of each set, over the evaluations."""
    ends = "/mean_recall"
    names = dict.fromkeys(name for line in lines for name in line if name.endswith(ends))
    return _chart("Mean recall, percent", lines, {name.removesuffix(ends): name for name in names}, steps)


def negatives(lines: Sequence[Line], steps: int) -> Chart | None:
    """Mean log p over the negatives of each source: ZeroVL's figure 4. Of many sources, those that were seen most."""
    seen = Counter(name for line in lines for name in line if name.startswith(NEGATIVES))
    names = sorted(name for name, _ in seen.most_common(SOURCES_AT_MOST))
    return _chart("Mean log p of negatives", lines, {name.removeprefix(NEGATIVES): name for name in names}, steps)


def _chart(title: str, lines: Sequence[Line], names: Mapping[str, str], steps: int) -> Chart | None:
    """Curves by the names of their metrics, of means of as many points; None where no line has any."""
    of_names = {
        shown: [(float(line["step"]), float(line[name])) for line in lines if name in line]
        for shown, name in names.items()
    }
    longest = max(map(len, of_names.values()), default=0)
    if not longest:
        return None
    size, curves = -(-longest // POINTS_AT_MOST), dict[str, Points]()
    for shown, points in of_names.items():
        groups = [points[first : first + size] for first in range(0, len(points), size)]  # the last may be smaller
        curves[shown] = [(fmean(x for x, _ in group), fmean(y for _, y in group)) for group in groups]
    return Chart(title, curves, steps, size)
