"""Beam search against all captions of a small language, written out."""

import itertools

import pytest
import torch

from altalign.train.nlip import captions

FIRST, LAST, NEVER, WORDS = 1, 2, 0, 6  # words are 3, 4 and 5


def table(items: int, seed: int) -> torch.Tensor:
    """Log p of the next token by item and by the last two tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(items, WORDS, WORDS, WORDS, generator=generator).mul(1.5).log_softmax(3)


def next_of(scores: torch.Tensor) -> captions.Next:
    def asked(tokens: torch.Tensor, of_item: torch.Tensor) -> torch.Tensor:
        before = tokens[:, -2] if tokens.shape[1] > 1 else torch.zeros(len(tokens), dtype=torch.int64)
        return scores[of_item, before, tokens[:, -1]]

    return asked


def log_p(scores: torch.Tensor, item: int, words: tuple[int, ...]) -> float:
    whole = [0, FIRST, *words, LAST]
    return sum(float(scores[item, a, b, c]) for a, b, c in zip(whole, whole[1:], whole[2:], strict=False))


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_as_wide_as_the_language_finds_the_best_caption(seed: int) -> None:
    scores = table(3, seed)
    best_by_beam = captions.beam(
        next_of(scores), 3, first=FIRST, last=LAST, at_least=1, at_most=3, beams=200, never=[NEVER, FIRST]
    )
    for item in range(3):
        sentences = [words for length in (1, 2, 3) for words in itertools.product((3, 4, 5), repeat=length)]
        best = max(sentences, key=lambda words: log_p(scores, item, words) / (len(words) + 1))
        assert tuple(best_by_beam[item].tokens) == best
        assert best_by_beam[item].log_p == pytest.approx(log_p(scores, item, best), abs=1e-5)


def test_a_beam_of_one_is_greedy_and_items_do_not_disturb_each_other() -> None:
    scores = table(4, 9)
    settings = {"first": FIRST, "last": LAST, "at_least": 2, "at_most": 4, "never": [NEVER, FIRST]}
    together = captions.beam(next_of(scores), 4, beams=2, **settings)
    for item in range(4):
        (alone,) = captions.beam(next_of(scores[item : item + 1]), 1, beams=2, **settings)
        assert alone.tokens == together[item].tokens
        assert alone.log_p == pytest.approx(together[item].log_p, abs=1e-5)
        assert 2 <= len(alone.tokens) <= 4
        assert not {NEVER, FIRST, LAST} & set(alone.tokens)
