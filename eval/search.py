"""Search among embeddings: what each query ranks its right candidates at.

Ties are against the model, so that one with equal embeddings finds nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

NEVER = torch.iinfo(torch.int64).max  # rank of what is not found at all
_SCORES = 1 << 24  # scores that are held, 64 MiB; more if one query has more candidates


@contextmanager
def in_float32(device: str) -> Iterator[None]:
    """Computes products in float32 on a device of this type, whatever training has set."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


@torch.no_grad()
def scores_of(queries: Tensor, candidates: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows of some queries, (n, width), at a time, and their scores (rows, m) of all candidates, (m, width)."""
    at_a_time = max(1, _SCORES // len(candidates))
    for begin in range(0, len(queries), at_a_time):
        rows = slice(begin, min(begin + at_a_time, len(queries)))
        with in_float32(queries.device.type):
            scores = queries[rows] @ candidates.T
        yield rows, scores


def ranked(scores: Tensor, is_right: Tensor) -> Tensor:
    """Rank, from 1, of the best right candidate of each row among those that are not right: int64 (n,).

    A wrong one with the same score, or with one that is not a number, comes first; what has no score is NEVER found.
    """
    best = scores.masked_fill(~is_right | scores.isnan(), -torch.inf).amax(1)
    before = (~(scores < best[:, None]) & ~is_right).sum(1)
    return torch.where(best > -torch.inf, 1 + before, NEVER)


def ranks_of_pairs(queries: Tensor, candidates: Tensor, pairs: Tensor, *, same: bool = False) -> Tensor:
    """Rank, from 1, of each query's best right candidate, int64 (n,); 0 of a query that has none.

    Queries are (n, d), candidates (m, d) float32; pairs, int64 (2, p), are rows of queries and of what is right for
    them. Where queries are the `same` as candidates, no query is a candidate of its own.
    """
    query, candidate = pairs[:, pairs[0].argsort()].to(queries.device)
    ranks = []
    for rows, scores in scores_of(queries, candidates):
        if same:
            scores.diagonal(rows.start).fill_(-torch.inf)
        first, after = torch.searchsorted(query, torch.tensor([rows.start, rows.stop], device=query.device)).tolist()
        is_right = torch.zeros_like(scores, dtype=torch.bool)
        is_right[query[first:after] - rows.start, candidate[first:after]] = True
        ranks.append(ranked(scores, is_right).masked_fill(~is_right.any(1), 0))
    return torch.cat(ranks)


def ranks_of_labels(queries: Tensor, candidates: Tensor, labels: Tensor, others: Tensor) -> Tensor:
    """Rank, from 1, of the best candidate of each query's label among those of other labels: int64 (n,) on the CPU.

    Queries are (n, d), candidates (m, d) float32; their labels (n,) and (m,).
    """
    labels, others = labels.to(queries.device), others.to(queries.device)
    parts = [ranked(scores, labels[rows, None] == others) for rows, scores in scores_of(queries, candidates)]
    return torch.cat(parts).cpu()
