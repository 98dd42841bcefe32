"""Batch norm by statistics of groups, of a chunk, of all devices or fixed; running statistics move once a step.

A training step goes through the towers twice and in chunks (train/step/accumulation.py). So a forward in training mode
normalises with its own statistics and never touches the running ones: it adds to sums inside `with collecting(model)`,
and `apply_collected` moves the running statistics once, by the mean over all groups of the global batch. Variances are
biased, the running ones too, as Keras has them. A last group that is smaller counts by its images.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from timm.layers import BatchNormAct2d  # pyright: ignore[reportPrivateImportUsage]
from torch import distributed, nn
from torch.nn import functional

from altalign.train.model.blocks import replace
from altalign.train.model.normalise import How, normalise

_many: Any = torch  # `_foreach_*` are private by name alone
Statistics = Literal["ghost", "local", "sync", "frozen"]


class BatchNorm(nn.BatchNorm2d):
    """timm's BatchNormAct2d, activation included, with the statistics of this module.

    Weights, activation, settings and names are those of the layer it replaces. `momentum` is torch's: the share of the
    new, 1 - Keras' momentum. In evaluation every kind uses the running statistics.
    """

    momentum: float  # type: ignore[assignment]  # torch's may be None, as running statistics may: these are not
    running_mean: torch.Tensor  # type: ignore[assignment]
    running_var: torch.Tensor  # type: ignore[assignment]
    num_batches_tracked: torch.Tensor  # type: ignore[assignment]
    drop: nn.Module
    act: nn.Module

    def __init__(self, replaced: Any, *, statistics: Statistics, group: int) -> None:
        factory = {"device": replaced.weight.device, "dtype": replaced.weight.dtype}
        super().__init__(replaced.num_features, eps=replaced.eps, momentum=replaced.momentum, **factory)
        self.load_state_dict(replaced.state_dict())
        self.drop, self.act = replaced.drop, replaced.act
        self.statistics: Statistics = statistics
        self.group, self.collects = group, False
        # of means, of variances, of images, in a row; no buffer: neither saved nor broadcast
        self.sums = torch.empty(0)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """Normalise and activate images (n, channels, height, width)."""
        if not self.training or self.statistics == "frozen":
            fixed = functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
            )
            return self.act(self.drop(fixed))
        count = input.shape[0]
        group = max(1, min(self.group, count) if self.statistics == "ghost" else count)
        if not (rest := count % group):
            return self._with_own_statistics(input, group)
        parts = (input[:-rest], group), (input[-rest:], rest)
        return torch.cat([self._with_own_statistics(images, size) for images, size in parts])

    def _with_own_statistics(self, images: torch.Tensor, group: int) -> torch.Tensor:
        """Normalise and activate whole groups."""
        swish = type(self.act) is nn.SiLU and type(self.drop) is nn.Identity
        sync = self.statistics == "sync" and distributed.is_available() and distributed.is_initialized()
        normalised, mean, variance = normalise(images, self.weight, self.bias, How(self.eps, group, swish, sync))
        if self.collects:
            number = mean.new_full((1,), images.shape[0])
            self.sums.add_(torch.cat([mean.sum(0) * group, variance.sum(0) * group, number]))
        return normalised if swish else self.act(self.drop(normalised))

    def own_sums(self) -> torch.Tensor:
        """The sums (2 x channels + 1) on the device of the running statistics: always one tensor, for compiled code."""
        if not self.sums.numel():
            self.sums = self.running_var.new_zeros(2 * self.num_features + 1)
        self.sums = self.sums.to(self.running_var)
        return self.sums


def convert(module: nn.Module, *, statistics: Statistics, group: int) -> None:
    """Put a BatchNorm in the place of each of timm's, with its weights and activation."""
    replace(module, BatchNormAct2d, functools.partial(BatchNorm, statistics=statistics, group=group))


def _collecting_layers(model: nn.Module) -> list[BatchNorm]:
    """Layers of which a forward in training mode has statistics of its own."""
    layers = [layer for layer in model.modules() if isinstance(layer, BatchNorm)]
    return [layer for layer in layers if layer.training and layer.statistics != "frozen"]


@contextmanager
def collecting(model: nn.Module) -> Iterator[None]:
    """Forwards in training mode inside add the statistics of their groups to the model's sums.

    For forwards alone, each image's once: a backward inside would add again what activation checkpointing computes
    again.
    """
    layers = _collecting_layers(model)
    for layer in layers:
        layer.own_sums()
        layer.collects = True
    try:
        yield
    finally:
        for layer in layers:
            layer.collects = False


def collects(model: nn.Module) -> bool:
    """Whether a forward now adds to the sums."""
    return any(isinstance(layer, BatchNorm) and layer.collects for layer in model.modules())


@contextmanager
def sums_kept(model: nn.Module) -> Iterator[None]:
    """Whatever forwards inside add to the sums is taken back."""
    layers = [layer for layer in _collecting_layers(model) if layer.collects]
    before = [layer.own_sums().clone() for layer in layers]
    try:
        yield
    finally:
        for layer, sums in zip(layers, before, strict=True):
            layer.own_sums().copy_(sums)


def collected(model: nn.Module) -> torch.Tensor:
    """The sums since the last `apply_collected`, of all layers in a row, to be added over ranks; perhaps empty."""
    layers = _collecting_layers(model)
    sums = [layer.own_sums() for layer in layers]
    return torch.cat(sums) if sums else torch.empty(0, device=next(model.parameters()).device)


@torch.no_grad()
def apply_collected(model: nn.Module, total: torch.Tensor) -> None:
    """Move the running statistics to momentum x running + (1 - momentum) x mean over groups, and empty the sums.

    `total` is what `collected` gave, added over ranks; the model is in training mode, as it was then.
    """
    layers = _collecting_layers(model)
    if not layers:
        return
    (momentum,) = {layer.momentum for layer in layers}
    running = [numbers for layer in layers for numbers in (layer.running_mean, layer.running_var)]
    # all layers at once: by itself each would take a dozen small operations
    of_layers = total.split([2 * layer.num_features + 1 for layer in layers])
    counts = torch.stack([sums[-1] for sums in of_layers])
    images = counts[_layer_numbers(tuple(layer.num_features for layer in layers), total.device)]
    means = torch.cat([sums[:-1] for sums in of_layers]) / images.clamp(min=1)
    share = torch.where(images > 0, momentum, 0.0)  # no image among them: no move
    before = torch.cat(running)
    after = before.lerp(means.to(before), share.to(before))
    _many._foreach_copy_(running, after.split([len(numbers) for numbers in running]))
    tracked = [layer.num_batches_tracked for layer in layers]
    _many._foreach_add_(tracked, (counts > 0).to(tracked[0].dtype).unbind())
    _many._foreach_zero_([layer.own_sums() for layer in layers])


@functools.cache
def _layer_numbers(widths: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """The layer of each mean and each variance, of layers of these widths in a row."""
    return torch.arange(len(widths)).repeat_interleave(2 * torch.tensor(widths)).to(device)
