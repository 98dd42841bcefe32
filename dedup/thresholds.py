"""What a threshold finds and what it costs: recall by transform, false positives counted, fitted and extrapolated, the threshold of a budget.

A cosine is a near-duplicate's where it is strictly greater than the threshold, everywhere here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil, exp, lgamma, log, log1p

import numpy as np
import numpy.typing as npt

from altalign.dedup.buckets import nearest_clusters, share_bucket

PER_UNIT = 10_000  # bins of a histogram; the thresholds that it is asked about are its edges

# rates that a line is fitted through: it is straight there, and the few true duplicates of a sample do not bend it
FIT_FROM, FIT_TO = 1e-3, 1e-5
_DECOYS_FALL_SHORT = 12  # times at most, measured on clip art; on photographs 4
_PAIRS_AT_A_TIME = 8_192  # as floats
_FIT_POINTS, _FIT_POINTS_AT_LEAST, _FIT_PAIRS_AT_LEAST = 20, 4, 10

# the floats that their decimals are read as
_EDGES: npt.NDArray[np.float64] = np.arange(-PER_UNIT, PER_UNIT + 1) / PER_UNIT


@dataclass(frozen=True)
class Share:
    """How many of how many."""

    found: int
    asked: int

    @property
    def value(self) -> float:
        """The share itself; nan where nothing was asked."""
        return self.found / self.asked if self.asked else float("nan")

    def interval(self, *, confidence: float = 0.95) -> tuple[float, float]:
        """What the share of all may be, least and most, by Clopper and Pearson: of many samples at most 1 - `confidence` leave it outside."""
        return clopper_pearson(self.found, self.asked, confidence=confidence)


def clopper_pearson(found: int, asked: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a binomial share; (0, 1) where nothing was asked.

    Raises:
        ValueError: not 0 <= found <= asked, or a confidence that is not between 0 and 1.
    """
    if not 0 <= found <= asked or not 0 < confidence < 1:
        raise ValueError(f"{found} of {asked} at a confidence of {confidence} is no share")
    tail = (1 - confidence) / 2
    least = _beta_quantile(tail, found, asked - found + 1) if found else 0.0
    most = _beta_quantile(1 - tail, found + 1, asked - found) if found < asked else 1.0
    return least, most


def _beta_quantile(probability: float, a: int, b: int) -> float:
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _beta(middle, a, b) < probability else (low, middle)
    return middle


def _beta(x: float, a: int, b: int) -> float:
    """The regularised incomplete beta function: its continued fraction, from the side where that converges fast."""
    front = exp(a * log(x) + b * log1p(-x) + lgamma(a + b) - lgamma(a) - lgamma(b))
    return (
        front * _beta_fraction(x, a, b) / a
        if x < (a + 1) / (a + b + 2)
        else 1 - front * _beta_fraction(1 - x, b, a) / b
    )


def _beta_fraction(x: float, a: int, b: int) -> float:
    # Abramowitz and Stegun 26.5.8, two terms a step, by Lentz's method.
    numerator, denominator = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = denominator
    for m in count(1):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            numerator, denominator = 1 + term / numerator, 1 / (1 + term * denominator)
            value *= numerator * denominator
        if abs(numerator * denominator - 1) < 1e-14:
            break
    return value


# Recall ---------------------------------------------------------------------------------------------------------------


def recall_by_transform(
    transforms: Sequence[str], cosines: npt.NDArray[np.floating], *, similarity_above: float
) -> dict[str, Share]:
    """How many copies of each transform are found, in the order in which transforms first come.

    Args:
        transforms: of each copy, n names.
        cosines: of each copy with its original, float[n]; nan for one without an embedding (flat), which is not found.
        similarity_above: the threshold.
    """
    found: dict[str, Share] = {}
    for name, is_found in zip(transforms, (cosines > similarity_above).tolist(), strict=True):
        before = found.get(name, Share(0, 0))
        found[name] = Share(before.found + is_found, before.asked + 1)
    return found


def recall_and_precision(
    cosines: npt.NDArray[np.floating], is_near: npt.NDArray[np.bool_], *, similarity_above: float
) -> tuple[Share, Share]:
    """Recall and precision on labelled pairs.

    Args:
        cosines: of each pair, float[n]; nan where an image has no embedding.
        is_near: whether people call it a near-duplicate, bool[n].
        similarity_above: the threshold.
    """
    is_found = cosines > similarity_above
    both = int((is_found & is_near).sum())
    return Share(both, int(is_near.sum())), Share(both, int(is_found.sum()))


@dataclass(frozen=True, eq=False)
class Buckets:
    """What makes two images share a bucket.

    Attributes:
        centroids: int16[clusters, d].
        nearest: so many nearest clusters of each image count.
        at_least: so many of them in common make a bucket; 0: every pair shares one.
    """

    centroids: npt.NDArray[np.int16]
    nearest: int
    at_least: int

    def shared(self, vectors: npt.NDArray[np.int16], others: npt.NDArray[np.int16]) -> npt.NDArray[np.bool_]:
        """Whether the images of each pair, int16[n, d] twice, share one: bool[n]."""
        if not self.at_least:
            return np.ones(len(vectors), np.bool_)
        sides = (nearest_clusters(side, self.centroids, self.nearest) for side in (vectors, others))
        return share_bucket(*sides, at_least=self.at_least)


def cosines_of(vectors: npt.NDArray[np.int16], others: npt.NDArray[np.int16]) -> npt.NDArray[np.float64]:
    """Of pairs, int16[n, d] twice: float64[n]; nan where one of them is zeros and so has no direction."""
    found = np.full(len(vectors), np.nan)
    for begin in range(0, len(vectors), _PAIRS_AT_A_TIME):
        some = slice(begin, begin + _PAIRS_AT_A_TIME)
        a, b = vectors[some].astype(np.float64), others[some].astype(np.float64)
        norms = np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
        np.divide((a * b).sum(axis=1), norms, out=found[some], where=norms > 0)
    return found


def of_best_view(
    vectors: npt.NDArray[np.int16], views: Sequence[npt.NDArray[np.int16]], buckets: Buckets
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Cosines of pairs as the search decides on them: of the view that is nearest, among those that share a bucket; and whatever the buckets.

    Args:
        vectors: of copies, int16[n, d].
        views: of what they are copies of, int16[n, d] each.
        buckets: what a pair must share.

    Returns:
        float64[n] twice; nan where there is no cosine, or no bucket.
    """
    inside, anyhow = np.full((2, len(vectors)), np.nan)
    for view in views:
        found = cosines_of(vectors, view)
        anyhow = np.fmax(anyhow, found)
        inside = np.fmax(inside, np.where(buckets.shared(vectors, view), found, np.nan))
    return inside, anyhow


# False positives ------------------------------------------------------------------------------------------------------


class CosineHistogram:
    """How many of many comparisons have a cosine above each ten-thousandth; additive.

    Of pairs that a search found: those above some cosine, of all that were compared.
    """

    def __init__(self, found_above: float, comparisons: int = 0, tally: npt.NDArray[np.int64] | None = None):
        self.found_above, self.comparisons = float(_EDGES[_edge(found_above)]), comparisons
        self._tally = np.zeros(len(_EDGES) + 1, np.int64) if tally is None else tally

    def add(self, cosines: npt.NDArray[np.floating], comparisons: int) -> "CosineHistogram":
        """With what another search found above `found_above`, float[n], among so many comparisons."""
        # A cosine that is an edge counts below it, as a threshold has it.
        tally = np.bincount(np.searchsorted(_EDGES, cosines.astype(np.float64)), minlength=len(self._tally))
        return CosineHistogram(self.found_above, self.comparisons + comparisons, self._tally + tally)

    def __add__(self, other: "CosineHistogram") -> "CosineHistogram":
        if self.found_above != other.found_above:
            raise ValueError(
                f"histograms of cosines above {self.found_above} and above {other.found_above} do not add up"
            )
        return CosineHistogram(self.found_above, self.comparisons + other.comparisons, self._tally + other._tally)

    def without(self, pairs: int) -> "CosineHistogram":
        """Without so many pairs, those of the greatest cosines: of those that are known for near-duplicates."""
        from_top = self._tally[::-1]
        before = from_top.cumsum() - from_top
        left_out = np.clip(pairs - before, 0, from_top)
        return CosineHistogram(self.found_above, self.comparisons - int(left_out.sum()), (from_top - left_out)[::-1])

    def above(self, threshold: float) -> Share:
        """How many of the comparisons have a cosine above a threshold, a multiple of 0.0001.

        Raises:
            ValueError: it is no such multiple, or below what was searched for.
        """
        if threshold < self.found_above:
            raise ValueError(f"only cosines above {self.found_above} were searched for, {threshold} is below that")
        return Share(int(self._tally[_edge(threshold) + 1 :].sum()), self.comparisons)

    def thresholds(self) -> npt.NDArray[np.float64]:
        """Those it can be asked about, from `found_above` to 1."""
        return _EDGES[_edge(self.found_above) :]

    def counts_above(self) -> npt.NDArray[np.int64]:
        """`above` of each of `thresholds`."""
        return self._tally[::-1].cumsum()[::-1][_edge(self.found_above) + 1 :]


def _edge(threshold: float) -> int:
    """Number of a threshold among the edges."""
    edge = round((threshold + 1) * PER_UNIT)
    if not 0 <= edge < len(_EDGES) or abs(_EDGES[edge] - threshold) > 1e-9:
        raise ValueError(f"a threshold is a multiple of {1 / PER_UNIT} from -1 to 1, {threshold} is not")
    return edge


@dataclass(frozen=True)
class Line:
    """The rate of false positives a comparison as a power of (1 - t) / 2: log rate = intercept + slope x log((1 - t) / 2).

    Attributes:
        slope: half the number of dimensions that the images really fill.
        intercept: of natural logarithms.
        fitted_from: the greatest rate that it was fitted through.
        fitted_to: the least; a lower one is extrapolated.
    """

    slope: float
    intercept: float
    fitted_from: float
    fitted_to: float

    def rate(self, threshold: float) -> float:
        """Of false positives at a threshold, a comparison."""
        return min(1.0, exp(self.intercept + self.slope * log((1 - threshold) / 2))) if threshold < 1 else 0.0

    def is_extrapolated(self, threshold: float) -> bool:
        """Whether the rate at a threshold is below all that were measured."""
        return self.rate(threshold) < self.fitted_to

    def scaled(self, factor: float) -> "Line":
        """The line of so many times the rate: of decoys, which find less than there is."""
        return Line(self.slope, self.intercept + log(factor), self.fitted_from * factor, self.fitted_to * factor)


def fit(histogram: CosineHistogram) -> Line:
    """The line through the rates from 1e-3 to 1e-5, at steps that are even in their logarithm; those with 10 pairs at least behind them.

    The histogram is of unrelated pairs; the few true duplicates in a sample of a pool weigh little at these rates.

    Raises:
        ValueError: it holds too few pairs for a line, or they do not get fewer as the threshold rises.
    """
    counts, comparisons = histogram.counts_above(), histogram.comparisons
    places = set()
    for rate in np.geomspace(FIT_FROM, FIT_TO, _FIT_POINTS):
        place = int(np.argmax(counts <= rate * comparisons))
        if counts[place] >= _FIT_PAIRS_AT_LEAST and counts[place] <= rate * comparisons and place < len(counts) - 1:
            places.add(place)
    chosen = sorted(places)
    if len(chosen) < _FIT_POINTS_AT_LEAST:
        raise ValueError(
            f"{counts[0]:,} of {comparisons:,} comparisons are above a cosine of {histogram.found_above}: too few to fit a rate of false positives; "
            f"compare {round(_FIT_PAIRS_AT_LEAST / FIT_TO):,} pairs or more, or search for lower cosines"
        )
    rates = counts[chosen] / comparisons
    x, y = np.log((1 - histogram.thresholds()[chosen]) / 2), np.log(rates)
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    if slope <= 0:
        raise ValueError(
            "the rate of false positives does not fall as the threshold rises; no threshold can be read from it"
        )
    return Line(slope, float(y.mean() - slope * x.mean()), float(rates.max()), float(rates.min()))


def true_near_duplicates(found: CosineHistogram, decoys: CosineHistogram, *, similarity_above: float) -> int:
    """How many of the pairs above a strict threshold are no false positives, for all that decoys say: those beyond 12 times as many as decoys have.

    In a pool that holds test images they are so many, where the test side is small, that a line through them would be
    level. Decoys fall short of the rate of false positives up to 12 times.
    """
    share = decoys.above(similarity_above)
    unrelated = _DECOYS_FALL_SHORT * share.found / share.asked * found.comparisons if share.asked else 0.0
    return max(0, found.above(similarity_above).found - ceil(unrelated))


def false_positives_per_image(line: Line, threshold: float, *, test_images: int, views: int) -> float:
    """Expected false positives of one pool image: test images x views of each x the rate."""
    return test_images * views * line.rate(threshold)


def smallest_threshold(line: Line, *, test_images: int, views: int, budget: float) -> float:
    """The smallest threshold, a multiple of 0.0001 from 0 on, at which a pool image is expected to have no more false positives than the budget.

    Raises:
        ValueError: no test images, a budget that is not above 0, or one that no threshold below 1 keeps.
    """
    comparisons = test_images * views
    if comparisons < 1 or budget <= 0:
        raise ValueError(
            f"no threshold can be chosen for {test_images} test images in {views} views and a budget of {budget} false positives a pool image"
        )
    root = 1 - 2 * exp((log(budget / comparisons) - line.intercept) / line.slope) if budget < comparisons else 0.0
    # the formula's answer to within its rounding; then as the budget is stated
    step = max(0, ceil(PER_UNIT * root) - 1)
    while false_positives_per_image(line, step / PER_UNIT, test_images=test_images, views=views) > budget:
        step += 1
    if step == PER_UNIT:
        raise ValueError(
            f"no threshold below 1 keeps {budget} false positives a pool image among {test_images:,} test images in {views} views: allow more"
        )
    return step / PER_UNIT


# Decoys and pairs to look at ------------------------------------------------------------------------------------------


def is_own_mirror(
    vectors: npt.NDArray[np.int16], mirrored: npt.NDArray[np.int16], *, similarity_above: float
) -> npt.NDArray[np.bool_]:
    """Which images look like themselves in a mirror: no decoys, for a copy of such an image is rightly found.

    Mirrored test images are decoys: nothing in the pool should be near one. What is, counts as false without any label;
    for photographs the true rate is 2 to 4 times theirs.

    Args:
        vectors: of images, int16[n, d].
        mirrored: of their mirrored views, int16[n, d].
        similarity_above: cosine.
    """
    return cosines_of(vectors, mirrored) > similarity_above


def nearest_to(threshold: float, cosines: npt.NDArray[np.floating], *, pairs: int) -> npt.NDArray[np.int64]:
    """Which pairs to look at: half of them just above a threshold, half at or just below, fewer where there are no more; cosines rising.

    Args:
        threshold: cosine.
        cosines: of pairs, float[n]; of equal ones those that come first are taken first.
        pairs: how many.
    """
    order = np.argsort(cosines, kind="stable")
    split = int(np.searchsorted(cosines[order], threshold, side="right"))
    above = order[split : split + (pairs + 1) // 2]
    below = np.argsort(-cosines, kind="stable")[len(order) - split :][: pairs // 2]
    return np.concatenate([below[::-1], above]).astype(np.int64)


def curve(histogram: CosineHistogram, line: Line, thresholds: Iterable[float]) -> list[tuple[float, Share, float]]:
    """At each threshold what was counted and what the line says, for a figure."""
    return [(threshold, histogram.above(threshold), line.rate(threshold)) for threshold in thresholds]
