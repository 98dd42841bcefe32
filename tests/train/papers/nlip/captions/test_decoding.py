"""Beam search and nucleus sampling against all captions of a small language, written out."""

import itertools
import math

import pytest
import torch

from altalign.train.papers.nlip.captions import decoding

FIRST, LAST, NEVER, WORDS = 1, 2, 0, 6  # words are 3, 4 and 5


def table(items: int, seed: int) -> torch.Tensor:
    """Log p of the next token by item and by the last two tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(items, WORDS, WORDS, WORDS, generator=generator).mul(1.5).log_softmax(3)


def next_of(of: torch.Tensor) -> decoding.Next:
    def asked(tokens: torch.Tensor, of_item: torch.Tensor) -> torch.Tensor:
        before = tokens[:, -2] if tokens.shape[1] > 1 else torch.zeros(len(tokens), dtype=torch.int64)
        return of[of_item, before, tokens[:, -1]]

    return asked


def log_p(of: torch.Tensor, item: int, words: tuple[int, ...]) -> float:
    whole = [0, FIRST, *words, LAST]
    return sum(float(of[item, a, b, c]) for a, b, c in zip(whole, whole[1:], whole[2:], strict=False))


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_as_wide_as_the_language_finds_the_best_caption(seed: int) -> None:
    of = table(3, seed)
    found = decoding.beam(
        next_of(of), 3, first=FIRST, last=LAST, at_least=1, at_most=3, beams=200, never=[NEVER, FIRST]
    )
    for item in range(3):
        captions = [words for length in (1, 2, 3) for words in itertools.product((3, 4, 5), repeat=length)]
        best = max(captions, key=lambda words: log_p(of, item, words) / (len(words) + 1))
        assert tuple(found[item].tokens) == best
        assert found[item].log_p == pytest.approx(log_p(of, item, best), abs=1e-5)


def test_a_beam_of_one_is_greedy_and_items_do_not_disturb_each_other() -> None:
    of = table(4, 9)
    settings = {"first": FIRST, "last": LAST, "at_least": 2, "at_most": 4, "never": [NEVER, FIRST]}
    together = decoding.beam(next_of(of), 4, beams=2, **settings)
    for item in range(4):
        (alone,) = decoding.beam(next_of(of[item : item + 1]), 1, beams=2, **settings)
        assert alone.tokens == together[item].tokens
        assert alone.log_p == pytest.approx(together[item].log_p, abs=1e-5)
        assert 2 <= len(alone.tokens) <= 4
        assert not {NEVER, FIRST, LAST} & set(alone.tokens)


def test_a_token_is_drawn_from_the_likeliest_alone_as_often_as_it_is_likely() -> None:
    p = torch.tensor([[0.05, 0.5, 0.25, 0.15, 0.05]], dtype=torch.float64)
    at = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    counts = torch.bincount(decoding.drawn(p.expand(1000, -1), 0.7, at), minlength=5)
    assert counts[[0, 3, 4]].tolist() == [0, 0, 0]  # 0.5 and 0.25 are the first that have 0.7
    assert counts[1].item() == pytest.approx(1000 * 2 / 3, abs=1)


def test_a_nucleus_of_all_draws_by_the_model_and_ends_in_time() -> None:
    of = table(1, 3).expand(3000, -1, -1, -1)
    generator = torch.Generator().manual_seed(0)
    found = decoding.nucleus(
        next_of(of), 3000, first=FIRST, last=LAST, at_least=0, at_most=2, share=1.0, never=[],
        uniform=lambda _: torch.rand(3000, dtype=torch.float64, generator=generator),
    )  # fmt: skip
    assert all(len(one.tokens) <= 2 for one in found)
    share = sum(one.tokens == [] for one in found) / 3000
    assert share == pytest.approx(math.exp(log_p(of, 0, ())), abs=0.03)
    one = next(one for one in found if len(one.tokens) == 1)
    assert one.log_p == pytest.approx(log_p(of, 0, tuple(one.tokens)), abs=1e-5)
