"""Intervals of paired differences."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.intervals import T_975, difference

NUMBERS = st.floats(-100, 100)


def test_the_interval_of_students_own_example() -> None:
    """Student (1908), hours of sleep that two drugs gave ten patients; the interval is that of R's `t.test`."""
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = difference(first, second)
    assert (found.mean, found.low, found.high) == pytest.approx((-1.58, -2.4598858, -0.7001142), abs=1e-3)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=20))
def test_the_interval_is_that_of_a_plain_loop(pairs: list[tuple[float, float]]) -> None:
    total = squares = 0.0
    for one, other in pairs:
        total += one - other
    mean = total / len(pairs)
    for one, other in pairs:
        squares += (one - other - mean) ** 2
    half = T_975[len(pairs) - 2] * (squares / (len(pairs) - 1)) ** 0.5 / len(pairs) ** 0.5
    found = difference([one for one, _ in pairs], [other for _, other in pairs])
    assert (found.mean, found.low, found.high) == pytest.approx((mean, mean - half, mean + half), abs=1e-9)


@pytest.mark.parametrize("freedom", range(1, len(T_975) + 1))
def test_the_quantiles_leave_a_fortieth_above_them(freedom: int) -> None:
    """By the trapezoid rule on Student's density, from 0 to the quantile."""
    scale = math.gamma((freedom + 1) / 2) / math.sqrt(freedom * math.pi) / math.gamma(freedom / 2)
    steps = 20_000
    width = T_975[freedom - 1] / steps
    heights = [(1 + (step * width) ** 2 / freedom) ** (-(freedom + 1) / 2) for step in range(steps + 1)]
    inside = scale * width * (sum(heights) - (heights[0] + heights[-1]) / 2)
    assert inside == pytest.approx(0.475, abs=1e-4)


def test_one_pair_has_no_interval() -> None:
    found = difference([3.0], [1.0])
    assert (found.mean, found.low, found.high, found.pairs) == (2.0, -math.inf, math.inf, 1)
