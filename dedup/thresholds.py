"""What a threshold finds and costs: recall by transform, the rate of false positives, the threshold for a budget.

Everywhere here, a pair is a near-duplicate if its cosine is strictly greater than the threshold.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil, exp, lgamma, log, log1p

import numpy as np
import numpy.typing as npt

from altalign.dedup.buckets import nearest_clusters, share_bucket

PER_UNIT = 10_000  # bins of a histogram per unit of cosine; thresholds are edges of bins

# A line is fitted through these rates: it is straight there, and the few true duplicates of a sample do not bend it.
FIT_FROM, FIT_TO = 1e-3, 1e-5
_DECOYS_FALL_SHORT = (
    12  # decoys have at least a 12th of the false positives, measured on clip art; on photographs a 4th
)
_PAIRS_AT_A_TIME = 8_192  # pairs that are held as floats
_FIT_POINTS, _FIT_POINTS_AT_LEAST, _FIT_PAIRS_AT_LEAST = 20, 4, 10
_RATES = np.geomspace(FIT_FROM, FIT_TO, _FIT_POINTS)
COMPARISONS_AT_LEAST = ceil(_FIT_PAIRS_AT_LEAST / _RATES[_FIT_POINTS_AT_LEAST - 1])  # `fit` finds no line of fewer

# Edges of bins, each the float that its decimal reads as.
_EDGES: npt.NDArray[np.float64] = np.arange(-PER_UNIT, PER_UNIT + 1) / PER_UNIT


@dataclass(frozen=True)
class Share:
    """A share: `found` of `asked`."""

    found: int
    asked: int

    @property
    def value(self) -> float:
        """The share itself; nan where nothing was asked."""
        return self.found / self.asked if self.asked else float("nan")

    def interval(self, *, confidence: float = 0.95) -> tuple[float, float]:
        """The interval of Clopper and Pearson, least and most: it misses the true share in at most 1 - `confidence`."""
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
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(x, a, b) / a
    return 1 - front * _beta_fraction(1 - x, b, a) / b


def _beta_fraction(x: float, a: int, b: int) -> float:
    # Abramowitz and Stegun 26.5.8 by Lentz's method, two terms per step.
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
        transforms: the transform of each copy, n names.
        cosines: cosine of each copy with its original, float[n]; nan for a flat copy, which has no embedding and is not
            found.
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
        cosines: cosine of each pair, float[n]; nan if an image has no embedding.
        is_near: whether people call the pair near-duplicates, bool[n].
        similarity_above: the threshold.
    """
    is_found = cosines > similarity_above
    both = int((is_found & is_near).sum())
    return Share(both, int(is_near.sum())), Share(both, int(is_found.sum()))


@dataclass(frozen=True, eq=False)
class Buckets:
    """The rule by which two images share a bucket.

    Attributes:
        centroids: int16[clusters, d].
        nearest: number of each image's nearest clusters that count.
        at_least: number of these that two images must have in common; 0: every pair shares a bucket.
    """

    centroids: npt.NDArray[np.int16]
    nearest: int
    at_least: int

    def shared(self, vectors: npt.NDArray[np.int16], others: npt.NDArray[np.int16]) -> npt.NDArray[np.bool_]:
        """Whether the images of each pair (int16[n, d] twice) share a bucket, bool[n]."""
        if not self.at_least:
            return np.ones(len(vectors), np.bool_)
        sides = (nearest_clusters(side, self.centroids, self.nearest) for side in (vectors, others))
        return share_bucket(*sides, at_least=self.at_least)


def cosines_of(vectors: npt.NDArray[np.int16], others: npt.NDArray[np.int16]) -> npt.NDArray[np.float64]:
    """Cosines of pairs (int16[n, d] twice), float64[n]; nan if a vector is zeros and so has no direction."""
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
    """Cosine of each copy with the nearest view of its original, first within buckets as in the search, then anyhow.

    Args:
        vectors: vectors of copies, int16[n, d].
        views: vectors of the originals' views, int16[n, d] each.
        buckets: the buckets that a pair must share.

    Returns:
        float64[n] twice; nan if there is no cosine, or no shared bucket.
    """
    inside, anyhow = np.full((2, len(vectors)), np.nan)
    for view in views:
        found = cosines_of(vectors, view)
        anyhow = np.fmax(anyhow, found)
        inside = np.fmax(inside, np.where(buckets.shared(vectors, view), found, np.nan))
    return inside, anyhow


# False positives ------------------------------------------------------------------------------------------------------


class CosineHistogram:
    """Number of comparisons whose cosine is above each ten-thousandth; additive.

    It knows the pairs that a search found, those above some cosine, and how many pairs were compared.
    """

    def __init__(self, found_above: float, comparisons: int = 0, tally: npt.NDArray[np.int64] | None = None):
        self.found_above, self.comparisons = float(_EDGES[_edge(found_above)]), comparisons
        self._tally = np.zeros(len(_EDGES) + 1, np.int64) if tally is None else tally

    def add(self, cosines: npt.NDArray[np.floating], comparisons: int) -> "CosineHistogram":
        """This histogram and the cosines (float[n]) above `found_above` that another search found in `comparisons`."""
        # A cosine that equals an edge counts below it, since thresholds are strict.
        tally = np.bincount(np.searchsorted(_EDGES, cosines.astype(np.float64)), minlength=len(self._tally))
        return CosineHistogram(self.found_above, self.comparisons + comparisons, self._tally + tally)

    def __add__(self, other: "CosineHistogram") -> "CosineHistogram":
        if self.found_above != other.found_above:
            raise ValueError(
                f"histograms of cosines above {self.found_above} and above {other.found_above} do not add up"
            )
        return CosineHistogram(self.found_above, self.comparisons + other.comparisons, self._tally + other._tally)

    def without(self, pairs: int) -> "CosineHistogram":
        """This histogram without so many pairs, those with the largest cosines: pairs known to be near-duplicates."""
        from_top = self._tally[::-1]
        before = from_top.cumsum() - from_top
        left_out = np.clip(pairs - before, 0, from_top)
        return CosineHistogram(self.found_above, self.comparisons - int(left_out.sum()), (from_top - left_out)[::-1])

    def above(self, threshold: float) -> Share:
        """The share of comparisons with a cosine above a threshold, a multiple of 0.0001.

        Raises:
            ValueError: the threshold is no such multiple, or below what was searched for.
        """
        if threshold < self.found_above:
            raise ValueError(f"only cosines above {self.found_above} were searched for, {threshold} is below that")
        return Share(int(self._tally[_edge(threshold) + 1 :].sum()), self.comparisons)

    def thresholds(self) -> npt.NDArray[np.float64]:
        """The thresholds that `above` takes, from `found_above` to 1."""
        return _EDGES[_edge(self.found_above) :]

    def counts_above(self) -> npt.NDArray[np.int64]:
        """The number of pairs found above each of `thresholds`."""
        return self._tally[::-1].cumsum()[::-1][_edge(self.found_above) + 1 :]


def _edge(threshold: float) -> int:
    """Number of a threshold among the edges."""
    edge = round((threshold + 1) * PER_UNIT)
    if not 0 <= edge < len(_EDGES) or abs(_EDGES[edge] - threshold) > 1e-9:
        raise ValueError(f"a threshold is a multiple of {1 / PER_UNIT} from -1 to 1, {threshold} is not")
    return edge


@dataclass(frozen=True)
class Line:
    """False positives per comparison at a threshold t: log rate = intercept + slope x log((1 - t) / 2).

    Attributes:
        slope: half the number of dimensions that the images really fill.
        intercept: a natural logarithm.
        fitted_from: the largest rate that the line was fitted through.
        fitted_to: the smallest; lower rates are extrapolated.
    """

    slope: float
    intercept: float
    fitted_from: float
    fitted_to: float

    def rate(self, threshold: float) -> float:
        """The rate of false positives per comparison at a threshold."""
        return min(1.0, exp(self.intercept + self.slope * log((1 - threshold) / 2))) if threshold < 1 else 0.0

    def is_extrapolated(self, threshold: float) -> bool:
        """Whether the rate at a threshold is below all that were measured."""
        return self.rate(threshold) < self.fitted_to

    def scaled(self, factor: float) -> "Line":
        """The line of `factor` times the rate; decoys have fewer false positives than there are."""
        return Line(self.slope, self.intercept + log(factor), self.fitted_from * factor, self.fitted_to * factor)


def fit(histogram: CosineHistogram) -> Line:
    """The line through rates from 1e-3 to 1e-5, in even steps of their logarithm, that rest on at least 10 pairs.

    The histogram is of unrelated pairs; the few true duplicates in a sample of a pool weigh little at these rates.

    Raises:
        ValueError: there are too few pairs for a line, or they do not get fewer as the threshold rises.
    """
    counts, comparisons = histogram.counts_above(), histogram.comparisons
    places = set()
    for rate in _RATES:
        place = int(np.argmax(counts <= rate * comparisons))
        if counts[place] >= _FIT_PAIRS_AT_LEAST and counts[place] <= rate * comparisons and place < len(counts) - 1:
            places.add(place)
    chosen = sorted(places)
    if len(chosen) < _FIT_POINTS_AT_LEAST:
        raise ValueError(
            f"{counts[0]:,} of {comparisons:,} comparisons are above a cosine of {histogram.found_above}: too few to "
            f"fit a rate of false positives; compare {round(_FIT_PAIRS_AT_LEAST / FIT_TO):,} pairs or more, or search "
            "for lower cosines"
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
    """The number of pairs above a strict threshold that cannot be false positives: those beyond 12 times the decoys'.

    Decoys have down to a 12th of the false positives. In a pool that holds test images, true near-duplicates can be so
    many, where the test side is small, that a line through them would be level.
    """
    share = decoys.above(similarity_above)
    unrelated = _DECOYS_FALL_SHORT * share.found / share.asked * found.comparisons if share.asked else 0.0
    return max(0, found.above(similarity_above).found - ceil(unrelated))


def false_positives_per_image(line: Line, threshold: float, *, test_images: int, views: int) -> float:
    """Expected false positives per pool image: test images x views of each x rate."""
    return test_images * views * line.rate(threshold)


def smallest_threshold(line: Line, *, test_images: int, views: int, budget: float) -> float:
    """The smallest threshold, a multiple of 0.0001, that keeps expected false positives per pool image in the budget.

    Raises:
        ValueError: there are no test images, the budget is not above 0, or no threshold below 1 keeps it.
    """
    comparisons = test_images * views
    if comparisons < 1 or budget <= 0:
        raise ValueError(
            f"no threshold can be chosen (test images: {test_images}, views: {views}; a budget of {budget} false "
            "positives a pool image)"
        )
    root = 1 - 2 * exp((log(budget / comparisons) - line.intercept) / line.slope) if budget < comparisons else 0.0
    # Starts just below the formula's answer, which is rounded, and rises until the budget is kept.
    step = max(0, ceil(PER_UNIT * root) - 1)
    while false_positives_per_image(line, step / PER_UNIT, test_images=test_images, views=views) > budget:
        step += 1
    if step == PER_UNIT:
        raise ValueError(
            f"no threshold below 1 keeps {budget} false positives a pool image (test images: {test_images:,}, views: "
            f"{views}): allow more"
        )
    return step / PER_UNIT


# Decoys and pairs to look at ------------------------------------------------------------------------------------------


def is_own_mirror(
    vectors: npt.NDArray[np.int16], mirrored: npt.NDArray[np.int16], *, similarity_above: float
) -> npt.NDArray[np.bool_]:
    """Which images look like their own mirror image, bool[n]: they are no decoys, since their copies are rightly found.

    Mirrored test images are decoys: nothing in the pool should be near one, so whatever is counts as false without any
    label. For photographs the true rate is 2 to 4 times that of decoys.

    Args:
        vectors: vectors of images, int16[n, d].
        mirrored: vectors of their mirrored views, int16[n, d].
        similarity_above: cosine.
    """
    return cosines_of(vectors, mirrored) > similarity_above


def nearest_to(threshold: float, cosines: npt.NDArray[np.floating], *, pairs: int) -> npt.NDArray[np.int64]:
    """The pairs to look at, by rising cosine: half just above a threshold, half at or just below it, or what there is.

    Args:
        threshold: cosine.
        cosines: cosines of pairs, float[n]; of equal ones, the first are taken first.
        pairs: number of pairs to return.
    """
    order = np.argsort(cosines, kind="stable")
    split = int(np.searchsorted(cosines[order], threshold, side="right"))
    above = order[split : split + (pairs + 1) // 2]
    below = np.argsort(-cosines, kind="stable")[len(order) - split :][: pairs // 2]
    return np.concatenate([below[::-1], above]).astype(np.int64)


def curve(histogram: CosineHistogram, line: Line, thresholds: Iterable[float]) -> list[tuple[float, Share, float]]:
    """For a figure: each threshold, the share that was counted there, and the rate of the line."""
    return [(threshold, histogram.above(threshold), line.rate(threshold)) for threshold in thresholds]
