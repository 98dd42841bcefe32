"""The mixture against the posterior written out, and losses that fall into no two groups."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score  # pyright: ignore[reportMissingImports]
from sklearn.mixture import GaussianMixture  # pyright: ignore[reportMissingImports]

from altalign.errors import AltalignError
from altalign.train.data.noise_estimates import Mixture, fitted
from altalign.train.settings.nlip import NoiseSettings

OURS = NoiseSettings()
AS_PRINTED = NoiseSettings(one_group_by_bic=False, means_apart_at_least=0, clean_below_lower_mean=False)


def two_groups(clean: int = 3_000, noisy: int = 1_000, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(1, 0.4, clean), rng.normal(4, 0.8, noisy)]).astype(np.float32)


def plain_noise(of: Mixture, loss: float) -> float:
    """Equation 8 for one loss, as printed."""
    low, high = (
        share / deviation * math.exp(-0.5 * ((loss - mean) / deviation) ** 2)
        for share, mean, deviation in zip(of.shares, of.means, of.deviations, strict=True)
    )
    return high / (low + high)


def near_groups(noisy: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Losses of which a share comes from a Gaussian 1.5 deviations higher, and whether each does."""
    is_noisy = np.arange(1_000) < noisy * 1_000
    return np.random.default_rng(seed).normal(np.where(is_noisy, 1.5, 0), 1), is_noisy


def test_simulated_groups_are_found() -> None:
    of = fitted(two_groups(), OURS)
    assert not of.is_one
    assert of.shares == pytest.approx((0.75, 0.25), abs=0.02)
    assert of.means == pytest.approx((1, 4), abs=0.05)
    assert of.deviations == pytest.approx((0.4, 0.8), abs=0.05)


@pytest.mark.parametrize("apart", [3, 6])
@pytest.mark.parametrize("noisy", [0.1, 0.4])
def test_as_printed_the_noise_is_the_posterior_of_scikit_learn_s_converged_mixture(noisy: float, apart: float) -> None:
    is_noisy = np.arange(2_000) < noisy * 2_000
    losses = np.random.default_rng(1).normal(np.where(is_noisy, apart, 0), np.where(is_noisy, 1.2, 1))
    scaled = ((losses - losses.mean()) / losses.std())[:, None]
    is_above = scaled[:, 0] > np.median(scaled)
    halves = [scaled[~is_above], scaled[is_above]]
    theirs = GaussianMixture(
        2,
        tol=1e-11,
        max_iter=100_000,
        means_init=[half.mean(0) for half in halves],
        precisions_init=[[[1 / half.var()]] for half in halves],
        weights_init=[0.5, 0.5],
    ).fit(scaled)
    assert theirs.converged_
    posterior = theirs.predict_proba(scaled)[:, int(np.argmax(theirs.means_[:, 0]))]
    np.testing.assert_allclose(fitted(losses, AS_PRINTED).noise(losses), posterior, atol=3e-3)


def test_the_noise_is_equation_8_but_below_the_lower_mean() -> None:
    losses = two_groups()
    of = fitted(losses, OURS)
    expected = [0.0 if loss < of.means[0] else plain_noise(of, float(loss)) for loss in losses[:200]]
    np.testing.assert_allclose(of.noise(losses[:200]), expected, atol=1e-9)
    printed = fitted(losses, AS_PRINTED)
    np.testing.assert_allclose(
        printed.noise(losses[:200]), [plain_noise(printed, float(loss)) for loss in losses[:200]], atol=1e-9
    )


def test_where_the_higher_group_is_wider_the_least_losses_stay_clean_but_as_printed() -> None:
    of = ((0.5, 0.5), (1.0, 2.0), (0.1, 2.0))
    least = np.array([-3.0, 0.2, 0.5])
    assert Mixture(*of).noise(least).tolist() == [0, 0, 0]
    assert (Mixture(*of, clean_below_lower_mean=False).noise(least) > 0.99).all()
    assert Mixture(*of).noise(np.array([5.0]))[0] > 0.99


@pytest.mark.parametrize("noisy", [0.1, 0.2, 0.4])
def test_near_groups_are_told_apart_as_printed_and_by_default_are_one(noisy: float) -> None:
    losses, is_noisy = near_groups(noisy)
    assert not fitted(losses, OURS).noise(losses).any()
    eps = fitted(losses, AS_PRINTED).noise(losses)
    assert roc_auc_score(is_noisy, eps) > 0.7


def test_each_guard_makes_one_group_of_two_by_itself() -> None:
    """Near groups are one by the criterion alone; two of one mean, and of enough pairs, by their means alone."""
    near, _ = near_groups(0.2)
    one_mean = np.concatenate([np.random.default_rng(2).normal(1, deviation, 3_000) for deviation in (0.3, 2.0)])
    for losses, guard in ((near, {"one_group_by_bic": True}), (one_mean, {"means_apart_at_least": 0.5})):
        assert fitted(losses, AS_PRINTED.model_copy(update=guard)).is_one
        assert not fitted(losses, AS_PRINTED).is_one
    assert not fitted(one_mean, AS_PRINTED.model_copy(update={"one_group_by_bic": True})).is_one


def test_far_losses_overflow_nowhere() -> None:
    found = Mixture((0.5, 0.5), (0.0, 1.0), (1e-3, 1e-3)).noise(np.array([0.0, 1e4, 1.0]))
    assert np.isfinite(found).all()
    assert found.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("losses", "why"),
    [
        (np.random.default_rng(1).normal(2, 0.3, 400), "one Gaussian: the second group is empty"),
        (
            np.concatenate([np.random.default_rng(2).normal(1, deviation, 3_000) for deviation in (0.3, 2.0)]),
            "two groups of one mean",
        ),
        (np.full(50, 1.5), "all are equal"),
    ],
    ids=["one", "equal-means", "equal"],
)
def test_without_two_groups_nobody_is_held_for_noisy(losses: np.ndarray, why: str) -> None:
    of = fitted(losses, OURS)
    assert of.is_one, why
    assert not of.noise(losses).any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(AltalignError, match="2 of 4,002 losses are no numbers"):
        fitted(np.append(two_groups(), [bad, bad]), OURS)


def test_one_loss_is_no_mixture() -> None:
    with pytest.raises(AltalignError, match="1 losses"):
        fitted(np.array([1.0]), OURS)


_MILLION = """
from altalign.train.data.noise_estimates import fitted
from tests.peak import peak_bytes
from tests.train.data.test_noise_mixture import OURS, two_groups

mixture = fitted(two_groups(750_000, 250_000), OURS)
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
