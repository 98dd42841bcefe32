"""Captions as training sees them: corrupted, masked, or swapped, each a pure function of seed, epoch and key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from altalign.train.data.by_key import ByKey
from altalign.train.data.packed import ClassNumbers
from altalign.train.data.random_bits import of_visit
from altalign.train.data.tokenizer import CaptionTokenizer
from altalign.train.settings.data import DataSettings
from altalign.train.settings.nlip import CaptionerSettings

PROMPT = "a picture of"  # p, what the captioner's text begins with: BLIP's; NLIP does not say
MASKED, REPLACED = 0.5, 0.1  # of the corrupted words; the rest is deleted
_FATE, _WORD, _SWAP, _MASK = 4, 5, 8, 9  # what the random numbers are for
_RANGE = 2.0**64


def tokens(
    captions: Sequence[str],
    tokenizer: CaptionTokenizer | ClassNumbers,
    settings: DataSettings,
    *,
    seed: int,
    epochs: Sequence[int],
    keys: Sequence[str],
) -> list[list[int]]:
    """Word pieces of captions, [CLS] first and [SEP] last; or numbers of classes."""
    share = settings.word_corruption
    if not share or isinstance(tokenizer, ClassNumbers):
        return tokenizer.encode(captions)
    mask, others = tokenizer.number(tokenizer.special.mask), tokenizer.whole_words
    return [
        tokenizer.framed(corrupted(words, share, mask=mask, others=others, seed=seed, epoch=epoch, key=key))
        for words, key, epoch in zip(tokenizer.encode_words(captions), keys, epochs, strict=True)
    ]


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
    """The word pieces that are left of a caption (ZeroVL, sections 2.2 and A.9), of the pieces of each word.

    `share` is the chance of a word to be masked, replaced by one of `others`, or deleted; the first is kept, where all
    would be deleted. Epochs say how often the caption was seen before; keys have 32 hex digits.
    """
    places = np.arange(len(words))
    fates = of_visit(seed, epoch, key, _FATE, places) / _RANGE
    drawn = others[(of_visit(seed, epoch, key, _WORD, places) % np.uint64(len(others))).astype(np.int64)]
    left: list[int] = []
    for word, fate, other in zip(words, fates.tolist(), drawn.tolist(), strict=True):
        if fate >= share:
            left += word
        elif fate < share * MASKED:
            left.append(mask)
        elif fate < share * (MASKED + REPLACED):
            left.append(other)
    return left or list(words[0] if words else ())


@dataclass(frozen=True)
class Swapped:
    """Captions of a model, each of which takes the place of the pair's own with the probability that it is noisy."""

    captions: ByKey  # with a column `caption`
    estimates: ByKey  # with a column `eps`
    learned_from: Mapping[str, str] = field(default_factory=dict)  # captioned runs of the model: their manifests

    def swapped(self, captions: Sequence[str], *, seed: int, epochs: Sequence[int], keys: Sequence[str]) -> list[str]:
        """The caption of each pair at a visit (NLIP, stage 3), by its key of 32 hex digits."""
        written, chances = self.captions.values(keys), self.estimates.floats(keys).tolist()
        return [
            text if text is not None and is_swapped(eps, seed=seed, epoch=epoch, key=key) else own
            for text, eps, epoch, key, own in zip(written, chances, epochs, keys, captions, strict=True)
        ]


def is_swapped(eps: float, *, seed: int, epoch: int, key: str) -> bool:
    """Whether a visit of a pair sees the model's caption: with probability eps."""
    return float(of_visit(seed, epoch, key, _SWAP)[0]) / _RANGE < eps


@dataclass(frozen=True)
class Prompts:
    """z of equation 13: [CLS], the prompt, the concepts of the image, the caption with words masked, [SEP]."""

    settings: CaptionerSettings
    concepts: ByKey | None  # with a column `concepts`

    def masked(
        self,
        captions: Sequence[str],
        tokenizer: CaptionTokenizer,
        *,
        seed: int,
        epochs: Sequence[int],
        keys: Sequence[str],
    ) -> list[list[int]]:
        """The tokens for each pair in training."""
        share, mask = self.settings.mask_share, tokenizer.number(tokenizer.special.mask)
        words = tokenizer.encode_words([f" {caption}" for caption in captions])  # pieces of bytes have the space too
        masked = [
            masked_words(pieces, share, mask=mask, seed=seed, epoch=epoch, key=key)
            for pieces, epoch, key in zip(words, epochs, keys, strict=True)
        ]
        return self.framed(masked, tokenizer, keys)

    def framed(
        self, captions: Sequence[Sequence[int]], tokenizer: CaptionTokenizer, keys: Sequence[str]
    ) -> list[list[int]]:
        """The tokens for pairs of these keys, of the pieces that stand for their captions."""
        concepts = self.concepts.values(keys) if self.concepts is not None else [None] * len(keys)
        before = tokenizer.encode_words([" ".join([PROMPT, *(words or [])]) for words in concepts])
        most = self.settings.tokens_at_most
        return [
            tokenizer.framed([*chain.from_iterable(words), *caption], tokens_at_most=most)
            for words, caption in zip(before, captions, strict=True)
        ]


def masked_words(
    words: Sequence[Sequence[int]], share: float, *, mask: int, seed: int, epoch: int, key: str
) -> list[int]:
    """The pieces of a caption's words; each word has the chance `share` to be one [MASK] instead."""
    drawn = of_visit(seed, epoch, key, _MASK, np.arange(len(words))) / _RANGE
    left: list[int] = []
    for word, chance in zip(words, drawn.tolist(), strict=True):
        left += [mask] if chance < share else word
    return left
