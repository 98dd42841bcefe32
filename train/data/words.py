"""Word corruption of training captions (ZeroVL, sections 2.2 and A.9): words are masked, replaced or deleted.

What becomes of a word is a pure function of seed, epoch, key and its place in the caption.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from altalign.train.data.order import keyed

MASKED, REPLACED = 0.5, 0.1  # of the corrupted words; the rest is deleted
_FATE, _WORD = 4, 5
_RANGE = 2.0**64


def corrupted(
    words: Sequence[Sequence[int]],
    share: float,
    *,
    mask: int,
    others: npt.NDArray[np.int64],
    seed: int,
    epoch: int,
    key: str,
) -> list[int]:
    """The word pieces that are left of a caption.

    Args:
        words: the pieces of each word.
        share: chance of each word to be corrupted; where all would be deleted, the first is kept.
        mask: the piece that stands for a masked word.
        others: pieces that are whole words, of which a replaced word becomes one.
        seed: of the run.
        epoch: how often the caption was seen before.
        key: of the sample, 32 hex digits.
    """
    number, places = int(key, 16), np.arange(len(words))
    fates = keyed(seed, epoch, number >> 64, number, _FATE, places) / _RANGE
    drawn = others[(keyed(seed, epoch, number >> 64, number, _WORD, places) % np.uint64(len(others))).astype(np.int64)]
    left: list[int] = []
    for word, fate, other in zip(words, fates.tolist(), drawn.tolist(), strict=True):
        if fate >= share:
            left += word
        elif fate < share * MASKED:
            left.append(mask)
        elif fate < share * (MASKED + REPLACED):
            left.append(other)
    return left or list(words[0] if words else ())
