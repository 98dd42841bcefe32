"""What NLIP changes of the texts of pairs at load time: captions that are swapped, and what the captioner reads.

Both are pure functions of seed, epoch and key; shards stay as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from altalign.train.data.by_key import ByKey
from altalign.train.data.noise_estimates import Estimates
from altalign.train.data.order import keyed
from altalign.train.data.tokenizer import CaptionTokenizer
from altalign.train.settings.nlip import CaptionerSettings

PROMPT = "a picture of"  # p, what the captioner's text begins with: BLIP's; NLIP does not say
_SWAP, _MASK = 8, 9  # what the random numbers are for
_RANGE = 2.0**64


@dataclass(frozen=True)
class Swapped:
    """Captions of a model, each of which takes the place of the pair's own with the probability that it is noisy."""

    captions: ByKey  # with a column `caption`
    estimates: Estimates
    learned_from: Mapping[str, str] = field(default_factory=dict)  # captioned runs of the model: their manifests

    def of(self, captions: Sequence[str], *, seed: int, epochs: Sequence[int], keys: Sequence[str]) -> list[str]:
        """The caption of each pair at a visit (NLIP, stage 3), by its key of 32 hex digits."""
        eps = self.estimates.of(keys)
        drawn = [
            is_swapped(float(one), seed=seed, epoch=epoch, key=key)
            for one, epoch, key in zip(eps, epochs, keys, strict=True)
        ]
        rows = iter(self.captions.rows([key for key, is_drawn in zip(keys, drawn, strict=True) if is_drawn]))
        found = [next(rows) if is_drawn else None for is_drawn in drawn]
        return [row["caption"] if row else own for row, own in zip(found, captions, strict=True)]


def is_swapped(eps: float, *, seed: int, epoch: int, key: str) -> bool:
    """Whether a visit of a pair sees the model's caption: with probability eps."""
    number = int(key, 16)
    return float(keyed(seed, epoch, number >> 64, number, _SWAP)[0]) / _RANGE < eps


@dataclass(frozen=True)
class Prompts:
    """z of equation 13: [CLS], the prompt, the concepts of the image, the caption with words masked, [SEP]."""

    settings: CaptionerSettings
    concepts: ByKey | None  # with a column `concepts`

    def of(
        self,
        captions: Sequence[str],
        tokenizer: CaptionTokenizer,
        *,
        seed: int,
        epochs: Sequence[int],
        keys: Sequence[str],
    ) -> list[list[int]]:
        """The tokens for each pair in training."""
        words = tokenizer.encode_words([f" {caption}" for caption in captions])  # pieces of bytes have the space too
        mask = tokenizer.number(tokenizer.special.mask)
        masked = [
            masked_words(of, self.settings.mask_share, mask=mask, seed=seed, epoch=epoch, key=key)
            for of, epoch, key in zip(words, epochs, keys, strict=True)
        ]
        return self._framed(masked, tokenizer, keys)

    def without_captions(self, tokenizer: CaptionTokenizer, keys: Sequence[str]) -> list[list[int]]:
        """The same of pairs whose caption is to be written: a single mask stands for it."""
        return self._framed([[tokenizer.number(tokenizer.special.mask)]] * len(keys), tokenizer, keys)

    def _framed(
        self, captions: Sequence[Sequence[int]], tokenizer: CaptionTokenizer, keys: Sequence[str]
    ) -> list[list[int]]:
        rows = self.concepts.rows(keys) if self.concepts is not None else [None] * len(keys)
        before = [" ".join([PROMPT, *(row["concepts"] if row else [])]) for row in rows]
        at_most = self.settings.tokens_at_most - 2
        first, last = (tokenizer.number(piece) for piece in (tokenizer.special.first, tokenizer.special.last))
        pieces = [[piece for word in words for piece in word] for words in tokenizer.encode_words(before)]
        return [[first, *[*prompt, *of][:at_most], last] for prompt, of in zip(pieces, captions, strict=True)]


def masked_words(
    words: Sequence[Sequence[int]], share: float, *, mask: int, seed: int, epoch: int, key: str
) -> list[int]:
    """The pieces of a caption's words; each word has the chance `share` to be one [MASK] instead."""
    number = int(key, 16)
    drawn = keyed(seed, epoch, number >> 64, number, _MASK, np.arange(len(words))) / _RANGE
    left: list[int] = []
    for word, at in zip(words, drawn.tolist(), strict=True):
        left += [mask] if at < share else word
    return left
