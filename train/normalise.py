"""Normalisation by the statistics of groups of consecutive images, with SiLU after it, of which nothing is kept but the input and two numbers a channel and group.

An activation that follows batch norm as an operation of its own keeps a second tensor of the input's size for its
gradient. Here both are one operation, whose gradient computes what it needs of it again from the input.

The same formula three times, for speed: `_traceable` is what `torch.compile` fuses, and the twin that the others are
tested against; on a CPU torch's own kernel goes through the groups one by one (2 to 4 times as fast); elsewhere the
steps `moments`, `scaled`, `sums_of_gradients` and `gradient_of_input` take all groups at once.

Statistics are float32 (float64 for float64), variances biased.
"""

from typing import Any

import torch
from torch import distributed
from torch.autograd.function import once_differentiable
from torch.nn import functional

WITHIN = (1, 3, 4)  # what a group's statistics run over, of (groups, images of a group, channels, height, width)
Normalised = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # like the images; means and variances (groups, channels), without gradient


def normalise(images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, epsilon: float, group: int, swish: bool, sync: bool) -> Normalised:
    """Normalise images (n, channels, height, width) by groups of `group` (n is a multiple), or by one group of all ranks' (`sync`), then SiLU (`swish`)."""
    if sync:
        return _synchronised(images, weight, bias, epsilon, group, swish)
    if torch.compiler.is_compiling():
        return _traceable(images, weight, bias, epsilon, group, swish)
    return _Normalise.apply(images, weight, bias, epsilon, group, swish, False)  # type: ignore[return-value]


@torch.compiler.disable  # collectives are not traced
def _synchronised(images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float, group: int, swish: bool) -> Normalised:  # noqa: FBT001
    return _Normalise.apply(images, weight, bias, epsilon, group, swish, True)  # type: ignore[return-value]


def _traceable(images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float, group: int, swish: bool) -> Normalised:  # noqa: FBT001
    mean, variance = moments(images, group)
    normalised = scaled(images, weight, bias, mean, torch.rsqrt(variance + epsilon), swish=swish)
    return normalised, mean.detach(), variance.detach()


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        images: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        epsilon: float,
        group: int,
        swish: bool,  # noqa: FBT001
        sync: bool,  # noqa: FBT001
    ) -> Normalised:
        context.by_group = images.device.type == "cpu" and not sync
        total = None
        if context.by_group:
            normalised, mean, variance, inverse = _forward_by_group(images, weight, bias, epsilon, group, swish=swish)
        else:
            mean, variance = moments(images, group)
            if sync:
                mean, variance, total = _over_ranks(mean, variance, _elements(images, group))
            inverse = torch.rsqrt(variance + epsilon)
            normalised = scaled(images, weight, bias, mean, inverse, swish=swish)
        context.save_for_backward(images, weight, bias, mean, inverse, total)
        context.swish = swish
        context.mark_non_differentiable(mean, variance)
        return normalised, mean, variance

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        images, weight, bias, mean, inverse, total = context.saved_tensors
        if context.by_group:
            return (*_backward_by_group(gradient, images, weight, bias, mean, inverse, swish=context.swish), None, None, None, None)
        shift, slope = sums_of_gradients(gradient, images, weight, bias, mean, inverse, swish=context.swish)
        of_weight, of_bias = slope.sum(0).to(weight.dtype), shift.sum(0).to(bias.dtype)  # of this rank, as those of other layers
        elements: float | torch.Tensor = _elements(images, images.shape[0] // mean.shape[0])
        if total is not None:
            both = torch.stack([shift, slope])
            distributed.all_reduce(both)
            shift, slope, elements = both[0], both[1], total
        of_images = gradient_of_input(gradient, images, weight, bias, mean, inverse, shift / elements, slope / elements, swish=context.swish)
        return of_images, of_weight, of_bias, None, None, None, None


def _elements(images: torch.Tensor, group: int) -> int:
    return group * images.shape[2] * images.shape[3]


def _over_ranks(mean: torch.Tensor, variance: torch.Tensor, elements: int) -> Normalised:
    """Mean and variance (1, channels) of all ranks' images, and how many elements a channel has there; ranks may differ in size."""
    own = torch.cat([mean, variance, torch.full_like(mean, elements)])
    every = own.new_empty(distributed.get_world_size(), *own.shape)
    distributed.all_gather(list(every.unbind()), own)
    means, variances, counts = every.unbind(1)
    total = counts.sum(0, keepdim=True)
    together = (means * counts).sum(0, keepdim=True) / total
    return together, ((variances + (means - together).square()) * counts).sum(0, keepdim=True) / total, total


# Steps over all groups at once -------------------------------------------------------------------------------------------


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


def scaled(images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, mean: torch.Tensor, inverse: torch.Tensor, *, swish: bool) -> torch.Tensor:
    """(images - mean) x inverse x weight + bias, then SiLU."""
    scale = weight * inverse
    normalised = _grouped(images, mean.shape[0]) * _wide(scale) + _wide(bias - mean * scale)
    return (functional.silu(normalised) if swish else normalised).to(images.dtype).flatten(0, 1)


def _before_activation(
    gradient: torch.Tensor, images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, mean: torch.Tensor, inverse: torch.Tensor, *, swish: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of what SiLU was taken of, and the normalised images, both grouped."""
    normalised = (_grouped(images, mean.shape[0]) - _wide(mean)) * _wide(inverse)
    outer = _grouped(gradient, mean.shape[0]).to(normalised.dtype)
    if swish:
        outer = torch.ops.aten.silu_backward(outer, normalised * _wide(weight) + _wide(bias))
    return outer, normalised


def sums_of_gradients(
    gradient: torch.Tensor, images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, mean: torch.Tensor, inverse: torch.Tensor, *, swish: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Derivatives by each group's shift and scale (groups, channels)."""
    outer, normalised = _before_activation(gradient, images, weight, bias, mean, inverse, swish=swish)
    return outer.sum(WITHIN), (outer * normalised).sum(WITHIN)


def gradient_of_input(
    gradient: torch.Tensor,
    images: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    inverse: torch.Tensor,
    shift: torch.Tensor,
    slope: torch.Tensor,
    *,
    swish: bool,
) -> torch.Tensor:
    """The derivative by the images, through the statistics too: `shift` and `slope` are `sums_of_gradients` by the elements of a group."""
    outer, normalised = _before_activation(gradient, images, weight, bias, mean, inverse, swish=swish)
    inner = (outer - _wide(shift) - normalised * _wide(slope)) * _wide(weight * inverse)
    return inner.to(images.dtype).flatten(0, 1)


# Group by group ----------------------------------------------------------------------------------------------------------


def _forward_by_group(
    images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float, group: int, *, swish: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    parts = [torch.native_batch_norm(part, weight, bias, None, None, True, 0.0, epsilon) for part in images.split(group)]
    normalised = torch.cat([part[0] for part in parts]) if len(parts) > 1 else parts[0][0]
    mean, inverse = (torch.stack([part[number] for part in parts]) for number in (1, 2))
    variance = (inverse.square().reciprocal() - epsilon).clamp(min=0)
    return functional.silu(normalised, inplace=True) if swish else normalised, mean, variance, inverse


def _backward_by_group(
    gradient: torch.Tensor, images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, mean: torch.Tensor, inverse: torch.Tensor, *, swish: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    group = images.shape[0] // mean.shape[0]
    parts = []
    for part, outer, centre, factor in zip(images.split(group), gradient.split(group), mean, inverse, strict=True):
        if swish:
            scale = weight * factor
            before = part * scale[:, None, None] + (bias - centre * scale)[:, None, None]
            outer = torch.ops.aten.silu_backward(outer.to(before.dtype), before).to(part.dtype)  # noqa: PLW2901
        parts.append(torch.ops.aten.native_batch_norm_backward(outer, part, weight, None, None, centre, factor, True, 0.0, [True, True, True]))
    of_images = torch.cat([part[0] for part in parts]) if len(parts) > 1 else parts[0][0]
    return of_images, torch.stack([part[1] for part in parts]).sum(0), torch.stack([part[2] for part in parts]).sum(0)
