"""Towers small enough for a test, and what goes into them."""

from typing import Any

import torch

from altalign.train.model.dual_encoder import DualEncoder
from altalign.train.settings.training import ImageTowerSettings, TextTowerSettings

VOCABULARY = 50
TOKENS_AT_MOST = 16


def image_settings(**settings: Any) -> ImageTowerSettings:
    """B0 of a quarter of the channels and a third of the blocks."""
    return ImageTowerSettings(**{"architecture": "b0", "width": 0.25, "depth": 0.3, "ghost_group": 4, **settings})


def text_settings(**settings: Any) -> TextTowerSettings:
    """BERT of 2 layers."""
    return TextTowerSettings(**{"layers": 2, "width": 32, "heads": 4, **settings})


def small_model(
    *, image: dict[str, Any] | None = None, text: dict[str, Any] | None = None, **settings: Any
) -> DualEncoder:
    """Both, with settings of either."""
    return DualEncoder(
        image_settings(**(image or {})),
        text_settings(**(text or {})),
        vocabulary=VOCABULARY,
        tokens_at_most=TOKENS_AT_MOST,
        **settings,
    )


def images(count: int, side: int = 32, *, seed: int = 0) -> torch.Tensor:
    """Pixels (count, 3, side, side), uint8."""
    return torch.randint(
        0, 256, (count, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def captions(count: int, length: int = 8, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and mask (count, length): of 2 to `length` tokens, the rest padding."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, length + 1, (count, 1), generator=generator)
    mask = torch.arange(length) < lengths
    return torch.randint(5, VOCABULARY, (count, length), generator=generator) * mask, mask
