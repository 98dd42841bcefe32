"""What a threshold finds and costs: recall by transform, the rate of false positives, the threshold for a budget.

Everywhere here, a pair is a near-duplicate if its cosine is strictly greater than the threshold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, sqrt

import numpy as np
import numpy.typing as npt

from altalign.dedup.clusters import NEAREST, nearest_clusters, share_bucket

SEARCHED_ABOVE = 0.5  # cosine; pairs below it are not looked for, so no threshold is chosen below it
THRESHOLDS: npt.NDArray[np.float64] = np.arange(5_000, 10_001) / 10_000  # each the float that its decimal reads as

# A line is fitted through these rates: it is straight there, and the few true duplicates of a sample do not bend it.
FIT_FROM, FIT_TO = 1e-3, 1e-5
_FIT_POINTS, _FIT_POINTS_AT_LEAST, _FIT_PAIRS_AT_LEAST = 20, 4, 10
_RATES = np.geomspace(FIT_FROM, FIT_TO, _FIT_POINTS)
COMPARISONS_AT_LEAST = ceil(_FIT_PAIRS_AT_LEAST / _RATES[_FIT_POINTS_AT_LEAST - 1])  # `fit` finds no line of fewer
# decoys have at least a 12th of the false positives, measured on clip art; on photographs a 4th
_DECOYS_FALL_SHORT = 12
_Z = 1.959964  # of the normal distribution at 97.5 %

Floats = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.int16]


@dataclass(frozen=True)
class Share:
    """A share: `hits` of `total`."""

    hits: int
    total: int

    @property
    def value(self) -> float:
        """The share itself; nan of nothing."""
        return self.hits / self.total if self.total else float("nan")

    def interval(self) -> tuple[float, float]:
        """The 95 % interval of Wilson (1927), least and most; (0, 1) of nothing."""
        if not self.total:
            return 0.0, 1.0
        share, doubt = self.value, _Z**2 / self.total
        half = _Z * sqrt(share * (1 - share) / self.total + doubt / (4 * self.total))
        return (
            max(0.0, (share + doubt / 2 - half) / (1 + doubt)) if self.hits else 0.0,
            min(1.0, (share + doubt / 2 + half) / (1 + doubt)) if self.hits < self.total else 1.0,
        )

    def to_json(self) -> dict[str, float]:
        """Hits and total, with the interval to six digits."""
        least, most = self.interval()
        return {"found": self.hits, "asked": self.total, "least": short(least), "most": short(most)}


def short(value: float) -> float:
    """A number to six digits."""
    return float(f"{value:.6g}")


# Recall ---------------------------------------------------------------------------------------------------------------


def recall_by_transform(transforms: Sequence[str], cosines: Floats, *, similarity_above: float) -> dict[str, Share]:
    """How many copies of each transform are found, in the order in which transforms first come.

    `cosines` are of each copy with its original; nan of a flat copy, which has no embedding and is not found.
    """
    names, is_found = np.array(transforms), cosines > similarity_above
    return {
        name: Share(int(is_found[names == name].sum()), int((names == name).sum()))
        for name in dict.fromkeys(transforms)
    }


def cosines_of(vectors: Vectors, others: Vectors) -> Floats:
    """Cosines of pairs (int16[n, d] twice), float64[n]; nan if a vector is zeros and so has no direction."""
    sides = (vectors, others), (vectors, vectors), (others, others)
    products, *squares = (np.einsum("nd,nd->n", *pair, dtype=np.int64).astype(np.float64) for pair in sides)
    norms = np.sqrt(squares[0] * squares[1])
    return np.divide(products, norms, out=np.full(len(norms), np.nan), where=norms > 0)


def of_best_view(
    vectors: Vectors, views: Sequence[Vectors], centroids: Vectors, *, at_least: int, nearest: int = NEAREST
) -> Floats:
    """Cosine of each copy with the nearest view of its original that shares a bucket with it; nan if there is none.

    Copies and views are int16[n, d], centroids int16[clusters, d]. A bucket is `at_least` of the `nearest` clusters of
    both; all pairs share one if that is 0.
    """
    best, of_vectors = np.full(len(vectors), np.nan), nearest_clusters(vectors, centroids, nearest)
    for view in views:
        shares = share_bucket(of_vectors, nearest_clusters(view, centroids, nearest), at_least=at_least)
        best = np.fmax(best, np.where(shares, cosines_of(vectors, view), np.nan))
    return best


# False positives ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Comparisons:
    """How many of the compared pairs have a cosine above each of `THRESHOLDS`; parts add up."""

    counts: npt.NDArray[np.int64]  # of each threshold
    compared: int  # pairs, whatever their cosine

    @classmethod
    def from_cosines(cls, cosines: npt.NDArray[np.floating], compared: int) -> "Comparisons":
        """The cosines above `SEARCHED_ABOVE` (float[n]) of so many compared pairs."""
        rising = np.sort(np.minimum(cosines.astype(np.float64), 1.0))  # a rounded one may be above 1
        return cls(len(rising) - np.searchsorted(rising, THRESHOLDS, side="right"), compared)

    def __add__(self, other: "Comparisons") -> "Comparisons":
        return Comparisons(self.counts + other.counts, self.compared + other.compared)

    def without(self, pairs: int) -> "Comparisons":
        """These but for so many pairs with the greatest cosines: pairs that are known to be near-duplicates."""
        return Comparisons(np.maximum(0, self.counts - pairs), self.compared - min(pairs, int(self.counts[0])))

    def above(self, threshold: float) -> Share:
        """The share of pairs with a cosine above one of `THRESHOLDS`."""
        return Share(int(self.counts[np.searchsorted(THRESHOLDS, threshold - 1e-9)]), self.compared)


@dataclass(frozen=True)
class Line:
    """False positives per comparison at a threshold t: log rate = intercept + slope x log((1 - t) / 2)."""

    slope: float  # half the number of dimensions that the images really fill
    intercept: float  # a natural logarithm
    fitted_from: float  # the largest rate that the line was fitted through
    fitted_to: float  # the smallest; lower rates are extrapolated

    def rates(self, thresholds: npt.ArrayLike) -> Floats:
        """The rates of false positives per comparison at thresholds."""
        with np.errstate(divide="ignore"):
            logarithms = np.log((1 - np.asarray(thresholds, np.float64)) / 2)
        return np.minimum(1.0, np.exp(self.intercept + self.slope * logarithms))


def fit(unrelated: Comparisons) -> Line:
    """The line through rates from 1e-3 to 1e-5, in even steps of their logarithm, that rest on at least 10 pairs.

    Raises ValueError: there are too few pairs for a line, or they do not get fewer as the threshold rises.
    """
    counts, compared = unrelated.counts, unrelated.compared
    places = np.unique(np.searchsorted(-counts, -_RATES * compared))  # the first thresholds of rates at most these
    chosen = places[counts[places] >= _FIT_PAIRS_AT_LEAST]
    if len(chosen) < _FIT_POINTS_AT_LEAST:
        repair = f"compare {round(_FIT_PAIRS_AT_LEAST / FIT_TO):,} pairs or more"
        raise ValueError(f"{compared:,} comparisons: too few to fit a rate of false positives; {repair}")
    rates = counts[chosen] / compared
    slope, intercept = np.polyfit(np.log((1 - THRESHOLDS[chosen]) / 2), np.log(rates), 1)
    if slope <= 0:
        raise ValueError("the rate of false positives does not fall as the threshold rises")
    return Line(float(slope), float(intercept), float(rates.max()), float(rates.min()))


def true_near_duplicates(pairs: Comparisons, decoys: Comparisons, *, similarity_above: float) -> int:
    """The number of pairs above a strict threshold that cannot be false positives: those beyond 12 times the decoys'.

    Decoys have down to a 12th of the false positives. In a pool that holds test images, true near-duplicates can be so
    many, where the test side is small, that a line through them would be level.
    """
    share = decoys.above(similarity_above)
    unrelated = _DECOYS_FALL_SHORT * share.hits / share.total * pairs.compared if share.total else 0.0
    return max(0, pairs.above(similarity_above).hits - ceil(unrelated))


def smallest_threshold(lines: Sequence[Line], *, comparisons: int, budget: float) -> float:
    """The smallest of `THRESHOLDS` that keeps the false positives that every line expects within a budget.

    Both are of one image of the pool; comparisons are test images x views of each. Raises ValueError: none does.
    """
    rates = np.max([line.rates(THRESHOLDS) for line in lines], axis=0)
    place = int(np.argmax(comparisons * rates <= budget))
    if place == len(THRESHOLDS) - 1:
        raise ValueError(f"no threshold below 1 keeps {budget} false positives among {comparisons:,} comparisons")
    return float(THRESHOLDS[place])


def nearest_to(threshold: float, cosines: Floats, *, pairs: int) -> npt.NDArray[np.int64]:
    """So many pairs to look at, by rising cosine: half just above a threshold, half at or just below it.

    Fewer where there are fewer; of pairs with equal cosines, the first are taken first.
    """
    is_above = cosines > threshold
    above = np.argsort(np.where(is_above, cosines, inf), kind="stable")[: min((pairs + 1) // 2, is_above.sum())]
    below = np.argsort(np.where(is_above, inf, -cosines), kind="stable")[: min(pairs // 2, (~is_above).sum())]
    return np.concatenate([below[::-1], above]).astype(np.int64)
