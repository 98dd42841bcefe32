"""Captions of a language model, a token after the other, by beam search. Pure.

What is asked of the model is one function: the log-probabilities of the next token of some beginnings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Next = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Of beginnings, int64 (n, length), and the number of the item that each is of, int64 (n,): log p of the next token,
float32 (n, vocabulary)."""


@dataclass(frozen=True)
class Written:
    """The tokens of a caption, without first and last, and the sum of the logarithms of their probabilities.

    The last token, which ends the caption, is among these.
    """

    tokens: list[int]
    log_p: float


def beam(
    next_of: Next, items: int, *, first: int, last: int, at_least: int, at_most: int, beams: int, never: Sequence[int]
) -> list[Written]:
    """The best caption that beam search finds for each item, by log p over the number of tokens.

    Args:
        next_of: the model.
        items: how many.
        first: the token that captions begin with.
        last: the one that they end with.
        at_least: tokens of a caption, without first and last.
        at_most: the same; what is longer is cut, and ends there.
        beams: beginnings of each item that are gone on with.
        never: tokens that no caption has.
    """
    tokens = torch.full((items, 1), first)
    of_item, sums = torch.arange(items), torch.zeros(items)
    ended: list[list[Written]] = [[] for _ in range(items)]
    for length in range(at_most + 1):
        log_p = next_of(tokens, of_item).float().cpu()
        log_p[:, list(never)] = -torch.inf
        if length < at_least:
            log_p[:, last] = -torch.inf
        if length == at_most:  # no more but the end
            for row, item in enumerate(of_item.tolist()):
                whole = float(sums[row] + log_p[row, last])
                ended[item].append(Written(tokens[row, 1:].tolist(), whole))
            break
        kept = _kept(sums[:, None] + log_p, of_item, tokens, ended, last=last, beams=beams)
        if not kept:
            break
        rows, words, scores = (list(column) for column in zip(*kept, strict=True))
        tokens = torch.cat([tokens[rows], torch.tensor(words)[:, None]], 1)
        of_item, sums = of_item[rows], torch.tensor(scores)
    return [max(some, key=lambda one: one.log_p / (len(one.tokens) + 1)) for some in ended]


def _kept(
    scores: torch.Tensor,
    of_item: torch.Tensor,
    tokens: torch.Tensor,
    ended: list[list[Written]],
    *,
    last: int,
    beams: int,
) -> list[tuple[int, int, float]]:
    """The beginnings that go on: row, next token, sum. Those among the best 2 `beams` of an item that end are noted.

    An item that has `beams` ended captions does not go on.
    """
    vocabulary, kept = scores.shape[1], list[tuple[int, int, float]]()
    for item in of_item.unique_consecutive().tolist():
        rows = torch.nonzero(of_item == item)[:, 0]
        flat = scores[rows].flatten()
        best = flat.topk(min(2 * beams, len(flat)))
        of_this = list[tuple[int, int, float]]()
        for score, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            row, word = int(rows[place // vocabulary]), place % vocabulary
            if score == -torch.inf:
                continue
            if word == last:
                ended[item].append(Written(tokens[row, 1:].tolist(), score))
            elif len(of_this) < beams:
                of_this.append((row, word, score))
        if len(ended[item]) < beams:
            kept += of_this
    return kept
