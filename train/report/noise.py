"""How noisy the pairs of a run are: the mixture of their losses, and the cleanest and noisiest of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from altalign.train.data.samples import Samples
from altalign.train.encoders import decoder_of
from altalign.train.noise import found
from altalign.train.noise.found import Losses, Measured
from altalign.train.report.samples import Decode, Seen, seen_of
from altalign.train.settings import TrainConfig

PAIRS = 12  # of each gallery
_BARS = 60
_FAR = 0.999  # the quantile of losses that the figure ends at


@dataclass(frozen=True)
class Judged:
    """A pair, its loss, and how noisy it is held for."""

    pair: Seen
    loss: float
    eps: float


@dataclass(frozen=True)
class NoiseView:
    """The section of the report.

    Attributes:
        pairs: how many were measured.
        noisy: how many of them are more likely noisy than clean.
        is_one: whether the losses do not fall into two groups.
        groups: share, mean and deviation of each, the lower first.
        ends: the losses at the left and right end of the figure.
        bars: its histogram: left, width and height in percent, up is more.
        curves: the densities of the groups: points in a square of 100 by 100, up is less.
        cleanest: the pairs with the least losses.
        noisiest: those with the greatest eps, the greatest loss first.
    """

    pairs: int
    noisy: int
    is_one: bool
    groups: list[tuple[float, float, float]]
    ends: tuple[float, float]
    bars: list[tuple[float, float, float]]
    curves: list[list[tuple[float, float]]]
    cleanest: list[Judged]
    noisiest: list[Judged]


def of_run(config: TrainConfig, samples: Samples) -> NoiseView | None:
    """The section of a run whose noise was measured; None where it was not."""
    measured = found.known(config, samples)
    if measured is None:
        return None
    is_known = ~np.isnan(measured.losses)
    losses = measured.losses[is_known]
    low, high = float(losses.min()), float(np.quantile(losses, _FAR))
    ends = (low, high if high > low else low + 1)
    counts, edges = np.histogram(losses, _BARS, ends)
    at = np.linspace(*ends, 2 * _BARS)
    width = edges[1] - edges[0]
    densities = measured.mixture.densities(at) * len(losses) * width  # in pairs a bar
    most = float(max(counts.max(), np.nanmax(densities[:, 1:-1]) if not measured.mixture.is_one else 0))
    of, decode = measured.mixture, decoder_of(config)
    by_noise = np.lexsort((-np.nan_to_num(measured.losses), -measured.eps))
    by_loss = np.argsort(measured.losses, kind="stable")  # NaN are last
    return NoiseView(
        pairs=len(losses),
        noisy=int((measured.eps > 0.5).sum()),
        is_one=of.is_one,
        groups=list(zip(of.shares, of.means, of.deviations, strict=True)),
        ends=ends,
        bars=[
            (round(100 * n / _BARS, 2), round(100 / _BARS, 2), round(100 * c / most, 2)) for n, c in enumerate(counts)
        ],
        curves=[] if of.is_one else [_points(at, ends, density / most) for density in densities],
        cleanest=_judged(samples, decode, measured, by_loss[: min(PAIRS, int(is_known.sum()))].tolist()),
        noisiest=[] if of.is_one else _judged(samples, decode, measured, by_noise[:PAIRS].tolist()),
    )


def _points(at: npt.NDArray[np.float64], ends: tuple[float, float], heights: Losses) -> list[tuple[float, float]]:
    left, right = ends
    return [
        (round(100 * (x - left) / (right - left), 2), round(100 * (1 - min(1.0, float(y))), 2))
        for x, y in zip(at.tolist(), heights.tolist(), strict=True)
    ]


def _judged(samples: Samples, decode: Decode, measured: Measured, places: Sequence[int]) -> list[Judged]:
    """Pairs at these places of what was measured, with their pictures."""
    found = [(place, seen_of(samples, decode, int(measured.numbers[place]))) for place in places]
    return [
        Judged(seen, float(measured.losses[place]), float(measured.eps[place]))
        for place, seen in found
        if seen is not None
    ]
