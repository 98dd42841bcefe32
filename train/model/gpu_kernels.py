"""The steps of `normalise` on a GPU, each in one pass over the images, by Triton, which comes with torch's CUDA builds.

As operations of torch they would be ten passes, most of them over float32: an EfficientNet is bound by memory, and
batch norm with SiLU is most of what it moves.

Images lie channels last: those of a group are a table of rows (one a pixel) by channels, of which a program goes
through tiles. Sums are float32, of parts of a group in a fixed order: the same numbers each time. Variances are of
distances from the mean of the group's first rows, so that nothing cancels where means are large.
"""

# pyright: reportMissingParameterType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# Triton's programs are written in Triton's language, which has types of its own.

import functools
from typing import Any, NamedTuple

import torch
import triton
from triton import knobs
from triton import language as tl
from triton.language.extra import libdevice

from altalign import terminal
from altalign.train.model.blocks import EIGHT, Scales


class _Way(NamedTuple):
    """How a program goes through the images."""

    tile: int  # numbers of a tile
    stages: int = 1  # tiles that are on their way while one is computed with


# The fastest of 22 on an H200, over seven layers of EfficientNet-B3 with 256 images.
_MOMENTS, _SCALED, _SUMS, _GRADIENT = _Way(4096, 3), _Way(2048), _Way(2048, 3), _Way(2048)
_CHANNELS_AT_MOST = 64  # of a tile
_WARPS = 4
_PROGRAMS = 2048  # that sum at the same time, about
_QUICK = tl.constexpr(not knobs.runtime.interpret)  # the interpreter has no functions of a GPU's own

# one program for all sizes: by itself Triton would compile one more for each kind of number
_OF_ALL_SIZES: Any = {"do_not_specialize": ["rows", "eighths", "tiles"]}


@triton.jit
def _tile(rows, eighths, CHANNELS: tl.constexpr, ROWS: tl.constexpr):  # noqa: N803 - Triton's constants
    """Where a program works.

    Channels of the images; those of the program, and which of them there are; where its group begins; and the places of
    a tile's numbers from its first row on.
    """
    channels = eighths * 8
    column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    begin = tl.program_id(2).to(tl.int64) * rows * channels
    return channels, column, column < channels, begin, _places(channels, column, ROWS)


@triton.jit
def _places(channels, column, ROWS: tl.constexpr):  # noqa: N803
    """Where the numbers of some rows are, from the first row on."""
    return tl.arange(0, ROWS)[:, None] * channels + column[None, :]


@triton.jit
def _inside(first, rows, known, ROWS: tl.constexpr):  # noqa: N803
    """Which numbers of the tile that begins with a row there are."""
    return (first + tl.arange(0, ROWS) < rows)[:, None] & known[None, :]


@triton.jit
def _sigmoid(numbers):
    """1 / (1 + exp(-x)); quick: within 1e-6 of it, by a third of the instructions."""
    if _QUICK:
        return libdevice.fast_dividef(1.0, 1.0 + libdevice.fast_expf(-numbers))
    return tl.sigmoid(numbers)


@triton.jit
def _read(numbers, places, inside):
    return tl.load(numbers + places, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _read_scales(mean, inverse, weight, bias, of_group, column, known):
    """Of the program's channels: mean and inverse of its group, weight and bias."""
    return (
        _read(mean, of_group, known),
        _read(inverse, of_group, known),
        _read(weight, column, known),
        _read(bias, column, known),
    )


@triton.jit
def _before_activation(gradient, image, mean, inverse, weight, bias, SWISH: tl.constexpr):  # noqa: N803
    """The gradient by what SiLU was taken of, and the images normalised."""
    normalised = (image - mean[None, :]) * inverse[None, :]
    if SWISH:
        before = normalised * weight[None, :] + bias[None, :]
        share = _sigmoid(before)
        gradient = gradient * share * (1 + before * (1 - share))
    return gradient, normalised


@triton.jit
def _write_part(partial, first, second, channels, column, known):
    """Write two sums over a part's rows, at their places (parts, 2, groups, channels)."""
    partial += (2 * tl.program_id(0) * tl.num_programs(2) + tl.program_id(2)) * channels + column
    tl.store(partial, tl.sum(first, 0), mask=known)
    tl.store(partial + tl.num_programs(2) * channels, tl.sum(second, 0), mask=known)


@triton.jit(**_OF_ALL_SIZES)
def _moments(
    images, pivots, partial, rows, eighths, tiles,
    STAGES: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Sums of distances from the mean of the group's first rows, and of their squares; and that mean."""
    channels, column, known, begin, places = _tile(rows, eighths, CHANNELS, ROWS)
    images += begin
    few: tl.constexpr = ROWS // 4
    some = _read(images, _places(channels, column, few), _inside(0, rows, known, few))
    pivot = tl.sum(some, 0) / tl.minimum(rows, few)
    if tl.program_id(0) == 0:
        tl.store(pivots + tl.program_id(2) * channels + column, pivot, mask=known)
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    squares = tl.zeros((ROWS, CHANNELS), tl.float32)
    first = tl.program_id(0) * tiles * ROWS
    images += first.to(tl.int64) * channels
    for tile in tl.range(tiles, num_stages=STAGES):
        inside = _inside(first + tile * ROWS, rows, known, ROWS)
        away = tl.where(inside, _read(images, places, inside) - pivot[None, :], 0.0)
        total += away
        squares += away * away
        images += ROWS * channels
    _write_part(partial, total, squares, channels, column, known)


@triton.jit(**_OF_ALL_SIZES)
def _scaled(
    images, scale, shift, out, rows, eighths,
    SWISH: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    channels, column, known, begin, places = _tile(rows, eighths, CHANNELS, ROWS)
    first = tl.program_id(0) * ROWS
    begin += first.to(tl.int64) * channels
    inside = _inside(first, rows, known, ROWS)
    of_group = tl.program_id(2) * channels + column
    factor, summand = _read(scale, of_group, known), _read(shift, of_group, known)
    normalised = _read(images + begin, places, inside) * factor[None, :] + summand[None, :]
    if SWISH:
        normalised = normalised * _sigmoid(normalised)
    tl.store(out + begin + places, normalised.to(out.dtype.element_ty), mask=inside)


@triton.jit(**_OF_ALL_SIZES)
def _sums_of_gradients(
    gradients, images, mean, inverse, weight, bias, partial, rows, eighths, tiles,
    SWISH: tl.constexpr, STAGES: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    channels, column, known, begin, places = _tile(rows, eighths, CHANNELS, ROWS)
    of_group = tl.program_id(2) * channels + column
    middle, deviation, factor, summand = _read_scales(mean, inverse, weight, bias, of_group, column, known)
    shift = tl.zeros((ROWS, CHANNELS), tl.float32)
    slope = tl.zeros((ROWS, CHANNELS), tl.float32)
    first = tl.program_id(0) * tiles * ROWS
    begin += first.to(tl.int64) * channels
    for tile in tl.range(tiles, num_stages=STAGES):
        inside = _inside(first + tile * ROWS, rows, known, ROWS)
        image, after = _read(images + begin, places, inside), _read(gradients + begin, places, inside)
        outer, normalised = _before_activation(after, image, middle, deviation, factor, summand, SWISH)
        shift += outer
        slope += outer * normalised
        begin += ROWS * channels
    _write_part(partial, shift, slope, channels, column, known)


@triton.jit(**_OF_ALL_SIZES)
def _gradient_of_input(
    gradients, images, mean, inverse, weight, bias, shift, slope, out, rows, eighths,
    SWISH: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    channels, column, known, begin, places = _tile(rows, eighths, CHANNELS, ROWS)
    first = tl.program_id(0) * ROWS
    begin += first.to(tl.int64) * channels
    inside = _inside(first, rows, known, ROWS)
    of_group = tl.program_id(2) * channels + column
    middle, deviation, factor, summand = _read_scales(mean, inverse, weight, bias, of_group, column, known)
    of_shift, of_slope = _read(shift, of_group, known), _read(slope, of_group, known)
    image, after = _read(images + begin, places, inside), _read(gradients + begin, places, inside)
    outer, normalised = _before_activation(after, image, middle, deviation, factor, summand, SWISH)
    inner = (outer - of_shift[None, :] - normalised * of_slope[None, :]) * (factor * deviation)[None, :]
    tl.store(out + begin + places, inner.to(out.dtype.element_ty), mask=inside)


@functools.cache
def compile_for(device: torch.device) -> bool:
    """Whether Triton compiles for a device: it wants a C compiler, and a GPU that it knows. Says where it does not."""
    images = torch.zeros(1, _CHANNELS_AT_MOST, 1, 1, dtype=torch.bfloat16, device=device)
    ones = torch.ones(_CHANNELS_AT_MOST, device=device)
    try:
        mean, variance = moments(images, 1)
        known = Scales(ones, ones, mean, variance)
        means = sums_of_gradients(scaled(images, known, swish=True), images, known, swish=True)
        gradient_of_input(images, images, known, means, swish=True)
    except Exception as error:  # whatever stops it, there is another way
        reason = " ".join(str(error).split())[:200]
        terminal.stderr().print(
            f"Triton does not compile here ({type(error).__name__}: {reason}); batch norm and squeeze-and-excitation "
            "are computed in more passes, which takes longer",
            style="yellow",
        )
        return False
    return True


def moments(images: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As `normalise.moments`."""
    images = _last(images)
    groups = images.shape[0] // group
    partial, grid, shape = _in_parts(images, groups, _MOMENTS)
    pivots = torch.empty(groups, images.shape[1], dtype=torch.float32, device=images.device)
    launched(_moments, grid, images, pivots, partial, *shape)
    away, squares = partial.sum(0) / (group * images.shape[2] * images.shape[3])
    return pivots + away, torch.addcmul(squares, away, away, value=-1).clamp_(min=0)


def scaled(images: torch.Tensor, known: Scales, *, swish: bool) -> torch.Tensor:
    """As `normalise.scaled`."""
    scale = known.weight * known.inverse
    return shifted(images, scale, torch.addcmul(known.bias, known.mean, scale, value=-1), swish=swish)


def shifted(images: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, *, swish: bool = False) -> torch.Tensor:
    """Images x scale + shift, then SiLU.

    Args:
        images: (n, channels, height, width).
        scale: of each channel in each group of consecutive images, float32 (groups, channels).
        shift: likewise.
        swish: whether SiLU follows.
    """
    images = _last(images)
    out = torch.empty_like(images)
    grid, shape = _at_once(images, len(scale), _SCALED)
    launched(_scaled, grid, images, scale.contiguous(), shift.contiguous(), out, *shape, SWISH=swish)
    return out


def sums_of_gradients(gradient: torch.Tensor, images: torch.Tensor, known: Scales, *, swish: bool) -> torch.Tensor:
    """As `normalise.sums_of_gradients`."""
    return _sums(gradient, images, _numbers(known), swish=swish)


def _sums(
    gradient: torch.Tensor, images: torch.Tensor, numbers: tuple[torch.Tensor, ...], *, swish: bool
) -> torch.Tensor:
    images, gradient = _last(images), _last(gradient)
    partial, grid, shape = _in_parts(images, len(numbers[0]), _SUMS)
    launched(_sums_of_gradients, grid, gradient, images, *numbers, partial, *shape, SWISH=swish)
    return partial.sum(0)


def sums_of_products(gradient: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """The sums of gradient x image, over the pixels of each channel of each image: float32 (n, channels)."""
    n, channels = images.shape[:2]
    zeros = torch.zeros(n, channels, dtype=torch.float32, device=images.device)
    ones = torch.ones_like(zeros)
    return _sums(gradient, images, (zeros, ones, ones[0], zeros[0]), swish=False)[1]


def gradient_of_input(
    gradient: torch.Tensor, images: torch.Tensor, known: Scales, means: torch.Tensor, *, swish: bool
) -> torch.Tensor:
    """As `normalise.gradient_of_input`."""
    images, gradient = _last(images), _last(gradient)
    out = torch.empty_like(images)
    grid, shape = _at_once(images, known.groups, _GRADIENT)
    launched(_gradient_of_input, grid, gradient, images, *_numbers(known), *means, out, *shape, SWISH=swish)
    return out


def _last(images: torch.Tensor) -> torch.Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def _numbers(known: Scales) -> tuple[torch.Tensor, ...]:
    """Mean and inverse by group, weight and bias: each in a row."""
    return known.mean.contiguous(), known.inverse.contiguous(), known.weight, known.bias


def _sizes(images: torch.Tensor, groups: int, way: _Way) -> tuple[int, int, dict[str, int]]:
    """Rows of a group, channels, and a tile's sides."""
    rows, channels = images.shape[0] // groups * images.shape[2] * images.shape[3], images.shape[1]
    wide = min(triton.next_power_of_2(channels), _CHANNELS_AT_MOST)
    return rows, channels, {"CHANNELS": wide, "ROWS": way.tile // wide}


def _at_once(images: torch.Tensor, groups: int, way: _Way) -> tuple[tuple[int, int, int], tuple[Any, ...]]:
    rows, channels, sides = _sizes(images, groups, way)
    grid = triton.cdiv(rows, sides["ROWS"]), triton.cdiv(channels, sides["CHANNELS"]), groups
    return grid, (rows, channels // EIGHT, sides)


def _in_parts(
    images: torch.Tensor, groups: int, way: _Way
) -> tuple[torch.Tensor, tuple[int, int, int], tuple[Any, ...]]:
    """Where parts of sums go (parts, 2, groups, channels), the grid of programs, and sizes."""
    rows, channels, sides = _sizes(images, groups, way)
    tiles, across = triton.cdiv(rows, sides["ROWS"]), triton.cdiv(channels, sides["CHANNELS"])
    of_a_part = triton.cdiv(tiles, max(1, min(tiles, _PROGRAMS // (across * groups))))
    parts = triton.cdiv(tiles, of_a_part)
    partial = torch.empty(parts, 2, groups, channels, dtype=torch.float32, device=images.device)
    return partial, (parts, across, groups), (rows, channels // EIGHT, of_a_part, {"STAGES": way.stages} | sides)


def launched(kernel: Any, grid: tuple[int, int, int], *given: Any, **constants: Any) -> None:
    """Start the programs. Each tensor is read or written once."""
    *tensors_and_sizes, sides = given
    first: torch.Tensor = tensors_and_sizes[0]
    with torch.cuda.device_of(first):  # Triton starts them on the current device
        kernel[grid](*tensors_and_sizes, **sides, **constants, num_warps=_WARPS, enable_fp_fusion=True)
