"""Soft-cap sampling: beside a plain loop over draws, by hand, and in the draws of a training."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.train.data import soft_cap
from altalign.train.data.order import global_batches
from altalign.train.data.runs import Runs
from altalign.train.data.samples import Samples, key_of
from altalign.train.data.training_data import samples_of
from altalign.train.settings.training import DataSettings, TrainConfig
from tests.support.run_folders import pairs, write_run, write_score
from tests.train.plain_draws import ALL_BITS, GOLDEN, plain_keyed, plain_mix


def keys(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 2**64, (n, 2), dtype=np.uint64)


def plain_counts(weights: list[float], of: np.ndarray, penalty: float) -> list[int]:
    """The authors' loop: batches without replacement by the softmax of scores, which the penalty lowers each time.

    A batch is drawn one pair after the other: the next is the largest of score + Gumbel noise of those that are left.
    """
    n, scores, counts, batch = len(weights), [math.log(weight) for weight in weights], [0] * len(weights), 0
    while sum(counts) < n:
        left = set(range(n))
        states = [plain_keyed(13, *map(int, key)) + GOLDEN * batch & ALL_BITS for key in of]
        noise = [-math.log(-math.log(((plain_mix(state) >> 12) + 0.5) / 2**52)) for state in states]
        for _ in range(min(max(1, n // 1280), n - sum(counts))):
            taken = max(left, key=lambda pair: scores[pair] + noise[pair])
            left.remove(taken)
            counts[taken] += 1
        for pair in set(range(n)) - left:
            scores[pair] -= penalty
        batch += 1
    return counts


@settings(max_examples=30)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40), st.floats(0.01, 20))
def test_counts_are_those_of_a_plain_loop(weights: list[float], penalty: float) -> None:
    of = keys(len(weights))
    found = soft_cap.counts(np.array(weights), of, penalty=penalty)
    assert found.tolist() == plain_counts(weights, of, penalty)


def test_draws_are_as_often_as_the_authors_loop_has_them() -> None:
    """The mean of 400 pools beside that of their loop over `numpy.random.choice`, within 4 standard errors."""
    weights, random, pools = np.exp(np.arange(8) / 2), np.random.default_rng(5), 400
    ours = [soft_cap.counts(weights, random.integers(0, 2**64, (8, 2), np.uint64), penalty=0.7) for _ in range(pools)]
    theirs = np.zeros((pools, 8))
    for pool in range(pools):
        scores = np.log(weights)
        for _ in range(8):
            shares = np.exp(scores - scores.max())
            taken = random.choice(8, 1, p=shares / shares.sum(), replace=False)
            theirs[pool, taken] += 1
            scores[taken] -= 0.7
    error = np.sqrt((np.var(ours, axis=0) + np.var(theirs, axis=0)) / pools)
    assert (abs(np.mean(ours, axis=0) - np.mean(theirs, axis=0)) < 4 * error).all()


def test_batches_of_a_large_pool_are_those_of_a_plain_loop_too() -> None:
    """2,600 pairs are drawn two at a time: no pair twice in a batch."""
    weights = np.random.default_rng(1).lognormal(0, 2, 2600)
    of = keys(2600)
    assert soft_cap.counts(weights, of, penalty=0.15).tolist() == plain_counts(weights.tolist(), of, 0.15)


def test_a_penalty_spreads_draws_as_its_logarithms_say() -> None:
    """After many draws the scores are level: log(weight) - penalty * count is the same for all that are drawn."""
    weights = np.exp(np.linspace(0, 4, 400))
    of = keys(400)
    found = soft_cap.counts(weights, of, penalty=2.0)
    level = np.log(weights) - 2.0 * found
    assert found.sum() == 400
    assert np.ptp(level[found > 0]) < 6
    assert soft_cap.counts(weights, of, penalty=50.0).tolist() == [1.0] * 400  # a penalty above all differences
    assert soft_cap.counts(weights, of, penalty=0.001).max() > found.max()


def test_draws_do_not_depend_on_the_order_of_pairs() -> None:
    weights, of = np.random.default_rng(2).lognormal(0, 2, 300), keys(300)
    order = np.random.default_rng(3).permutation(300)
    assert (
        soft_cap.counts(weights[order], of[order], penalty=0.3).tolist()
        == soft_cap.counts(weights, of, penalty=0.3)[order].tolist()
    )


def scored(folder: Path) -> tuple[str, dict[str, float]]:
    of = pairs(80)
    run = write_run(folder, of)
    weights = {pair.key: math.exp(number % 5) for number, pair in enumerate(of)}
    write_score(run, "useful", {key: {"useful": value} for key, value in weights.items()}, {"useful": pa.float64()})
    return run, weights


def test_an_epoch_has_each_pair_as_often_as_it_was_drawn(tmp_path: Path) -> None:
    run, weights = scored(tmp_path / "run")
    data = {"runs": [run], "weight_by": "useful", "soft_cap": 0.5}
    sections = {"run": {"folder": str(tmp_path / "model")}, "data": data, "loop": {"global_batch": 8}}
    config = TrainConfig.from_values(sections, where="test")
    samples = samples_of(config)
    rows = samples.pairs(np.arange(80))
    drawn = [weights[key_of(row)] for row in rows]
    counts = plain_counts(drawn, rows["key"].astype(np.uint64), 0.5)
    sums = np.concatenate([each.sums for each in samples.weights.values()])
    assert sums.tolist() == np.cumsum(counts).tolist()
    assert 1 < counts.count(0) < 40
    sampler = global_batches(config, samples)
    orders = [[int(pair) for batch in range(10) for pair in sampler.batch(10 * epoch + batch)[0]] for epoch in range(3)]
    assert orders[0] != orders[1]
    for order in orders:
        assert [order.count(pair) for pair in range(80)] == counts
    other = Samples.open(str(tmp_path / "index"), Runs([run], DataSettings(weight_by="useful")))
    assert [each.total for each in other.weights.values()] != [each.total for each in samples.weights.values()]
