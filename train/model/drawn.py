"""What a step draws for its pairs: how they are mixed, and the patches that a ViT looks at (ZeroVL)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from altalign.errors import UsageError
from altalign.train.data.random_bits import keyed
from altalign.train.model.vision_transformer import patch_px
from altalign.train.settings.training import ImageTowerSettings, LossSettings

_PATCH = 7  # what the random numbers are for


@dataclass(frozen=True)
class Mixed:
    """Targets of mixed pairs: `share` (n,) is on its own match, the rest on that of `partner` (n,)."""

    partner: torch.Tensor
    share: torch.Tensor


@dataclass(frozen=True)
class Mixup:
    """Coin-flipping mixup (section 3.2): at each step the images of pairs are mixed, or their texts.

    Each of n pairs keeps `share` of its own. It is mixed with its mirror image in a group of the global batch: the
    first of the group with the last, the second with the last but one. Groups do not depend on ranks or chunks, which
    hold whole ones.
    """

    mixes: Literal["images", "texts"]
    share: float
    group: int

    def partners(self, count: int, device: "torch.device | str" = "cpu") -> torch.Tensor:
        """The place of each pair's partner: int64 (n,)."""
        if count % self.group:
            why = f"a process has {count} pairs of the global batch, no multiple of it"
            advice = "give another global_batch, group or number of processes"
            raise UsageError(f"[loss] mixup_group = {self.group}: {why}; {advice}")
        return torch.arange(count, device=device).view(-1, self.group).flip(1).flatten()

    def mixed(self, values: torch.Tensor) -> torch.Tensor:
        """Pixels (n, 3, h, w), or features (n, d), each mixed with its partner's."""
        values = values if values.is_floating_point() else values.to(torch.float32)
        return values.lerp(values[self.partners(len(values), values.device)], 1 - self.share)

    def targets(self, embeddings: torch.Tensor) -> Mixed:
        """The targets of the loss for mixed pairs, whose embeddings are (n, d)."""
        count = len(embeddings)
        return Mixed(self.partners(count, embeddings.device), embeddings.new_full((count,), self.share))


def mixup(settings: LossSettings, *, seed: int, step: int) -> Mixup | None:
    """One coin and one lambda of Beta(alpha, alpha) for all pairs of a step; None where mixup is off."""
    if not settings.mixup:
        return None
    numbers = np.random.Generator(np.random.Philox(key=[seed, step]))
    is_images = numbers.random() > 0.5  # as in the paper: above 0.5 images are mixed
    mixes = ("images" if is_images else "texts") if settings.mixup_of == "coin" else settings.mixup_of
    return Mixup(mixes, float(numbers.beta(settings.mixup, settings.mixup)), settings.mixup_group)


@dataclass(frozen=True)
class TokenDrop:
    """TokenDrop (section 4.2): the patches that a step keeps, a pure function of seed, step and the pair's key."""

    share: float  # that is dropped
    patch_px: int
    seed: int
    step: int

    def number(self, height: int, width: int) -> tuple[int, int]:
        """How many patches an image has, and how many of them are kept."""
        patches = (height // self.patch_px) * (width // self.patch_px)
        return patches, max(1, patches - round(self.share * patches))

    def kept(self, keys: Sequence[str], images: torch.Tensor) -> torch.Tensor:
        """The patches of each of n images (n, 3, height, width) that are kept, in their order: int64 (n, k)."""
        patches, left = self.number(images.shape[2], images.shape[3])
        numbers = np.array([[int(key[:16], 16), int(key[16:], 16)] for key in keys], np.uint64)
        drawn = keyed(self.seed, self.step, _PATCH, numbers[:, :1], numbers[:, 1:], np.arange(patches)[None])
        first = np.sort(np.argsort(drawn, axis=1)[:, :left], axis=1)
        return torch.from_numpy(first).to(images.device)


def token_drop(settings: ImageTowerSettings, *, seed: int, step: int) -> TokenDrop | None:
    """What a step drops; None where it drops nothing."""
    if not settings.token_drop or settings.frozen:
        return None
    return TokenDrop(settings.token_drop, patch_px(settings.architecture), seed, step)
