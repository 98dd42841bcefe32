from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import BatchNormAct2d
from torch import distributed, nn
from torch.multiprocessing import start_processes
from torch.nn import functional

from altalign.train.model import normalise
from altalign.train.model.batch_norm import BatchNorm, Statistics, apply_collected, collected, collecting, convert
from altalign.train.model.blocks import Scales
from altalign.train.model.normalise import How

CHANNELS = 3
EPSILON = 1e-3
ACTIVATIONS = {"silu": nn.SiLU, "relu": nn.ReLU, "none": None}


def layer(
    statistics: Statistics = "ghost", group: int = 4, *, activation: str = "silu", dtype: torch.dtype = torch.float64
) -> BatchNorm:
    """A layer with random weights."""
    generator = torch.Generator().manual_seed(1)
    chosen = ACTIVATIONS[activation]
    replaced = BatchNormAct2d(
        CHANNELS, eps=EPSILON, momentum=0.01, apply_act=chosen is not None, act_layer=chosen or nn.ReLU
    ).to(dtype)
    with torch.no_grad():
        for name, values in replaced.named_parameters():
            values.copy_(torch.randn(CHANNELS, generator=generator) + (name == "weight"))
    return BatchNorm(replaced, statistics=statistics, group=group)


def images(count: int, *, seed: int = 0, side: int = 3, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    drawn = torch.randn(count, CHANNELS, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (3 * drawn + 5).to(dtype)


def one_by_one(norm: BatchNorm, pixels: torch.Tensor, group: int) -> torch.Tensor:
    """The oracle: torch's batch norm of each group, then the activation."""
    parts = [
        functional.batch_norm(part, None, None, norm.weight, norm.bias, training=True, eps=EPSILON)
        for part in pixels.split(group)
    ]
    return norm.act(torch.cat(parts).clone())


def gradients(norm: BatchNorm, outcome: torch.Tensor, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Derivatives of some number, by the images, scales and shifts."""
    weights = torch.randn(outcome.shape, dtype=outcome.dtype, generator=torch.Generator().manual_seed(9))
    return torch.autograd.grad((outcome * weights).sum(), [pixels, norm.weight, norm.bias])


@given(
    count=st.integers(1, 9),
    group=st.integers(1, 5),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    channels_last=st.booleans(),
)
@settings(max_examples=60)
def test_ghost_batch_norm_is_batch_norm_of_each_group(
    count: int, group: int, activation: str, *, channels_last: bool
) -> None:
    norm, pixels = layer("ghost", group, activation=activation), images(count)
    if channels_last:
        pixels = pixels.contiguous(memory_format=torch.channels_last)
    pixels.requires_grad_()
    ours, theirs = norm(pixels), one_by_one(norm, pixels, group)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for own, other in zip(gradients(norm, ours, pixels), gradients(norm, theirs, pixels), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-10)


def test_local_statistics_are_of_all_images_of_the_chunk() -> None:
    norm, pixels = layer("local"), images(6)
    torch.testing.assert_close(norm(pixels), one_by_one(norm, pixels, 6), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("swish", [False, True])
def test_the_gradient_is_the_derivative(*, swish: bool) -> None:
    norm, pixels = layer(), images(4, side=2).requires_grad_()

    def of(pixels: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return normalise.normalise(pixels, weight, bias, How(EPSILON, 2, swish))[0]

    assert torch.autograd.gradcheck(of, (pixels, norm.weight, norm.bias))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("swish", [False, True])
def test_the_three_ways_agree(*, dtype: torch.dtype, swish: bool) -> None:
    norm = layer(dtype=torch.promote_types(dtype, torch.float32))
    pixels = images(8, dtype=dtype).requires_grad_()
    outer = torch.randn(pixels.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9)).to(dtype)
    traceable, _, _ = normalise._traceable(pixels, norm.weight, norm.bias, How(EPSILON, 4, swish))
    by_group, _, _ = normalise.normalise(pixels, norm.weight, norm.bias, How(EPSILON, 4, swish))
    mean, variance = normalise.moments(pixels.detach(), 4)
    known = Scales(norm.weight.detach(), norm.bias.detach(), mean, torch.rsqrt(variance + EPSILON))
    sums = normalise.sums_of_gradients(outer, pixels.detach(), known, swish=swish)
    at_once = normalise.gradient_of_input(outer, pixels.detach(), known, sums / 36, swish=swish)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.05}[dtype]
    expected = torch.autograd.grad(traceable, [pixels, norm.weight, norm.bias], outer)
    found = torch.autograd.grad(by_group, [pixels, norm.weight, norm.bias], outer)
    assert by_group.dtype == traceable.dtype == at_once.dtype == found[0].dtype == dtype
    torch.testing.assert_close(by_group, traceable, rtol=tolerance, atol=tolerance)
    for ours, others, theirs in zip((at_once, sums[1].sum(0), sums[0].sum(0)), found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(others, theirs, rtol=tolerance, atol=tolerance)


def test_statistics_are_float32_where_images_are_bfloat16() -> None:
    mean, variance = normalise.moments(images(8, side=32, dtype=torch.bfloat16), 4)
    exact = images(8, side=32, dtype=torch.bfloat16).double().unflatten(0, (2, 4))
    torch.testing.assert_close(mean, exact.mean((1, 3, 4)).float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(variance, exact.var((1, 3, 4), correction=0).float(), rtol=1e-5, atol=1e-5)


def test_a_forward_leaves_the_running_statistics_alone() -> None:
    norm = layer()
    before = {name: values.clone() for name, values in norm.state_dict().items()}
    with collecting(norm):
        norm(images(8))
    norm(images(4))
    assert all(torch.equal(values, before[name]) for name, values in norm.state_dict().items())


def test_frozen_statistics_are_the_running_ones_in_training_too() -> None:
    norm = layer("frozen")
    norm.running_mean.fill_(2.0)
    pixels = images(4)
    expected = norm.eval()(pixels)
    with collecting(norm.train()):
        assert torch.equal(norm(pixels), expected)
    assert not collected(norm).numel()
    apply_collected(norm, collected(norm))
    assert torch.equal(norm.running_mean, torch.full((CHANNELS,), 2.0, dtype=torch.float64))


def moved(statistics: Statistics, chunks: list[torch.Tensor]) -> BatchNorm:
    """A layer after one step of these chunks."""
    norm = layer(statistics)
    for chunk in chunks:
        with collecting(norm):
            norm(chunk)
    apply_collected(norm, collected(norm))
    return norm


@pytest.mark.parametrize("sizes", [[12], [4, 8], [8, 4], [4, 4, 4]])
def test_running_statistics_move_once_a_step_by_the_mean_over_groups(sizes: list[int]) -> None:
    pixels = images(12)
    norm = moved("ghost", list(pixels.split(sizes)))
    groups = pixels.unflatten(0, (3, 4))
    torch.testing.assert_close(norm.running_mean, 0.01 * groups.mean((1, 3, 4)).mean(0))
    torch.testing.assert_close(norm.running_var, 0.99 + 0.01 * groups.var((1, 3, 4), correction=0).mean(0))
    assert norm.num_batches_tracked == 1


def test_a_smaller_group_counts_by_its_images() -> None:
    pixels = images(5)
    norm = moved("ghost", [pixels])
    means = [part.mean((0, 2, 3)) for part in pixels.split(4)]
    torch.testing.assert_close(norm.running_mean, 0.01 * (4 * means[0] + means[1]) / 5)


def test_sums_of_ranks_add_up() -> None:
    first, second, together = layer(), layer(), layer()
    parts = images(4), images(8, seed=1)
    for norm, pixels in ((first, parts[0]), (second, parts[1]), (together, torch.cat(parts))):
        with collecting(norm):
            norm(pixels)
    total = collected(first) + collected(second)
    torch.testing.assert_close(total, collected(together))
    apply_collected(first, total)
    assert not collected(first).any()


def test_a_step_without_images_moves_nothing() -> None:
    norm = layer()
    apply_collected(norm, collected(norm))
    assert not norm.running_mean.any()
    assert norm.num_batches_tracked == 0


def test_conversion_keeps_weights_activation_and_names() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 5, 1), nn.Sequential(BatchNormAct2d(5, act_layer=nn.SiLU), BatchNormAct2d(5, apply_act=False))
    )
    nn.init.normal_(model[1][0].weight)
    before = {name: values.clone() for name, values in model.state_dict().items()}
    pixels = images(4, dtype=torch.float32)
    expected = model.eval()(pixels)
    convert(model, statistics="ghost", group=2)
    assert [type(norm) for norm in model[1]] == [BatchNorm, BatchNorm]
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
    assert torch.equal(model.eval()(pixels), expected)


def test_collecting_goes_on_where_it_stopped_until_it_is_applied() -> None:
    norm, pixels = layer(), images(8)
    for step in range(2):
        for chunk in pixels.split(4):
            with collecting(norm):
                norm(chunk)
            norm(chunk)
        total = collected(norm)
        assert total[-1] == 8, step
        apply_collected(norm, total)
        assert not collected(norm).any()


def test_sums_follow_the_layer_to_another_type() -> None:
    norm = layer(dtype=torch.float32)
    apply_collected(norm, collected(norm))
    with collecting(norm.double()):
        norm(images(4))
    assert collected(norm).dtype == torch.float64
    assert collected(norm)[-1] == 4


@pytest.mark.trained
def test_it_compiles_into_one_graph() -> None:
    norm, pixels = layer(), images(8).requires_grad_()
    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
    with collecting(norm):
        ours = compiled(pixels)
    sums = collected(norm).clone()
    apply_collected(norm, sums)
    with collecting(norm):
        theirs = norm(pixels)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(sums, collected(norm))
    for own, other in zip(gradients(norm, ours, pixels), gradients(norm, theirs, pixels), strict=True):
        torch.testing.assert_close(own, other)


# Over ranks -----------------------------------------------------------------------------------------------------------

RANKS = 2
SHARES = [3, 5]  # images of each rank


def on_a_rank(rank: int, folder: str) -> None:
    """Normalise this rank's images, and leave what came out in a file."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    norm, pixels = layer("sync"), images(sum(SHARES)).split(SHARES)[rank].clone().requires_grad_()
    weights = torch.randn(
        sum(SHARES), CHANNELS, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(9)
    ).split(SHARES)[rank]
    with collecting(norm):
        outcome = norm(pixels)
    total = collected(norm)
    distributed.all_reduce(total)
    apply_collected(norm, total)
    found = torch.autograd.grad((outcome * weights).sum(), [pixels, norm.weight, norm.bias])
    torch.save([outcome.detach(), *found, norm.running_mean, norm.running_var], Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.trained
def test_sync_statistics_on_2_ranks_are_those_of_one_process(tmp_path: Path) -> None:
    start_processes(on_a_rank, (str(tmp_path),), nprocs=RANKS, start_method="spawn")
    outcomes, by_pixels, by_weight, by_bias, means, variances = zip(
        *(torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS)), strict=True
    )
    norm, pixels = moved("local", [images(sum(SHARES))]), images(sum(SHARES)).requires_grad_()
    expected = norm(pixels)
    torch.testing.assert_close(torch.cat(outcomes), expected)
    for found, theirs in zip(
        (torch.cat(by_pixels), sum(by_weight), sum(by_bias)), gradients(norm, expected, pixels), strict=True
    ):
        torch.testing.assert_close(found, theirs)
    for rank in range(RANKS):
        torch.testing.assert_close(means[rank], norm.running_mean)
        torch.testing.assert_close(variances[rank], norm.running_var)
