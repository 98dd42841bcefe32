"""The mixture against the posterior written out, and losses that fall into no two groups."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture  # pyright: ignore[reportMissingImports]

from altalign.errors import AltalignError
from altalign.train.data.noise_estimates import Mixture, fitted


def two_groups(clean: int = 3_000, noisy: int = 1_000, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(1, 0.4, clean), rng.normal(4, 0.8, noisy)]).astype(np.float32)


def plain_noise(of: Mixture, loss: float) -> float:
    """Equation 8 for one loss; 0 below the lower mean."""
    low, high = (
        share / deviation * math.exp(-0.5 * ((loss - mean) / deviation) ** 2)
        for share, mean, deviation in zip(of.shares, of.means, of.deviations, strict=True)
    )
    return 0.0 if loss < of.means[0] else high / (low + high)


def test_simulated_groups_are_found() -> None:
    of = fitted(two_groups())
    assert not of.is_one
    assert of.shares == pytest.approx((0.75, 0.25), abs=0.02)
    assert of.means == pytest.approx((1, 4), abs=0.05)
    assert of.deviations == pytest.approx((0.4, 0.8), abs=0.05)


def test_the_noise_is_the_posterior_of_scikit_learn_but_below_the_lower_mean() -> None:
    losses = two_groups()
    of = fitted(losses)
    theirs = GaussianMixture(2, means_init=[[1], [4]], tol=1e-7, max_iter=500, random_state=0).fit(losses[:, None])
    posterior = theirs.predict_proba(losses[:, None].astype(np.float64))[:, int(np.argmax(theirs.means_[:, 0]))]
    found = of.noise(losses)
    is_above = losses >= of.means[0]
    np.testing.assert_allclose(found[is_above], posterior[is_above], atol=5e-3)
    assert not found[~is_above].any()
    np.testing.assert_allclose(found[:200], [plain_noise(of, float(loss)) for loss in losses[:200]], atol=1e-9)


def test_where_the_higher_group_is_wider_the_least_losses_stay_clean() -> None:
    of = Mixture((0.5, 0.5), (1.0, 2.0), (0.1, 2.0))
    assert plain_noise(Mixture((0.5, 0.5), (-9.0, 2.0), (0.1, 2.0)), 0.2) > 0.5  # what would be, far from a lower mean
    assert of.noise(np.array([-3.0, 0.2, 0.99])).tolist() == [0, 0, 0]
    assert of.noise(np.array([5.0]))[0] > 0.99


def test_far_losses_overflow_nowhere() -> None:
    found = Mixture((0.5, 0.5), (0.0, 1.0), (1e-3, 1e-3)).noise(np.array([0.0, 1e4, 1.0]))
    assert np.isfinite(found).all()
    assert found.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("losses", "why"),
    [
        (np.random.default_rng(1).normal(2, 0.3, 4_000), "one Gaussian: the second group is empty"),
        (
            np.concatenate([np.random.default_rng(2).normal(1, deviation, 3_000) for deviation in (0.3, 2.0)]),
            "two groups of one mean",
        ),
        (np.full(50, 1.5), "all are equal"),
    ],
    ids=["one", "equal-means", "equal"],
)
def test_without_two_groups_nobody_is_held_for_noisy(losses: np.ndarray, why: str) -> None:
    of = fitted(losses)
    assert of.is_one, why
    assert not of.noise(losses).any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(AltalignError, match="2 of 4,002 losses are no numbers"):
        fitted(np.append(two_groups(), [bad, bad]))


def test_one_loss_is_no_mixture() -> None:
    with pytest.raises(AltalignError, match="1 losses"):
        fitted(np.array([1.0]))


_MILLION = """
from altalign.train.data.noise_estimates import fitted
from tests.peak import peak_bytes
from tests.train.data.test_noise_mixture import two_groups

mixture = fitted(two_groups(750_000, 250_000))
print(*mixture.shares, peak_bytes())
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="memory is read from /proc")
def test_a_million_losses_are_fitted_within_a_gigabyte() -> None:
    argv = [sys.executable, "-c", _MILLION]
    root = Path(__file__).parents[3]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=True)
    clean, noisy, most = map(float, done.stdout.split())
    assert (clean, noisy) == pytest.approx((0.75, 0.25), abs=0.01)
    assert 0 < most < 1e9
