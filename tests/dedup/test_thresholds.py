"""Intervals against published tables, counts against plain loops, lines through rates whose law is known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.dedup.thresholds import (
    COMPARISONS_AT_LEAST,
    SEARCHED_ABOVE,
    THRESHOLDS,
    Comparisons,
    Line,
    Share,
    fit,
    nearest_to,
    recall_by_transform,
    smallest_threshold,
    true_near_duplicates,
)

derandomized = settings(derandomize=True, deadline=None, max_examples=100)
cosines = st.integers(-10_000, 10_000).map(lambda i: i / 10_000) | st.floats(-1, 1)


# Intervals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "asked", "least", "most"),
    [  # Newcombe (1998), table II, and NIST's handbook, section 7.2.4.1
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 0.8830, 1.0),
        (0, 0, 0.0, 1.0),
    ],
)
def test_intervals_of_the_tables(found: int, asked: int, least: float, most: float) -> None:
    assert Share(found, asked).interval() == pytest.approx((least, most), abs=5e-5)
    assert Share(asked - found, asked).interval() == pytest.approx((1 - most, 1 - least), abs=5e-5)


@pytest.mark.parametrize("asked", [20, 50, 1_000])
def test_an_interval_misses_the_true_share_as_rarely_as_it_says_on_average(asked: int) -> None:
    intervals = [Share(found, asked).interval() for found in range(asked + 1)]
    missed = list[float]()
    for share in np.linspace(0.01, 0.99, 50):
        chances = np.exp(
            [log_choose(asked, k) + k * math.log(share) + (asked - k) * math.log1p(-share) for k in range(asked + 1)]
        )
        missed.append(
            sum(chance for chance, (least, most) in zip(chances, intervals, strict=True) if not least <= share <= most)
        )
    assert np.mean(missed) <= 0.055
    assert max(missed) <= 0.13


def log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def test_a_share_of_nothing_has_no_value() -> None:
    assert math.isnan(Share(0, 0).value)
    assert Share(1, 4).value == 0.25


# Recall ---------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["crop", "grey", "text"]), cosines | st.just(math.nan))), cosines)
@derandomized
def test_recall_is_counted_by_transform(copies: list[tuple[str, float]], threshold: float) -> None:
    found = recall_by_transform(
        [name for name, _ in copies], np.array([cosine for _, cosine in copies], np.float64), similarity_above=threshold
    )
    assert list(found) == list(dict.fromkeys(name for name, _ in copies))
    for name, share in found.items():
        own = [cosine for other, cosine in copies if other == name]
        assert share == Share(sum(cosine > threshold for cosine in own), len(own))


def test_a_cosine_at_the_threshold_is_no_near_duplicate() -> None:
    found = recall_by_transform(["a"] * 3, np.array([0.975, np.nextafter(0.975, 1), 0.9]), similarity_above=0.975)
    assert found == {"a": Share(1, 3)}


# False positives ------------------------------------------------------------------------------------------------------


@given(st.lists(cosines.filter(lambda c: c > 0.5), max_size=30), st.integers(0, 30))
@derandomized
def test_comparisons_count_what_is_strictly_above_each_threshold_and_parts_add_up(
    found: list[float], split: int
) -> None:
    whole = Comparisons.from_cosines(np.array(found), 1_000)
    for threshold, count in list(zip(THRESHOLDS.tolist(), whole.counts.tolist(), strict=True))[::97]:
        assert count == sum(cosine > threshold for cosine in found)
        assert whole.above(threshold) == Share(count, 1_000)
    parts = Comparisons.from_cosines(np.array(found[:split]), 300) + Comparisons.from_cosines(
        np.array(found[split:]), 700
    )
    assert np.array_equal(parts.counts, whole.counts)
    assert parts.compared == 1_000


def test_a_cosine_that_is_rounded_above_one_is_one() -> None:
    comparisons = Comparisons.from_cosines(np.array([0.6, 1.0, 1.0000001]), 10)
    assert comparisons.above(0.9999).hits == 2
    assert comparisons.above(1.0).hits == 0


def lawful(slope: float, intercept: float, comparisons: int) -> Comparisons:
    """Cosines spaced so that the rate above t is exp(intercept) x ((1 - t) / 2) ** slope."""
    most = int(comparisons * math.exp(intercept) * 0.25**slope)
    rates = (np.arange(most) + 0.5) / comparisons
    return Comparisons.from_cosines(1 - 2 * (rates / math.exp(intercept)) ** (1 / slope), comparisons)


@pytest.mark.parametrize(("slope", "intercept"), [(4.5, 1.4), (1.8, -4.0), (16.0, 18.0)])
def test_a_line_finds_the_law_of_the_rates(slope: float, intercept: float) -> None:
    comparisons = lawful(slope, intercept, 20_000_000)
    line = fit(comparisons)
    assert line.slope == pytest.approx(slope, rel=0.01)
    assert line.intercept == pytest.approx(intercept, abs=0.1)
    assert 0.9e-3 < line.fitted_from <= 1e-3
    assert 0.8e-5 < line.fitted_to <= 1e-5
    for threshold in (0.6, 0.8, 0.9):
        if comparisons.above(threshold).hits > 100:
            assert line.rates(threshold) == pytest.approx(comparisons.above(threshold).value, rel=0.1)


def test_true_duplicates_in_the_sample_hardly_bend_the_line() -> None:
    comparisons = lawful(4.5, 1.4, 20_000_000)
    with_duplicates = comparisons + Comparisons.from_cosines(np.full(20, 0.999), 0)
    assert fit(with_duplicates).rates(0.975) == pytest.approx(fit(comparisons).rates(0.975), rel=0.35)


@given(st.lists(st.floats(0.5, 1, exclude_min=True), max_size=30), st.integers(0, 40))
@derandomized
def test_comparisons_without_the_nearest_pairs_are_those_of_the_others(found: list[float], pairs: int) -> None:
    left = sorted(found)[: max(0, len(found) - pairs)]
    less = Comparisons.from_cosines(np.array(found), 100).without(pairs)
    assert less.compared == 100 - len(found) + len(left)
    np.testing.assert_array_equal(less.counts, Comparisons.from_cosines(np.array(left), 100).counts)


def test_many_copies_in_the_pool_do_not_level_the_line() -> None:
    """A tenth of a test side of few images is in the pool: without what decoys do not account for, the line is that of
    the others.
    """
    rng = np.random.default_rng(8)
    unrelated, of_decoys = (0.5 + 0.5 * (1 - rng.random(800) ** 0.25) for _ in range(2))
    copies = np.full(60, 0.991)
    alone = Comparisons.from_cosines(unrelated, 200_000)
    found, decoys = alone + Comparisons.from_cosines(copies, 60), Comparisons.from_cosines(of_decoys, 100_000)
    known = true_near_duplicates(found, decoys, similarity_above=0.975)
    assert 0 < known <= 60 + alone.above(0.975).hits
    assert fit(found.without(known)).slope > 2 * fit(found).slope
    assert fit(found.without(known)).slope == pytest.approx(fit(alone).slope, rel=0.1)


def test_what_decoys_account_for_is_no_true_near_duplicate() -> None:
    found = Comparisons.from_cosines(np.array([0.9, 0.975, 0.98, 0.98, 0.99, *[0.999] * 26]), 1_000)
    for above_in_decoys, compared, known in (
        (0, 1_000, 29),
        (1, 1_000, 17),
        (1, 2_000, 23),
        (2, 1_000, 5),
        (3, 1_000, 0),
        (0, 0, 29),
    ):
        decoys = Comparisons.from_cosines(np.array([0.8, 0.975, *[0.98] * above_in_decoys]), compared)
        assert true_near_duplicates(found, decoys, similarity_above=0.975) == known


def test_too_few_pairs_for_a_line_are_said_to_be_too_few() -> None:
    with pytest.raises(ValueError, match=r"too few to fit a rate of false positives; compare 1,000,000 pairs or more"):
        fit(lawful(4.5, 1.4, 5_000))
    with pytest.raises(ValueError, match="too few"):
        fit(lawful(1.8, 1.4, COMPARISONS_AT_LEAST - 1))
    with pytest.raises(ValueError, match="0 comparisons"):
        fit(Comparisons.from_cosines(np.zeros(0), 0))


def test_a_line_with_fewer_pairs_is_fitted_where_there_are_ten_behind_a_point() -> None:
    line = fit(lawful(4.5, 1.4, 100_000))
    assert line.fitted_to >= 1e-4
    assert line.slope == pytest.approx(4.5, rel=0.1)


def test_rates_are_between_one_and_none() -> None:
    line = Line(slope=2.0, intercept=3.0, fitted_from=1e-3, fitted_to=1e-5)
    assert line.rates([-1.0, 1.0]).tolist() == [1.0, 0.0]
    assert line.rates(0.9) == pytest.approx(math.exp(3) * 0.05**2)


@given(st.floats(0.5, 40), st.floats(-8, 12), st.integers(1, 10**7), st.floats(-5, 1))
@derandomized
def test_the_threshold_of_a_budget_is_the_smallest_that_keeps_it_by_every_line(
    slope: float, intercept: float, comparisons: int, exponent: float
) -> None:
    line, budget = Line(slope, intercept, 1e-3, 1e-5), 10**exponent
    lines = [line, Line(slope, intercept - 1, 1e-3, 1e-5)]
    if comparisons * line.rates(0.9999) > budget:
        with pytest.raises(ValueError, match="no threshold below 1 keeps"):
            smallest_threshold(lines, comparisons=comparisons, budget=budget)
        return
    threshold = smallest_threshold(lines, comparisons=comparisons, budget=budget)
    assert threshold in THRESHOLDS
    assert comparisons * line.rates(threshold) <= budget
    assert threshold == SEARCHED_ABOVE or comparisons * line.rates(threshold - 1e-4) > budget


# Pairs to look at -----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 20).map(lambda i: i / 20), max_size=20), st.integers(0, 12))
@derandomized
def test_pairs_around_a_threshold_are_the_nearest_on_both_sides(values: list[float], pairs: int) -> None:
    chosen = nearest_to(0.5, np.array(values, np.float64), pairs=pairs).tolist()
    above = sorted((value, i) for i, value in enumerate(values) if value > 0.5)[: (pairs + 1) // 2]
    below = sorted((-value, i) for i, value in enumerate(values) if value <= 0.5)[: pairs // 2]
    assert chosen == [i for _, i in reversed(below)] + [i for _, i in above]
