"""Intervals against sums of exact fractions, counts against plain loops, lines through rates whose law is known."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.dedup.thresholds import (
    COMPARISONS_AT_LEAST,
    CosineHistogram,
    Line,
    Share,
    clopper_pearson,
    curve,
    false_positives_per_image,
    fit,
    is_own_mirror,
    nearest_to,
    recall_and_precision,
    recall_by_transform,
    smallest_threshold,
    true_near_duplicates,
)

derandomized = settings(derandomize=True, deadline=None, max_examples=100)
counts = st.integers(1, 40).flatmap(lambda asked: st.tuples(st.integers(0, asked), st.just(asked)))
cosines = st.integers(-10_000, 10_000).map(lambda i: i / 10_000) | st.floats(-1, 1)


# Intervals ------------------------------------------------------------------------------------------------------------


def at_least(found: int, asked: int, share: Fraction) -> Fraction:
    """The chance of `found` or more of `asked`, each by chance `share`."""
    return sum(
        (math.comb(asked, k) * share**k * (1 - share) ** (asked - k) for k in range(found, asked + 1)), Fraction(0)
    )


@given(counts, st.sampled_from([0.5, 0.9, 0.95, 0.999]))
@derandomized
def test_the_ends_of_an_interval_leave_half_of_the_doubt_each(count: tuple[int, int], confidence: float) -> None:
    found, asked = count
    least, most = clopper_pearson(found, asked, confidence=confidence)
    tail = (1 - confidence) / 2
    if found:
        assert float(at_least(found, asked, Fraction(least))) == pytest.approx(tail, rel=1e-9)
    if found < asked:
        assert 1 - float(at_least(found + 1, asked, Fraction(most))) == pytest.approx(1 - (1 - tail), rel=1e-7)
    assert (least == 0.0) == (found == 0)
    assert (most == 1.0) == (found == asked)
    assert least <= found / asked <= most


@pytest.mark.parametrize(
    ("found", "asked", "least", "most"),
    [
        (0, 10, 0.0, 0.3085),
        (3, 10, 0.0667, 0.6525),
        (10, 10, 0.6915, 1.0),
        (1, 100, 0.000253, 0.05446),
        (450, 500, 0.87029, 0.92487),
        (0, 11_350_000, 0.0, 3.2501e-7),
        (500_000_000, 1_000_000_000, 0.499969, 0.500031),
        (0, 0, 0.0, 1.0),
    ],
)
def test_intervals_of_the_tables(found: int, asked: int, least: float, most: float) -> None:
    assert clopper_pearson(found, asked) == pytest.approx((least, most), rel=1e-3)


@pytest.mark.parametrize("asked", [1, 7, 20])
def test_an_interval_misses_the_true_share_as_rarely_as_it_says(asked: int) -> None:
    intervals = [clopper_pearson(found, asked) for found in range(asked + 1)]
    for share in np.linspace(0.01, 0.99, 50):
        chances = [math.comb(asked, k) * share**k * (1 - share) ** (asked - k) for k in range(asked + 1)]
        missed = sum(
            chance for chance, (least, most) in zip(chances, intervals, strict=True) if not least <= share <= most
        )
        assert missed <= 0.05


@pytest.mark.parametrize(("found", "asked", "confidence"), [(-1, 3, 0.95), (4, 3, 0.95), (1, 3, 1.0), (1, 3, 0.0)])
def test_what_is_no_share_is_refused(found: int, asked: int, confidence: float) -> None:
    with pytest.raises(ValueError, match="is no share"):
        clopper_pearson(found, asked, confidence=confidence)


def test_a_share_of_nothing_has_no_value() -> None:
    assert math.isnan(Share(0, 0).value)
    assert Share(1, 4).value == 0.25
    assert Share(1, 4).interval(confidence=0.9) == clopper_pearson(1, 4, confidence=0.9)


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


def test_recall_and_precision_of_labelled_pairs() -> None:
    values, is_near = np.array([0.99, 0.98, 0.2, np.nan, 0.99, 0.1]), np.array([True, True, True, True, False, False])
    assert recall_and_precision(values, is_near, similarity_above=0.975) == (Share(2, 4), Share(2, 3))
    assert recall_and_precision(values, is_near, similarity_above=0.999) == (Share(0, 4), Share(0, 0))


# False positives ------------------------------------------------------------------------------------------------------


@given(st.lists(cosines.filter(lambda c: c > 0.5), max_size=30), st.lists(st.integers(5_000, 10_000), max_size=10))
@derandomized
def test_a_histogram_counts_what_is_strictly_above_each_threshold(found: list[float], asked: list[int]) -> None:
    histogram = CosineHistogram(0.5).add(np.array(found, np.float64), 1_000)
    for threshold in [i / 10_000 for i in asked]:
        assert histogram.above(threshold) == Share(sum(cosine > threshold for cosine in found), 1_000)
    by_threshold = zip(histogram.thresholds().tolist(), histogram.counts_above().tolist(), strict=True)
    assert all(count == histogram.above(threshold).found for threshold, count in list(by_threshold)[::97])


@given(st.lists(st.floats(0.5, 1), max_size=30), st.integers(0, 30))
@derandomized
def test_histograms_of_parts_add_up(found: list[float], split: int) -> None:
    whole = CosineHistogram(0.5).add(np.array(found, np.float64), 500)
    first = CosineHistogram(0.5).add(np.array(found[:split], np.float64), 200)
    second = CosineHistogram(0.5).add(np.array(found[split:], np.float64), 300)
    together = first + second
    assert np.array_equal(together.counts_above(), whole.counts_above())
    assert together.comparisons == whole.comparisons == 500


def test_a_histogram_answers_only_what_was_searched_for() -> None:
    histogram = CosineHistogram(0.5).add(np.array([0.6, 1.0, 1.0000001]), 10)
    assert histogram.above(0.9999).found == 2
    assert histogram.thresholds()[[0, -1]].tolist() == [0.5, 1.0]
    with pytest.raises(ValueError, match=r"only cosines above 0\.5 were searched for, 0\.4 is below"):
        histogram.above(0.4)
    with pytest.raises(ValueError, match=r"a multiple of 0\.0001 from -1 to 1, 0\.60005 is not"):
        histogram.above(0.60005)
    with pytest.raises(ValueError, match=r"above 0\.5 and above 0\.6 do not add up"):
        histogram + CosineHistogram(0.6)


def lawful(slope: float, intercept: float, comparisons: int, found_above: float = 0.5) -> CosineHistogram:
    """Cosines spaced so that the rate above t is exp(intercept) x ((1 - t) / 2) ** slope."""
    most = int(comparisons * math.exp(intercept) * ((1 - found_above) / 2) ** slope)
    rates = (np.arange(most) + 0.5) / comparisons
    return CosineHistogram(found_above).add(1 - 2 * (rates / math.exp(intercept)) ** (1 / slope), comparisons)


@pytest.mark.parametrize(("slope", "intercept"), [(4.5, 1.4), (1.8, -4.0), (16.0, 18.0)])
def test_a_line_finds_the_law_of_the_rates(slope: float, intercept: float) -> None:
    histogram = lawful(slope, intercept, 20_000_000)
    line = fit(histogram)
    assert line.slope == pytest.approx(slope, rel=0.01)
    assert line.intercept == pytest.approx(intercept, abs=0.1)
    assert 0.9e-3 < line.fitted_from <= 1e-3
    assert 0.8e-5 < line.fitted_to <= 1e-5
    for threshold in (0.6, 0.8, 0.9):
        if histogram.above(threshold).found > 100:
            assert line.rate(threshold) == pytest.approx(histogram.above(threshold).value, rel=0.1)
    assert line.is_extrapolated(0.9999)
    assert not line.is_extrapolated(0.5)


def test_true_duplicates_in_the_sample_hardly_bend_the_line() -> None:
    histogram = lawful(4.5, 1.4, 20_000_000)
    with_duplicates = histogram.add(np.full(20, 0.999), 0)
    assert fit(with_duplicates).rate(0.975) == pytest.approx(fit(histogram).rate(0.975), rel=0.35)


@given(st.lists(st.floats(-1, 1), max_size=30), st.integers(0, 40))
@derandomized
def test_a_histogram_without_the_nearest_pairs_is_that_of_the_others(found: list[float], pairs: int) -> None:
    left = sorted(found)[: max(0, len(found) - pairs)]
    less = CosineHistogram(-1.0).add(np.array(found), 100).without(pairs)
    assert less.comparisons == 100 - len(found) + len(left)
    np.testing.assert_array_equal(less.counts_above(), CosineHistogram(-1.0).add(np.array(left), 100).counts_above())


def test_many_copies_in_the_pool_do_not_level_the_line() -> None:
    """A tenth of a test side of few images is in the pool: without what decoys do not account for, the line is that of
    the others.
    """
    rng = np.random.default_rng(8)
    unrelated, of_decoys = (0.5 + 0.5 * (1 - rng.random(800) ** 0.25) for _ in range(2))
    copies = np.full(60, 0.991)
    alone = CosineHistogram(0.5).add(unrelated, 200_000)
    found, decoys = alone.add(copies, 60), CosineHistogram(0.5).add(of_decoys, 100_000)
    known = true_near_duplicates(found, decoys, similarity_above=0.975)
    assert 0 < known <= 60 + alone.above(0.975).found
    assert fit(found.without(known)).slope > 2 * fit(found).slope
    assert fit(found.without(known)).slope == pytest.approx(fit(alone).slope, rel=0.1)


def test_what_decoys_account_for_is_no_true_near_duplicate() -> None:
    found = CosineHistogram(0.5).add(np.array([0.9, 0.975, 0.98, 0.98, 0.99, *[0.999] * 26]), 1_000)
    for above_in_decoys, compared, known in (
        (0, 1_000, 29),
        (1, 1_000, 17),
        (1, 2_000, 23),
        (2, 1_000, 5),
        (3, 1_000, 0),
        (0, 0, 29),
    ):
        decoys = CosineHistogram(0.5).add(np.array([0.8, 0.975, *[0.98] * above_in_decoys]), compared)
        assert true_near_duplicates(found, decoys, similarity_above=0.975) == known


def test_too_few_pairs_for_a_line_are_said_to_be_too_few() -> None:
    with pytest.raises(ValueError, match=r"too few to fit a rate of false positives; compare 1,000,000 pairs or more"):
        fit(lawful(4.5, 1.4, 5_000))
    with pytest.raises(ValueError, match="too few"):
        fit(lawful(1.8, 1.4, COMPARISONS_AT_LEAST - 1))
    with pytest.raises(ValueError, match="0 of 0 comparisons"):
        fit(CosineHistogram(0.5))


def test_a_line_with_fewer_pairs_is_fitted_where_there_are_ten_behind_a_point() -> None:
    line = fit(lawful(4.5, 1.4, 100_000))
    assert line.fitted_to >= 1e-4
    assert line.slope == pytest.approx(4.5, rel=0.1)


def test_rates_are_between_one_and_none() -> None:
    line = Line(slope=2.0, intercept=3.0, fitted_from=1e-3, fitted_to=1e-5)
    assert line.rate(-1.0) == 1.0
    assert line.rate(1.0) == 0.0
    assert line.rate(0.9) == pytest.approx(math.exp(3) * 0.05**2)
    assert line.scaled(4).rate(0.9) == pytest.approx(4 * line.rate(0.9))
    assert false_positives_per_image(line, 0.9, test_images=1_000, views=2) == pytest.approx(2_000 * line.rate(0.9))


@given(st.floats(0.5, 40), st.floats(-8, 12), st.integers(1, 10**7), st.integers(1, 2), st.floats(-5, 1))
@derandomized
def test_the_threshold_of_a_budget_is_the_smallest_that_keeps_it(
    slope: float, intercept: float, test_images: int, views: int, exponent: float
) -> None:
    line, budget = Line(slope, intercept, 1e-3, 1e-5), 10**exponent

    def expected(steps: int) -> float:
        return false_positives_per_image(line, steps / 10_000, test_images=test_images, views=views)

    if expected(9_999) > budget:
        with pytest.raises(ValueError, match="no threshold below 1 keeps"):
            smallest_threshold(line, test_images=test_images, views=views, budget=budget)
        return
    threshold = smallest_threshold(line, test_images=test_images, views=views, budget=budget)
    steps = round(threshold * 10_000)
    assert threshold == steps / 10_000
    assert expected(steps) <= budget
    assert steps == 0 or expected(steps - 1) > budget


@pytest.mark.parametrize(("test_images", "budget"), [(0, 1e-3), (5, 0.0), (5, -1.0)])
def test_a_budget_of_nothing_is_refused(test_images: int, budget: float) -> None:
    with pytest.raises(ValueError, match="no threshold can be chosen"):
        smallest_threshold(Line(4.0, 1.0, 1e-3, 1e-5), test_images=test_images, views=1, budget=budget)


# Decoys and pairs -----------------------------------------------------------------------------------------------------


def test_symmetrical_images_are_told_by_their_mirrored_view() -> None:
    vectors = np.array([[30_000, 100], [30_000, 30_000], [0, 0], [20_000, 0]], np.int16)
    mirrored = vectors * np.array([1, -1], np.int16)
    assert is_own_mirror(vectors, mirrored, similarity_above=0.9).tolist() == [True, False, False, True]


@given(st.lists(st.integers(0, 20).map(lambda i: i / 20), max_size=20), st.integers(0, 12))
@derandomized
def test_pairs_around_a_threshold_are_the_nearest_on_both_sides(values: list[float], pairs: int) -> None:
    chosen = nearest_to(0.5, np.array(values, np.float64), pairs=pairs).tolist()
    above = sorted((value, i) for i, value in enumerate(values) if value > 0.5)[: (pairs + 1) // 2]
    below = sorted((-value, i) for i, value in enumerate(values) if value <= 0.5)[: pairs // 2]
    assert chosen == [i for _, i in reversed(below)] + [i for _, i in above]


def test_a_curve_has_what_was_counted_beside_what_is_expected() -> None:
    histogram = lawful(4.5, 1.4, 1_000_000)
    line = fit(histogram)
    assert curve(histogram, line, [0.7, 0.8]) == [(t, histogram.above(t), line.rate(t)) for t in (0.7, 0.8)]
