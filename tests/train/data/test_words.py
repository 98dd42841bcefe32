"""Word corruption: what becomes of each word, as often as the paper says, whoever asks."""

from collections import Counter

import numpy as np
import pytest

from altalign.train.data.words import corrupted

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


def test_something_is_always_left() -> None:
    assert all(of([[10, 11]], key, share=0.99) for key in range(200))
    assert of([], 0) == []
