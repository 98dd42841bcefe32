"""The kernels of a GPU, by Triton's interpreter on a CPU: beside float64, and beside what a CPU computes in a tower.

`test_gpu_kernels.py` runs this in a process of its own: Triton has to know of its interpreter when it is imported.
"""

import copy

import pytest
import torch
from timm.models._efficientnet_blocks import SqueezeExcite as OfTimm
from torch import nn

from altalign.train.model import gpu_kernels, normalise
from altalign.train.model.batch_norm import apply_collected, collected, collecting
from altalign.train.model.blocks import Scales, as_a_gpu, is_on_cpu
from altalign.train.model.image_tower import ImageTower
from altalign.train.settings.training import ImageTowerSettings

EPSILON = 1e-3
# images, of a group, channels, side: rows of a tile and more, one pixel, channels of one tile and of several
SHAPES = [(8, 4, 8, 9), (6, 3, 24, 5), (4, 4, 72, 17), (32, 16, 40, 1), (2, 2, 136, 7)]


@pytest.fixture(autouse=True)
def _on_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalise, "kernels_for", lambda images: None if is_on_cpu(images) else gpu_kernels)


def drawn(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Numbers whose means are far from 0, and differ between channels."""
    generator = torch.Generator().manual_seed(seed)
    numbers = 3 * torch.randn(shape, generator=generator)
    return numbers.add_(50 * torch.randn(shape[1], 1, 1, generator=generator)).to(dtype)


def apart(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return float((ours.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("swish", [True, False])
@pytest.mark.parametrize(("count", "group", "channels", "side"), SHAPES)
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-3)])
def test_each_step_is_that_in_float64(
    dtype: torch.dtype,
    within: float,
    count: int,
    group: int,
    channels: int,
    side: int,
    *,
    swish: bool,
) -> None:
    images = drawn(count, channels, side, side, dtype=dtype).contiguous(memory_format=torch.channels_last)
    gradient = torch.randn(images.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    weight, bias = torch.linspace(0.5, 1.5, channels), torch.linspace(-1, 1, channels)
    found = [*gpu_kernels.moments(images, group)]
    exact = [*normalise.moments(images.double(), group)]
    own = Scales(weight, bias, found[0], torch.rsqrt(found[1] + EPSILON))
    known = Scales(weight.double(), bias.double(), exact[0], torch.rsqrt(exact[1] + EPSILON))
    numbers = group * side * side
    for steps, of, values, given in ((gpu_kernels, own, found, images), (normalise, known, exact, images.double())):
        values.append(steps.scaled(given, of, swish=swish))
        values.append(steps.sums_of_gradients(gradient.to(given.dtype), given, of, swish=swish))
        means = values[-1] / numbers
        values.append(steps.gradient_of_input(gradient.to(given.dtype), given, of, means, swish=swish))
    assert found[2].dtype == found[4].dtype == dtype
    assert found[2].stride() == found[4].stride() == images.stride()
    for own, other in zip(found, exact, strict=True):
        assert apart(own, other) < within


def test_a_first_pixel_far_from_all_others_costs_no_precision() -> None:
    images = torch.randn(4, 8, 33, 33, generator=torch.Generator().manual_seed(4))
    images[::2, :, 0, 0] = 100.0
    found = gpu_kernels.moments(images.contiguous(memory_format=torch.channels_last), 2)
    for own, exact in zip(found, normalise.moments(images.double(), 2), strict=True):
        assert apart(own, exact) < 1e-5


def test_factors_may_lie_in_memory_as_they_like() -> None:
    images = drawn(6, 8, 3, 3, dtype=torch.float32)
    scale = torch.linspace(-1, 1, 48).view(8, 6).T  # channels are not neighbours
    assert torch.equal(
        gpu_kernels.shifted(images, scale, scale), gpu_kernels.shifted(images, *[scale.contiguous()] * 2)
    )
    assert apart(gpu_kernels.shifted(images, scale, scale), (images + 1).double() * scale[..., None, None]) < 1e-5


def test_images_that_are_parameters_are_computed_with_too() -> None:
    drawn_last = drawn(4, 8, 3, 3, dtype=torch.float32).contiguous(memory_format=torch.channels_last)
    images = nn.Parameter(drawn_last, requires_grad=False)
    assert apart(gpu_kernels.moments(images, 2)[0], normalise.moments(images.double(), 2)[0]) < 1e-5


def _results(module: nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
    """What a module makes of images, and the gradients of them and of its parameters."""
    given = images.clone().requires_grad_()
    module.zero_grad()
    made = module(given)
    made.backward(torch.randn(made.shape, generator=torch.Generator().manual_seed(2)).to(made.dtype))
    assert given.grad is not None
    return [made.detach(), given.grad, *(one.grad for one in module.parameters() if one.grad is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_squeeze_and_excitation_is_timms(dtype: torch.dtype) -> None:
    theirs = OfTimm(24, rd_channels=6, act_layer=nn.SiLU).to(dtype)
    ours = normalise.SqueezeExcite(copy.deepcopy(theirs))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    images = torch.randn(4, 24, 9, 9).to(dtype).contiguous(memory_format=torch.channels_last)
    with as_a_gpu():
        found = _results(ours, images)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.02}[dtype]
    for own, other in zip(found, _results(theirs, images), strict=True):
        assert apart(own, other.double()) < tolerance
    assert all(torch.equal(*both) for both in zip(_results(ours, images), _results(theirs, images), strict=True))


def test_a_tower_learns_on_a_gpu_what_it_does_on_a_cpu() -> None:
    settings = ImageTowerSettings(architecture="b0", depth=0.3, ghost_group=2)
    tower = ImageTower(settings).to(memory_format=torch.channels_last).train()
    images = (
        torch.randn(5, 3, 33, 33, generator=torch.Generator().manual_seed(3)) * 60 + 128
    )  # the last group is smaller
    expected, moved = _results(tower, images), copy.deepcopy(tower)
    with as_a_gpu():
        found = _results(tower, images)
        with collecting(tower):
            tower(images)
    with collecting(moved):
        moved(images)
    for one in (tower, moved):
        apply_collected(one, collected(one))
    scale = max(float(one.norm()) for one in expected[2:])
    for own, other in zip(found, expected, strict=True):
        assert float((own - other).norm()) < 1e-4 * max(float(other.norm()), 0.01 * scale)
    for name, values in tower.state_dict().items():
        torch.testing.assert_close(values, moved.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_where_triton_does_not_compile_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC")

    assert gpu_kernels.compile_for(torch.device("cpu"))
    gpu_kernels.compile_for.cache_clear()
    monkeypatch.setattr(gpu_kernels, "launched", refuse)
    assert not gpu_kernels.compile_for(torch.device("cpu"))
    assert not gpu_kernels.compile_for(torch.device("cpu"))
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("Triton does not compile here (RuntimeError: Failed to find C compiler. Please") == 1
