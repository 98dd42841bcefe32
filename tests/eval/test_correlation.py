import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from altalign.eval.correlation import drawn, sampled_spearman, spearman


def slow_ranks(values: list[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


def slow_spearman(a: list[float], b: list[float]) -> float:
    """Pearson's formula over ranks, a term at a time."""
    first, second = slow_ranks(a), slow_ranks(b)
    mean = (len(a) + 1) / 2
    covariance = sum((x - mean) * (y - mean) for x, y in zip(first, second, strict=True))
    spreads = [math.sqrt(sum((x - mean) ** 2 for x in ranks)) for ranks in (first, second)]
    return covariance / (spreads[0] * spreads[1])


def some(number: int, kinds: int, seed: int) -> torch.Tensor:
    return torch.randint(kinds, (number,), generator=torch.Generator().manual_seed(seed)).double()


@given(st.integers(3, 40), st.integers(2, 50), st.integers(0, 9))
def test_spearman_is_that_of_a_plain_loop_and_of_scipy(number: int, kinds: int, seed: int) -> None:
    a, b = some(number, kinds, seed), some(number, kinds, seed + 100)
    if len(a.unique()) > 1 and len(b.unique()) > 1:
        assert spearman(a, b) == pytest.approx(slow_spearman(a.tolist(), b.tolist()))
        assert spearman(a, b) == pytest.approx(spearmanr(a.numpy(), b.numpy()).statistic)


def test_what_has_no_order_has_no_correlation() -> None:
    assert spearman(torch.ones(4), torch.arange(4.0)) == 0
    assert spearman(torch.tensor([1.0, float("nan"), 2.0]), torch.arange(3.0)) == 0


def rated(number: int = 300, queries: int = 60) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    query = torch.randint(queries, (number,), generator=generator) * 7  # numbers need not follow each other
    rating = torch.rand(number, generator=generator, dtype=torch.float64) * 5
    return query, rating + torch.randn(number, generator=generator), rating.round(decimals=1)


def test_the_sampled_bootstrap_is_that_of_plain_loops() -> None:
    query, similarity, rating = rated()
    found = sampled_spearman(query, similarity, rating, samples=25, seed=4)
    rows_of = {
        name: [row for row, one in enumerate(query.tolist()) if one == name] for name in sorted(set(query.tolist()))
    }
    counts, generator = torch.tensor([len(rows) for rows in rows_of.values()]), torch.Generator().manual_seed(4)
    in_order = [row for rows in rows_of.values() for row in rows]
    values = []
    for _ in range(25):
        rows = [in_order[place] for place in drawn(counts, generator).tolist()]
        values.append(slow_spearman([float(similarity[row]) for row in rows], [float(rating[row]) for row in rows]))
    mean = sum(values) / len(values)
    assert found == pytest.approx((mean, math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))))


def test_a_sample_has_half_of_the_queries_and_one_pair_of_each() -> None:
    counts = torch.tensor([1, 3, 2, 5, 1, 4, 7])
    ends = counts.cumsum(0)
    seen = set()
    for seed in range(200):
        rows = drawn(counts, torch.Generator().manual_seed(seed))
        owners = torch.bucketize(rows, ends, right=True)
        assert len(owners.unique()) == len(rows) == 4
        seen |= set(rows.tolist())
    assert seen == set(range(int(counts.sum())))


def test_a_model_that_orders_as_raters_do_has_one_in_every_sample() -> None:
    query, _, rating = rated()
    assert sampled_spearman(query, rating.exp(), rating, samples=10) == pytest.approx((1, 0), abs=1e-12)
    assert sampled_spearman(query, -rating, rating, samples=10) == pytest.approx((-1, 0), abs=1e-12)


def test_a_seed_has_its_samples() -> None:
    of = rated()
    assert sampled_spearman(*of, samples=5, seed=1) == sampled_spearman(*of, samples=5, seed=1)
    assert sampled_spearman(*of, samples=5, seed=1) != sampled_spearman(*of, samples=5, seed=2)
