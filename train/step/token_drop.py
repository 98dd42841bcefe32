"""TokenDrop (ZeroVL, section 4.2): a share of an image's patches is not looked at in training."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from altalign.train.data.order import keyed
from altalign.train.model.vision_transformer import patch_px
from altalign.train.settings.training import ImageTowerSettings

_PATCH = 7  # what the random numbers are for


@dataclass(frozen=True)
class TokenDrop:
    """Which patches of an image a step keeps: a pure function of seed, step and the pair's key."""

    share: float
    patch_px: int
    seed: int
    step: int

    def kept(self, keys: Sequence[str], images: torch.Tensor) -> torch.Tensor:
        """The patches of each of n images (n, 3, height, width) that are kept, in their order: int64 (n, k)."""
        patches = (images.shape[2] // self.patch_px) * (images.shape[3] // self.patch_px)
        numbers = np.array([[int(key[:16], 16), int(key[16:], 16)] for key in keys], np.uint64)
        drawn = keyed(self.seed, self.step, _PATCH, numbers[:, :1], numbers[:, 1:], np.arange(patches)[None])
        left = max(1, patches - round(self.share * patches))
        first = np.sort(np.argsort(drawn, axis=1)[:, :left], axis=1)
        return torch.from_numpy(first).to(images.device)


def drawn(settings: ImageTowerSettings, *, seed: int, step: int) -> TokenDrop | None:
    """What a step drops; None where it drops nothing."""
    if not settings.token_drop or settings.frozen:
        return None
    return TokenDrop(settings.token_drop, patch_px(settings.architecture), seed, step)
