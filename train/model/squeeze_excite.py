"""Squeeze-and-excitation as timm has it (`SqueezeExcite`), which a GPU goes through in fewer passes.

Between batch norms it is most of what an EfficientNet moves: as operations of torch its backward goes through the
images eleven times, here six.
"""

from typing import Any

import torch
from timm.models._efficientnet_blocks import SqueezeExcite as OfTimm
from torch import nn
from torch.autograd.function import once_differentiable

from altalign.train.model.blocks import replace
from altalign.train.model.normalise import kernels_for


class SqueezeExcite(nn.Module):
    """Images times gates, which are made of their means; the names of its state are timm's."""

    def __init__(self, replaced: Any) -> None:
        super().__init__()
        self.conv_reduce, self.act1 = replaced.conv_reduce, replaced.act1
        self.conv_expand, self.gate = replaced.conv_expand, replaced.gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images (n, channels, height, width), gated by channel."""
        if torch.compiler.is_compiling() or kernels_for(x) is None:
            return x * self._gates(x.mean((2, 3), keepdim=True))
        images, means = _Squeeze.apply(x)  # type: ignore[misc]
        return _Excite.apply(images, self._gates(means))  # type: ignore[return-value]

    def _gates(self, means: torch.Tensor) -> torch.Tensor:
        return self.gate(self.conv_expand(self.act1(self.conv_reduce(means))))


def convert(module: nn.Module) -> None:
    """Put a SqueezeExcite in the place of each of timm's, with its weights."""
    replace(module, OfTimm, SqueezeExcite)


class _Squeeze(torch.autograd.Function):
    """The images as they are, and their means (n, channels, 1, 1): the gradients of both are added in one pass."""

    @staticmethod
    def forward(ctx: Any, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        ctx.pixels = images.shape[2] * images.shape[3]
        return images.view_as(images), images.mean((2, 3), keepdim=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, of_means: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        kernels, shift = kernels_for(gradient), of_means[:, :, 0, 0].float() / ctx.pixels
        return kernels.shifted(gradient, torch.ones_like(shift), shift)


class _Excite(torch.autograd.Function):
    """Images times gates (n, channels, 1, 1)."""

    @staticmethod
    def forward(ctx: Any, images: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(images, gates)
        return _times(images, gates)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        images, gates = ctx.saved_tensors
        of_gates = kernels_for(images).sums_of_products(gradient, images)
        return _times(gradient, gates), of_gates.to(gates.dtype)[:, :, None, None]


def _times(images: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    scale = gates[:, :, 0, 0].float()
    return kernels_for(images).shifted(images, scale, torch.zeros_like(scale))
