"""Coin-flipping mixup (ZeroVL, section 3.2): at each step the images of pairs are mixed, or their texts.

Each pair is mixed with its mirror image in a group of the global batch: the first of the group with the last, the
second with the last but one. Groups do not depend on ranks or chunks, which hold whole ones.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from altalign.errors import UsageError
from altalign.train.settings.training import LossSettings


@dataclass(frozen=True)
class Mixed:
    """Targets of pairs that were mixed, each with another of the same process.

    `share` (n,) is on its own match, the rest on that of `partner` (n,).
    """

    partner: torch.Tensor
    share: torch.Tensor


@dataclass(frozen=True)
class Mixup:
    """How a step mixes: n pairs, each keeping `share` of its own."""

    of: Literal["images", "texts"]
    share: float
    group: int

    def partners(self, count: int, device: "torch.device | str" = "cpu") -> torch.Tensor:
        """The place of each pair's partner: int64 (n,).

        Raises:
            UsageError: the pairs are no whole groups.
        """
        if count % self.group:
            raise UsageError(
                f"[loss] mixup_group = {self.group}: a process has {count} pairs of the global batch, no multiple of "
                "it; give another global_batch, group or number of processes"
            )
        return torch.arange(count, device=device).view(-1, self.group).flip(1).flatten()

    def mixed(self, values: torch.Tensor) -> torch.Tensor:
        """Pixels (n, 3, h, w), or features (n, d), each mixed with its partner's."""
        values = values if values.is_floating_point() else values.to(torch.float32)
        return values.lerp(values[self.partners(len(values), values.device)], 1 - self.share)

    def targets(self, embeddings: torch.Tensor) -> Mixed:
        """The targets of the loss for mixed pairs, whose embeddings are (n, d)."""
        return Mixed(
            self.partners(len(embeddings), embeddings.device), embeddings.new_full((len(embeddings),), self.share)
        )


def drawn(settings: LossSettings, *, seed: int, step: int) -> Mixup | None:
    """One coin and one lambda of Beta(alpha, alpha) for all pairs of a step; None where mixup is off."""
    if not settings.mixup:
        return None
    numbers = np.random.Generator(np.random.Philox(key=[seed, step]))
    is_images = numbers.random() > 0.5  # as in the paper: above 0.5 images are mixed
    of = ("images" if is_images else "texts") if settings.mixup_of == "coin" else settings.mixup_of
    return Mixup(of, float(numbers.beta(settings.mixup, settings.mixup)), settings.mixup_group)
