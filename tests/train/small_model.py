"""Two towers of a few weights with all that makes accumulation hard: batch norm, dropout, a learned temperature.

And pairs for them.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
from timm.layers import BatchNormAct2d
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from altalign.train.model.batch_norm import BatchNorm
from altalign.train.model.drawn import Mixup

WIDTH, WORDS, VOCABULARY, SIDE = 6, 5, 20, 8


@dataclass(frozen=True)
class Pairs:
    """What altalign.train.data.batches.Batch has that a step needs."""

    keys: list[str]
    images: torch.Tensor
    tokens: torch.Tensor
    mask: torch.Tensor

    def chunk(self, first: int, after: int) -> Self:
        return type(self)(
            self.keys[first:after], self.images[first:after], self.tokens[first:after], self.mask[first:after]
        )

    def to(self, device: torch.device) -> Self:
        return type(self)(self.keys, self.images.to(device), self.tokens.to(device), self.mask.to(device))


def pairs(count: int, seed: int = 0) -> Any:
    """Random pairs; each seed has its own."""
    generator = torch.Generator().manual_seed(seed)
    return Pairs(
        [f"{number:032x}" for number in range(count)],
        torch.randint(256, (count, 3, SIDE, SIDE), generator=generator, dtype=torch.uint8),
        torch.randint(1, VOCABULARY, (count, WORDS), generator=generator),
        torch.arange(WORDS)[None] <= torch.randint(WORDS, (count, 1), generator=generator),
    )


class Temperature(nn.Module):
    def __init__(self, start: float, bias: float | None) -> None:
        super().__init__()
        self.logarithm = nn.Parameter(torch.tensor(start, dtype=torch.float64).log())
        self.bias = None if bias is None else nn.Parameter(torch.tensor(bias, dtype=torch.float64))

    def forward(self) -> torch.Tensor:
        return self.value() if self.bias is None else torch.stack([self.value(), self.bias])

    def value(self) -> torch.Tensor:
        return self.logarithm.exp()


class ImageTower(nn.Module):
    def __init__(self, statistics: Any, group: int, dropout: float, *, checkpointing: bool) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, stride=2, bias=False)
        self.norm = BatchNorm(BatchNormAct2d(4, act_layer=nn.SiLU), statistics=statistics, group=group)
        self.dropout, self.linear = nn.Dropout(dropout), nn.Linear(4, WIDTH)
        self.checkpointing = checkpointing

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.to(self.linear.weight.dtype) / 128 - 1
        return checkpoint(self._features, pixels, use_reentrant=False) if self.checkpointing else self._features(pixels)

    def _features(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.linear(self.dropout(self.norm(self.convolution(pixels)).mean((2, 3))))


class TextTower(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.words, self.dropout, self.linear = nn.Embedding(VOCABULARY, 8), nn.Dropout(dropout), nn.Linear(8, WIDTH)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        words = self.dropout(self.words(tokens)) * mask[..., None]
        return self.linear(words.sum(1) / mask.sum(1, keepdim=True))


class SmallModel(nn.Module):
    """In float64 and training mode; the same weights each time."""

    packs_captions = False

    def __init__(
        self,
        *,
        statistics: Any = "ghost",
        group: int = 4,
        dropout: float = 0.3,
        temperature: float = 0.2,
        bias: float | None = None,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.image_tower, self.text_tower = (
            ImageTower(statistics, group, dropout, checkpointing=checkpointing),
            TextTower(dropout),
        )
        self.temperature = Temperature(temperature, bias)
        self.double().train()

    def forward(
        self, images: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor, *, mixup: Mixup | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        seen = mixup.mixed(images.double()) if mixup and mixup.mixes == "images" else images
        texts = self.text_tower(tokens, mask)
        if mixup and mixup.mixes == "texts":
            texts = mixup.mixed(texts)
        return functional.normalize(self.image_tower(seen), dim=1), functional.normalize(texts, dim=1)


def small_model(**settings: Any) -> Any:
    """A SmallModel, in place of a DualEncoder."""
    return SmallModel(**settings)


def gradients_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """The gradient of each parameter that has one."""
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
