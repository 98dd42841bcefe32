"""Word corruption: what becomes of each word, as often as the paper says, whoever asks."""

from collections import Counter

import numpy as np
import pytest

from altalign.train.data import captions
from altalign.train.data.captions import corrupted
from tests.train.plain_draws import halves, plain_keyed

MASK, OTHERS = 4, np.arange(1000, 1050)
WORDS = [[10], [11, 12], [13]]


def of(words: list[list[int]], key: int, *, share: float = 0.2, epoch: int = 0, seed: int = 0) -> list[int]:
    return corrupted(words, share, mask=MASK, others=OTHERS, seed=seed, epoch=epoch, key=f"{key:032x}")


def test_half_are_masked_a_tenth_replaced_and_the_rest_deleted() -> None:
    fates = Counter[str]()
    for key in range(4000):
        found = of([[word] for word in range(10, 20)], key)
        fates["masked"] += found.count(MASK)
        fates["replaced"] += sum(piece >= 1000 for piece in found)
        fates["deleted"] += 10 - len(found)
    # of 40,000 words; 5 standard errors of a share of 0.1 are 0.0075
    assert fates["masked"] / 40_000 == pytest.approx(0.1, abs=0.0075)
    assert fates["replaced"] / 40_000 == pytest.approx(0.02, abs=0.0035)
    assert fates["deleted"] / 40_000 == pytest.approx(0.08, abs=0.007)


def test_a_word_is_corrupted_whole_and_the_others_stay_in_order() -> None:
    kept = [10, 11, 12, 13]
    for key in range(300):
        found = [piece for piece in of(WORDS, key, share=0.5) if piece != MASK and piece < 1000]
        assert found == [piece for piece in kept if piece in found]
        assert (11 in found) == (12 in found)


def test_the_same_seed_epoch_and_key_have_the_same_and_others_do_not() -> None:
    long = [[word] for word in range(10, 60)]
    assert of(long, 5) == of(long, 5)
    assert len({tuple(of(long, 5)), tuple(of(long, 6)), tuple(of(long, 5, epoch=1)), tuple(of(long, 5, seed=1))}) == 4


def plain(caption: list[list[int]], share: float, seed: int, epoch: int, key: str) -> list[int]:
    """What is left of a caption, word by word."""
    left = []
    for place, word in enumerate(caption):
        fate = plain_keyed(seed, epoch, *halves(key), captions._FATE, place) / 2**64
        if fate >= share:
            left += word
        elif fate < 0.5 * share:
            left.append(MASK)
        elif fate < 0.6 * share:
            drawn = plain_keyed(seed, epoch, *halves(key), captions._WORD, place)
            left.append(int(OTHERS[drawn % len(OTHERS)]))
    return left or caption[0]


@pytest.mark.parametrize("share", [0.2, 0.9])
def test_a_caption_is_corrupted_as_a_plain_loop_does_it(share: float) -> None:
    long = [[number, number + 100][: 1 + number % 2] for number in range(10, 35)]
    for number in range(200):
        key = f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}"
        found = corrupted(long, share, mask=MASK, others=OTHERS, seed=7, epoch=number % 3, key=key)
        assert found == plain(long, share, 7, number % 3, key)


def test_something_is_always_left() -> None:
    assert all(of([[10, 11]], key, share=0.99) for key in range(200))
    assert of([], 0) == []
