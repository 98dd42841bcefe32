"""What an EfficientNet moves most, in fewer passes: normalisation with SiLU, and squeeze-and-excitation.

Normalisation is by statistics of groups of consecutive images. It keeps its input, and two numbers per channel and
group: the gradient computes again what it needs of the activation. The same formula several times, for speed:
`_traceable` is what `torch.compile` fuses, and the twin that the others are tested against; on a CPU torch's own kernel
goes through the groups one by one (2 to 4 times as fast); elsewhere, and over ranks, `moments`, `scaled`,
`sums_of_gradients` and `gradient_of_input` take all groups at once, on a GPU by `gpu_kernels`. Statistics are float32
(float64 for float64), variances biased.
"""

import sys
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import distributed, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from altalign.train.model.blocks import EIGHT, Scales, is_on_cpu

WITHIN = (1, 3, 4)  # what a group's statistics run over, of (groups, images of a group, channels, height, width)


# images, and means and variances of groups, which have no gradient
Normalised = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class How(NamedTuple):
    """How images are normalised."""

    epsilon: float  # added to variances
    group: int  # images of a group; their number is a multiple
    swish: bool  # SiLU follows
    sync: bool = False  # the one group is of all ranks' images


def normalise(images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, how: How) -> Normalised:
    """Normalised images (n, channels, height, width; n above 0), and means and variances (groups, channels)."""
    if how.sync:
        return _synchronised(images, weight, bias, how)  # type: ignore[call-arg]
    if torch.compiler.is_compiling():
        return _traceable(images, weight, bias, how)
    return _Normalise.apply(images, weight, bias, how)  # type: ignore[return-value]


@torch.compiler.disable  # collectives are not traced
def _synchronised(images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, how: How) -> Normalised:
    return _Normalise.apply(images, weight, bias, how)  # type: ignore[return-value]


def _traceable(images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, how: How) -> Normalised:
    mean, variance = moments(images, how.group)
    normalised = scaled(images, Scales(weight, bias, mean, torch.rsqrt(variance + how.epsilon)), swish=how.swish)
    return normalised, mean.detach(), variance.detach()


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, how: How) -> Normalised:  # type: ignore[override]
        ctx.by_group, ctx.swish, total = is_on_cpu(images) and not how.sync, how.swish, None
        if ctx.by_group:
            normalised, mean, variance, inverse = _forward_by_group(images, weight, bias, how)
        else:
            steps = kernels_for(images) or _OWN
            mean, variance = steps.moments(images, how.group)
            if how.sync:
                mean, variance, total = _over_ranks(mean, variance, how.group * images.shape[2:].numel())
            inverse = torch.rsqrt(variance + how.epsilon)
            normalised = steps.scaled(images, Scales(weight, bias, mean, inverse), swish=how.swish)
        ctx.save_for_backward(images, weight, bias, mean, inverse, total)
        ctx.mark_non_differentiable(mean, variance)
        ctx.set_materialize_grads(False)  # no zeros for what has no gradient
        return normalised, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor | None, *_: None) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        if gradient is None:
            return None, None, None, None
        images, *scales, total = ctx.saved_tensors
        known = Scales(*scales)
        if ctx.by_group:
            return (*_backward_by_group(gradient, images, known, swish=ctx.swish), None)
        steps = kernels_for(images) or _OWN
        sums = steps.sums_of_gradients(gradient, images, known, swish=ctx.swish)
        of_bias, of_weight = sums.sum(1).to(known.weight.dtype)  # this rank's, as those of other layers are
        if total is not None:
            distributed.all_reduce(sums)
        elements = images.shape[0] // known.groups * images.shape[2:].numel() if total is None else total
        of_images = steps.gradient_of_input(gradient, images, known, sums / elements, swish=ctx.swish)
        return of_images, of_weight, of_bias, None


_OWN: Any = sys.modules[__name__]


def kernels_for(images: torch.Tensor) -> Any:
    """The module `gpu_kernels`, if it can compute with such images, or None."""
    if not images.is_cuda or images.dtype == torch.float64 or images.shape[1] % EIGHT or not _has_triton():
        return None
    from altalign.train.model import gpu_kernels

    return gpu_kernels if gpu_kernels.compile_for(images.device) else None


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _over_ranks(mean: torch.Tensor, variance: torch.Tensor, elements: int) -> Normalised:
    """Mean and variance (1, channels) of all ranks' images, and their numbers per channel; ranks may differ in size."""
    own = torch.cat([mean, variance, torch.full_like(mean, elements)])
    every = own.new_empty(distributed.get_world_size(), *own.shape)
    distributed.all_gather(list(every.unbind()), own)
    means, variances, counts = every.unbind(1)
    total = counts.sum(0, keepdim=True)
    together = (means * counts).sum(0, keepdim=True) / total
    return together, ((variances + (means - together).square()) * counts).sum(0, keepdim=True) / total, total


# Steps over all groups at once ----------------------------------------------------------------------------------------


def _grouped(images: torch.Tensor, groups: int) -> torch.Tensor:
    return images.unflatten(0, (groups, images.shape[0] // groups))


def _wide(numbers: torch.Tensor) -> torch.Tensor:
    """(groups, channels), or (channels), as it is broadcast to grouped images."""
    return numbers[..., None, :, None, None]


def moments(images: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and biased variance (groups, channels) of each group."""
    exact = images.to(torch.promote_types(images.dtype, torch.float32))
    variance, mean = torch.var_mean(_grouped(exact, images.shape[0] // group), dim=WITHIN, correction=0)
    return mean, variance


def scaled(images: torch.Tensor, known: Scales, *, swish: bool) -> torch.Tensor:
    """(images - mean) x inverse x weight + bias, then SiLU."""
    scale = known.weight * known.inverse
    normalised = _grouped(images, known.groups) * _wide(scale) + _wide(known.bias - known.mean * scale)
    return (functional.silu(normalised) if swish else normalised).to(images.dtype).flatten(0, 1)


def _before_activation(
    gradient: torch.Tensor, images: torch.Tensor, known: Scales, *, swish: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient by what SiLU was taken of, and the images normalised (before weight and bias), both grouped."""
    normalised = (_grouped(images, known.groups) - _wide(known.mean)) * _wide(known.inverse)
    outer = _grouped(gradient, known.groups).to(normalised.dtype)
    if swish:
        outer = torch.ops.aten.silu_backward(outer, normalised * _wide(known.weight) + _wide(known.bias))
    return outer, normalised


def sums_of_gradients(gradient: torch.Tensor, images: torch.Tensor, known: Scales, *, swish: bool) -> torch.Tensor:
    """Derivatives by each group's shift and scale (2, groups, channels)."""
    outer, normalised = _before_activation(gradient, images, known, swish=swish)
    return torch.stack([outer.sum(WITHIN), (outer * normalised).sum(WITHIN)])


def gradient_of_input(
    gradient: torch.Tensor, images: torch.Tensor, known: Scales, means: torch.Tensor, *, swish: bool
) -> torch.Tensor:
    """The derivative by the images; `means` are `sums_of_gradients` divided by the numbers of a group."""
    shift, slope = means
    outer, normalised = _before_activation(gradient, images, known, swish=swish)
    inner = (outer - _wide(shift) - normalised * _wide(slope)) * _wide(known.weight * known.inverse)
    return inner.to(images.dtype).flatten(0, 1)


# Group by group -------------------------------------------------------------------------------------------------------


def _forward_by_group(
    images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, how: How
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images normalised, means, variances, inverses."""
    normalised = torch.empty_like(images)
    exact = torch.promote_types(images.dtype, torch.float32)
    mean, inverse = (weight.new_empty(len(images) // how.group, len(weight), dtype=exact) for _ in range(2))
    for part, *out in zip(images.split(how.group), normalised.split(how.group), mean, inverse, strict=True):
        torch.native_batch_norm(
            part, weight, bias, None, None, training=True, momentum=0.0, eps=how.epsilon, out=tuple(out)
        )
    variance = (inverse.square().reciprocal() - how.epsilon).clamp(min=0)
    return functional.silu(normalised, inplace=True) if how.swish else normalised, mean, variance, inverse


def _backward_by_group(gradient: torch.Tensor, images: torch.Tensor, known: Scales, *, swish: bool) -> Normalised:
    """Derivatives by images, weight and bias."""
    group, parts = images.shape[0] // known.groups, []
    split = zip(images.split(group), gradient.split(group), known.mean, known.inverse, strict=True)
    for part, after, mean, inverse in split:
        outer = after
        if swish:
            scale = known.weight * inverse
            before = (part * scale[:, None, None]).add_((known.bias - mean * scale)[:, None, None])
            outer = torch.ops.aten.silu_backward(after.to(before.dtype), before).to(part.dtype)
        backward = torch.ops.aten.native_batch_norm_backward
        masked = {"train": True, "eps": 0.0, "output_mask": [True, True, True]}
        parts.append(backward(outer, part, known.weight, None, None, mean, inverse, **masked))
    of_images = torch.cat([part[0] for part in parts]) if len(parts) > 1 else parts[0][0]
    return of_images, torch.stack([part[1] for part in parts]).sum(0), torch.stack([part[2] for part in parts]).sum(0)


# Squeeze-and-excitation -----------------------------------------------------------------------------------------------


class SqueezeExcite(nn.Module):
    """timm's, with its weights and names; its backward goes through the images six times, not eleven."""

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
