"""Draws in proportion to weights of pairs: each pair as often as its part is, rounded up or down, in every round."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.train.data.order import Order
from altalign.train.data.weights import Weights


class Sums(Weights):
    """Running sums that are in memory."""

    def __init__(self, weights: Sequence[float]):
        super().__init__("")
        self._mapped = np.cumsum(np.array(weights, np.float64))


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=30), st.lists(st.integers(1, 9), max_size=9), st.integers(0, 5)
)
@settings(derandomize=True, deadline=None, max_examples=40)
def test_a_round_has_a_pair_as_often_as_its_part_of_the_weights_rounded_up_or_down(
    first: list[int], second: list[int], seed: int
) -> None:
    weights = {"a": first, "b": second}
    given_weights = {name: Sums(of) for name, of in weights.items() if of}
    stream = Order({"a": len(first), "b": len(second)}, {}, seed, pair_weights=given_weights)
    draws = 5 * (len(first) + len(second))
    pairs, rounds = stream.draws(0, draws)
    of_a = (pairs < len(first)).sum()
    assert abs(of_a - draws * sum(first) / sum(first + second)) <= 5  # of an epoch: rounded to a whole number
    for begin, of in ((0, first), (len(first), second)):
        mine = (pairs >= begin) & (pairs < begin + len(of))
        for number in range(int(rounds[mine].max(initial=0))):  # but the last, which may have begun
            times = np.bincount(pairs[mine & (rounds == number)] - begin, minlength=len(of))
            exact = len(of) * np.array(of) / sum(of)
            assert ((times == np.floor(exact)) | (times == np.ceil(exact))).all()
    again = Order({"a": len(first), "b": len(second)}, {}, seed, pair_weights=given_weights)
    assert again.draws(7, draws)[0].tolist() == pairs[7:].tolist()


def test_equal_weights_draw_every_pair_once_and_a_mean_is_exact() -> None:
    stream = Order({"a": 100}, {}, 4, pair_weights={"a": Sums([0.3] * 100)})
    assert sorted(stream.draws(300, 400)[0].tolist()) == list(range(100))
    heavy = Order({"a": 3}, {}, 4, pair_weights={"a": Sums([0.25, 0.5, 1.75])})
    times = np.bincount(heavy.draws(0, 3 * 4000)[0]) / 4000  # 0.3, 0.6 and 2.1 of a round of three
    assert times == pytest.approx([0.3, 0.6, 2.1], abs=0.05)
    spares = np.bincount([heavy.spare(0, position, 0) for position in range(4000)], minlength=3) / 4000
    assert spares == pytest.approx([0.1, 0.2, 0.7], abs=0.05)
