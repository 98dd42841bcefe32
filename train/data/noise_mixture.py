"""Two groups of losses, the clean and the noisy: a mixture of two Gaussians by EM (NLIP, equations 7 and 8). Pure."""

import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from altalign.errors import AltalignError, UsageError, bring

Losses = npt.NDArray[np.floating]
Floats = npt.NDArray[np.float64]
Two = tuple[float, float]

_STEPS_AT_MOST, _TOLERANCE = 200, 1e-5  # of EM; the tolerance is of the mean log-likelihood
_APART_AT_LEAST = 0.5  # of the smaller deviation: groups whose means are nearer are of one centre, and no two
_SMALLEST_VARIANCE = 1e-6  # of the variance of all losses: added to those of the groups


@dataclass(frozen=True)
class Mixture:
    """The lower and the higher group of losses: shares of the pairs, means and standard deviations, two each.

    `is_one` says that the losses do not fall into two groups, and no pair is held for noisy: one Gaussian explains them
    as well (by the Bayesian information criterion), or the groups have one centre.
    """

    shares: Two
    means: Two
    deviations: Two
    is_one: bool = False

    def noise(self, losses: Losses) -> Floats:
        """The probability of each loss (n,) to be of the group with the higher mean, from 0 to 1.

        Below the lower mean it is 0: where the higher group is the wider one, its density is the greater on both ends,
        and the pairs with the least losses would be held for noisy.
        """
        if self.is_one:
            return np.zeros(len(losses))
        low, high = self._logarithms(losses)
        with np.errstate(over="ignore"):
            posterior = 1 / (1 + np.exp(low - high))
        return np.where(losses < self.means[0], 0.0, posterior)

    def _logarithms(self, losses: Losses) -> Floats:
        x = np.asarray(losses, np.float64)[None]
        share, mean, deviation = (np.array(pair)[:, None] for pair in (self.shares, self.means, self.deviations))
        with np.errstate(divide="ignore"):
            return np.log(share) - np.log(deviation) - 0.5 * np.log(2 * np.pi) - 0.5 * ((x - mean) / deviation) ** 2


def fitted(losses: Losses) -> Mixture:
    """The mixture of losses (n,), by scikit-learn's EM from the halves below and above the median: no random start.

    Raises:
        UsageError: scikit-learn is not installed.
        AltalignError: a loss is no number, or there are fewer than two.
    """
    check_installed()
    x = np.asarray(losses, np.float64)
    if len(x) < 2:
        raise AltalignError(f"noise of pairs: {len(x)} losses, and a mixture is of two at least; train on more pairs")
    if not np.isfinite(x).all():
        raise AltalignError(
            f"noise of pairs: {np.count_nonzero(~np.isfinite(x)):,} of {len(x):,} losses are no numbers; what is wrong "
            "with the checkpoint?"
        )
    if np.ptp(x) == 0:
        return Mixture((1.0, 0.0), (float(x[0]), float(x[0])), (1.0, 1.0), is_one=True)
    return _by_em(x)


def check_installed() -> None:
    """Refuse to begin what cannot end.

    Raises:
        UsageError: scikit-learn is not installed.
    """
    if find_spec("sklearn") is None:
        raise UsageError(f"noise of pairs needs scikit-learn, not installed here; {bring('train')}")


def _by_em(x: Floats) -> Mixture:
    from sklearn.exceptions import ConvergenceWarning  # pyright: ignore[reportMissingImports]  # a second to import
    from sklearn.mixture import GaussianMixture  # pyright: ignore[reportMissingImports]

    centre, scale = float(x.mean()), float(x.std())
    scaled = ((x - centre) / scale)[:, None]
    is_above = scaled[:, 0] > np.median(scaled)
    if not is_above.any():  # more than half are equal, and the greatest
        is_above = scaled[:, 0] == scaled.max()
    halves = [scaled[~is_above], scaled[is_above]]
    of_em: Any = GaussianMixture(  # its results are None in its types until it is fitted
        2,
        tol=_TOLERANCE,
        max_iter=_STEPS_AT_MOST,
        reg_covar=_SMALLEST_VARIANCE,
        weights_init=[len(half) / len(x) for half in halves],
        means_init=[half.mean(0) for half in halves],
        precisions_init=[[[1 / (float(half.var()) + _SMALLEST_VARIANCE)]] for half in halves],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # as near as so many steps come
        of_em.fit(scaled)
    order = np.argsort(of_em.means_[:, 0], kind="stable")
    shares, means = of_em.weights_[order], of_em.means_[order, 0] * scale + centre
    deviations = np.sqrt(of_em.covariances_[order, 0, 0]) * scale
    has_one_centre = means[1] - means[0] < _APART_AT_LEAST * deviations.min()
    of_one = len(x) * (np.log(2 * np.pi) + 1) + 2 * np.log(len(x))  # the criterion of one Gaussian, of deviation 1
    is_one = has_one_centre or of_one <= of_em.bic(scaled)
    return Mixture(_two(shares), _two(means), _two(deviations), is_one=bool(is_one))


def _two(values: Floats) -> Two:
    return float(values[0]), float(values[1])
