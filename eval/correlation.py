"""Spearman's rank correlation, and the sampled bootstrap of it that Crisscrossed Captions uses."""

import torch
from torch import Tensor


def spearman(a: Tensor, b: Tensor) -> float:
    """Pearson's correlation of the ranks of two vectors (n,); equal values have the mean of their ranks.

    It is 0 where all values of one are equal, or one is not a number: such a model has no order.
    """
    if a.isnan().any() or b.isnan().any() or len(a.unique()) < 2 or len(b.unique()) < 2:
        return 0.0
    first, second = (ranks - ranks.mean() for ranks in (_ranks(a), _ranks(b)))
    return float(first @ second / (first.norm() * second.norm()))


def sampled_spearman(
    query: Tensor, similarity: Tensor, rating: Tensor, *, samples: int, seed: int = 0
) -> tuple[float, float]:
    """Mean and standard deviation of Spearman's correlation over samples of the rated pairs.

    Each sample has half of the queries, and of each of them one of its rated pairs (Parekh et al., arXiv 2004.15020).

    Args:
        query: int64 (n,), a number for the query of each rated pair.
        similarity: (n,), the model's.
        rating: (n,), the raters'.
        samples: 1,000 in the paper.
        seed: of the samples.
    """
    generator = torch.Generator().manual_seed(seed)
    order = query.argsort(stable=True)
    _, counts = query[order].unique_consecutive(return_counts=True)
    found = []
    for _ in range(samples):
        rows = order[drawn(counts, generator)]
        found.append(spearman(similarity[rows], rating[rows]))
    values = torch.tensor(found, dtype=torch.float64)
    return float(values.mean()), float(values.std(unbiased=False))


def drawn(counts: Tensor, generator: torch.Generator) -> Tensor:
    """One of the pairs of each query in a random half of the queries, where a query's pairs follow one another.

    Args:
        counts: int64 (queries,), the number of pairs of each.
        generator: of the draws.
    """
    chosen = torch.randperm(len(counts), generator=generator)[: (len(counts) + 1) // 2]
    starts = counts.cumsum(0) - counts
    share = torch.rand(len(chosen), generator=generator, dtype=torch.float64)
    return starts[chosen] + (share * counts[chosen]).long()


def _ranks(values: Tensor) -> Tensor:
    """Ranks from 1 of values (n,), float64."""
    _, place, counts = values.unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    return (ends - (counts - 1) / 2)[place]
