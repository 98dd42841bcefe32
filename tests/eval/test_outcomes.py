import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.eval import classification, retrieval
from altalign.eval.outcomes import Outcomes, chosen, differences, intervals


def share(outcomes: Outcomes) -> dict[str, float]:
    return {"right": 100 * float(outcomes["right"].mean())}


def of(right: list[int]) -> Outcomes:
    return {"right": np.array(right)}


def test_an_interval_is_the_middle_of_resamples_that_a_plain_loop_draws() -> None:
    outcomes = of([1, 0, 0, 1, 1, 0, 1, 1, 1])
    random = np.random.default_rng(5)
    drawn = []
    for _ in range(200):
        rows = random.integers(9, size=9)
        drawn.append(100 * sum(outcomes["right"][row] for row in rows) / 9)
    drawn.sort()
    low, high = intervals(outcomes, share, resamples=200, seed=5)["right"]
    # numpy's percentiles, in a line between the two values beside the place
    place = 0.025 * 199
    assert low == pytest.approx(drawn[4] + (place - 4) * (drawn[5] - drawn[4]))
    assert high == pytest.approx(drawn[194] + (0.975 * 199 - 194) * (drawn[195] - drawn[194]))


def test_images_are_drawn_with_all_their_captions() -> None:
    """An image with many captions that all miss takes them along: t2i is a share of captions, drawn by image."""
    outcomes = {
        "image_to_text_rank": np.array([1, 1, 9]),
        "captions": np.array([1, 1, 8]),
        **{f"text_to_image_hits_{k}": np.array([1, 1, 0]) for k in (1, 5, 10)},
    }
    assert retrieval.measured(outcomes)["text_to_image_r1"] == 20
    of_rows = retrieval.measured(chosen(outcomes, np.array([0, 1, 1])))
    assert of_rows["text_to_image_r1"] == 100
    assert retrieval.measured(chosen(outcomes, np.array([True, False, True])))["text_to_image_r1"] == pytest.approx(
        100 / 9
    )


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_a_difference_is_that_of_the_two_metrics_and_reverses(pairs: list[tuple[bool, bool]]) -> None:
    a, b = of([int(one) for one, _ in pairs]), of([int(other) for _, other in pairs])
    found = differences(a, b, share, resamples=30, seed=0)["right"]
    back = differences(b, a, share, resamples=30, seed=0)["right"]
    assert found.value == pytest.approx(share(a)["right"] - share(b)["right"])
    assert (back.value, back.low, back.high) == pytest.approx((-found.value, -found.high, -found.low))
    assert back.p == found.p


def test_a_model_against_itself_differs_by_nothing() -> None:
    outcomes = {"rank": np.array([1, 2, 9]), "label": np.array([0, 1, 1])}
    for found in differences(outcomes, outcomes, classification.measured, resamples=20, seed=0).values():
        assert (found.value, found.low, found.high, found.p) == (0, 0, 0, 1)


def test_p_is_small_where_one_is_better_on_nearly_every_image_and_not_where_they_are_alike() -> None:
    random = np.random.default_rng(3)
    base = random.random(300) < 0.5
    better = base | (random.random(300) < 0.2)
    a, b = of(better.astype(int).tolist()), of(base.astype(int).tolist())
    assert differences(a, b, share, resamples=500, seed=0)["right"].p == pytest.approx(1 / 501)
    swap = random.random(300) < 0.1
    other = np.where(swap, random.permutation(base), base)
    assert differences(of(other.astype(int).tolist()), b, share, resamples=500, seed=0)["right"].p > 0.05


def test_p_is_that_of_all_exchanges_where_there_are_few() -> None:
    """Of 6 images on which two models differ, one is better on all: 2 of 64 exchanges are as extreme."""
    found = differences(of([1] * 6 + [0, 1]), of([0] * 6 + [0, 1]), share, resamples=4000, seed=0)["right"]
    assert found.p == pytest.approx(2 / 64, abs=0.01)
