from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from timm.layers import Conv2dSame, pad_same
from timm.models.efficientnet import tf_efficientnet_b0, tf_efficientnet_b3
from torch.nn import functional
from transformers import AlignVisionConfig, AlignVisionModel

from altalign.errors import UnreadableError, UsageError
from altalign.train.model.batch_norm import BatchNorm, apply_collected, collected, collecting
from altalign.train.model.image_tower import ImageTower, StridedConvolution
from altalign.train.settings.training import ImageTowerSettings
from tests.train.small_towers import image_settings, images

PARAMETERS_AND_WIDTHS = {  # timm's tf_efficientnet_* less its classifier, conv_head and bn2
    "b0": (3_595_388, 320),
    "b1": (6_101_024, 320),
    "b2": (7_202_562, 352),
    "b3": (10_103_336, 384),
    "b4": (16_742_216, 448),
    "b5": (27_288_112, 512),
    "b6": (39_403_992, 576),
    "b7": (62_143_440, 640),  # and transformers' AlignVisionModel
    "l2": (467_219_796, 1376),
}


@pytest.mark.parametrize("architecture", sorted(PARAMETERS_AND_WIDTHS))
def test_parameters_and_widths(architecture: Any) -> None:
    with torch.device("meta"):
        tower = ImageTower(ImageTowerSettings(architecture=architecture))
    assert (sum(values.numel() for values in tower.parameters()), tower.num_features) == PARAMETERS_AND_WIDTHS[
        architecture
    ]


@pytest.mark.parametrize(("architecture", "build"), [("b0", tf_efficientnet_b0), ("b3", tf_efficientnet_b3)])
def test_names_and_shapes_are_those_of_timm(architecture: Any, build: Any) -> None:
    with torch.device("meta"):
        ours, theirs = ImageTower(ImageTowerSettings(architecture=architecture)), build(num_classes=0)
    shapes = {
        name: values.shape
        for name, values in theirs.state_dict().items()
        if not name.startswith(("conv_head.", "bn2."))
    }
    assert {name: values.shape for name, values in ours.state_dict().items()} == shapes


def test_batch_norm_is_as_in_keras() -> None:
    with torch.device("meta"):
        tower = ImageTower(ImageTowerSettings(architecture="b0"))
    layers = [layer for layer in tower.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    assert len(layers) == 49 - 1  # B0's, less that of the head
    assert all(
        isinstance(layer, BatchNorm) and (layer.eps, layer.statistics, layer.group) == (1e-3, "ghost", 16)
        for layer in layers
    )
    assert all(layer.momentum == pytest.approx(0.01) for layer in layers)


# Against timm and transformers ----------------------------------------------------------------------------------------


def randomised(tower: ImageTower) -> ImageTower:
    """In evaluation, with running statistics, scales and shifts as a trained tower may have them."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for layer in tower.modules():
            if isinstance(layer, BatchNorm):
                for values, low in (
                    (layer.weight, 0.5),
                    (layer.bias, -0.5),
                    (layer.running_mean, -0.5),
                    (layer.running_var, 0.5),
                ):
                    values.copy_(low + torch.rand(values.shape, generator=generator))
    return tower.eval()


def mapped(tower: ImageTower) -> dict[str, torch.Tensor]:
    """The tower's weights under the names of transformers' AlignVisionModel."""
    state = {name: values for name, values in tower.state_dict().items() if not name.startswith("blocks.")}
    names = {"conv_stem": "embeddings.convolution", "bn1": "embeddings.batchnorm"}
    found = {f"{names[name.split('.')[0]]}.{name.split('.')[1]}": values for name, values in state.items()}
    first = {
        "conv_dw": "depthwise_conv.depthwise_conv",
        "bn1": "depthwise_conv.depthwise_norm",
        "conv_pw": "projection.project_conv",
        "bn2": "projection.project_bn",
    }
    others = {
        "conv_pw": "expansion.expand_conv",
        "bn1": "expansion.expand_bn",
        "conv_dw": "depthwise_conv.depthwise_conv",
        "bn2": "depthwise_conv.depthwise_norm",
        "conv_pwl": "projection.project_conv",
        "bn3": "projection.project_bn",
    }
    both = {"se.conv_reduce": "squeeze_excite.reduce", "se.conv_expand": "squeeze_excite.expand"}
    for number, (stage, block) in enumerate(
        (stage, block) for stage, blocks in enumerate(tower.blocks) for block in blocks
    ):
        for name, values in block.state_dict().items():
            module, leaf = name.rsplit(".", 1)
            found[f"encoder.blocks.{number}.{({**(first if stage == 0 else others), **both})[module]}.{leaf}"] = values
    return found


@pytest.fixture(scope="module")
def towers() -> dict[str, Any]:
    """Ours with either padding, and transformers' of the same weights.

    Half the channels of B0: at a quarter its first block has a skip that theirs lacks.
    """
    settings = {"width": 0.5, "depth": 0.3}
    ours = {
        padding: randomised(ImageTower(image_settings(padding=padding, **settings))) for padding in ("same", "keras")
    }
    ours["same"].load_state_dict(ours["keras"].state_dict())
    theirs = AlignVisionModel(
        AlignVisionConfig(width_coefficient=0.5, depth_coefficient=0.3, image_size=64, hidden_dim=16)
    ).eval()
    missing, unexpected = theirs.load_state_dict(mapped(ours["keras"]), strict=False)
    assert (missing, unexpected) == ([], [])
    return {**ours, "align": theirs}


@pytest.mark.parametrize("side", [64, 65, 33, 36, 289])
@torch.no_grad()
def test_keras_padding_agrees_with_align_vision_model(towers: dict[str, Any], side: int) -> None:
    pixels = images(1, side)
    theirs = towers["align"](pixel_values=pixels.float() / 127.5 - 1).last_hidden_state
    ours = towers["keras"](pixels)
    assert theirs.abs().max() > 0.1
    torch.testing.assert_close(ours, theirs.mean((2, 3)), rtol=1e-4, atol=1e-5)
    same = towers["same"](pixels)
    agree = torch.allclose(same, ours, atol=1e-4)
    assert agree == (side == 64)  # no side on the way is odd


@pytest.mark.parametrize(("side", "rows"), [(64, 2), (65, 3), (289, 10)])
@torch.no_grad()
def test_same_padding_rounds_up(towers: dict[str, Any], side: int, rows: int) -> None:
    assert towers["same"].forward_features(images(1, side).float()).shape[-2:] == (rows, rows)


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("sides", [(8, 8), (9, 9), (8, 9), (9, 8)])
def test_strided_convolutions_pad_as_timm_does(kernel: int, sides: tuple[int, int]) -> None:
    theirs = Conv2dSame(2, 4, kernel, stride=2, groups=2)
    pixels = torch.rand(2, 2, *sides)
    torch.testing.assert_close(StridedConvolution(theirs, as_if_even=False)(pixels), theirs(pixels))
    even = functional.conv2d(
        functional.pad(pixels, (kernel // 2 - 1, kernel // 2) * 2), theirs.weight, theirs.bias, 2, groups=2
    )
    torch.testing.assert_close(StridedConvolution(theirs, as_if_even=True)(pixels), even)
    assert pad_same(pixels, [kernel] * 2, [2, 2]).shape[-1] == sides[1] + kernel - 2 + sides[1] % 2


@torch.no_grad()
def test_a_tower_is_timms_where_weights_are() -> None:
    theirs = tf_efficientnet_b0(num_classes=0, global_pool="")
    ours = ImageTower(ImageTowerSettings(architecture="b0"))
    state = {
        name: values for name, values in theirs.state_dict().items() if not name.startswith(("conv_head.", "bn2."))
    }
    ours.load_state_dict(state)
    theirs.conv_head = theirs.bn2 = torch.nn.Identity()
    pixels = images(2, 49)
    expected = theirs.eval().forward_features(pixels / 127.5 - 1).mean((2, 3))
    torch.testing.assert_close(ours.eval()(pixels), expected, rtol=1e-4, atol=1e-5)


# What goes in, and how ------------------------------------------------------------------------------------------------


def test_pixels_may_be_whole_numbers_or_floats_of_any_memory_format() -> None:
    tower, pixels = randomised(ImageTower(image_settings())), images(2)
    expected = tower(pixels)
    assert torch.equal(tower(pixels.float()), expected)
    torch.testing.assert_close(tower(pixels.contiguous(memory_format=torch.channels_last)), expected)


def test_white_is_1_and_black_is_minus_1() -> None:
    tower = ImageTower(image_settings())
    seen: list[torch.Tensor] = []
    tower.conv_stem.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    tower(torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None].expand(2, 3, 32, 32))
    assert [(float(image.min()), float(image.max())) for image in seen[0]] == [(-1, -1), (1, 1)]


def test_channels_last_stays_so_through_the_tower() -> None:
    tower = ImageTower(image_settings()).to(memory_format=torch.channels_last)
    kept = []
    for layer in tower.modules():
        if isinstance(layer, BatchNorm):
            layer.register_forward_hook(
                lambda _, __, out: kept.append(out.is_contiguous(memory_format=torch.channels_last))
            )
    tower(images(8).contiguous(memory_format=torch.channels_last))
    assert all(kept)


def step(tower: ImageTower, pixels: torch.Tensor) -> list[torch.Tensor]:
    """Gradients and running statistics of a step."""
    torch.manual_seed(5)
    with collecting(tower):
        features = tower(pixels)
    (features * torch.arange(features.numel()).reshape(features.shape).sin()).sum().backward()
    apply_collected(tower, collected(tower))
    return [values.grad for values in tower.parameters() if values.grad is not None] + list(tower.buffers())


@pytest.mark.parametrize("stages", [0, 3])
def test_activation_checkpointing_changes_nothing_but_memory(stages: int) -> None:
    tower, checkpointed = (ImageTower(image_settings()).double() for _ in range(2))
    checkpointed.load_state_dict(tower.state_dict())
    if stages:
        checkpointed.checkpoint_stages(stages)
    else:
        checkpointed.set_grad_checkpointing()
    for ours, theirs in zip(step(checkpointed, images(8)), step(tower, images(8)), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.trained
def test_a_tower_compiles_into_one_graph() -> None:
    tower, pixels = ImageTower(image_settings()).double(), images(8, 33)
    expected = tower(pixels)
    torch.testing.assert_close(torch.compile(tower, backend="eager", fullgraph=True)(pixels), expected)


# Weights from files ---------------------------------------------------------------------------------------------------


def test_weights_come_from_a_file(tmp_path: Path) -> None:
    tower, path = randomised(ImageTower(image_settings())), str(tmp_path / "tower.safetensors")
    save_file(tower.state_dict(), path)
    assert torch.equal(ImageTower(image_settings(weights=path)).eval()(images(2)), tower(images(2)))


def test_weights_of_timm_and_of_whole_models_serve_too(tmp_path: Path) -> None:
    tower, path = randomised(ImageTower(image_settings())), str(tmp_path / "tower.safetensors")
    of_timm = {name: values for name, values in tower.state_dict().items() if not name.endswith("num_batches_tracked")}
    head = {name: torch.zeros(1) for name in ("conv_head.weight", "bn2.bias", "classifier.weight")}
    whole = {
        **{f"image_tower.{name}": values for name, values in of_timm.items()},
        "text_projection.weight": torch.zeros(1),
    }
    for tensors in ({**of_timm, **head}, whole):
        save_file(tensors, path)
        assert torch.equal(ImageTower(image_settings(weights=path)).eval()(images(2)), tower(images(2)))


def test_weights_that_are_not_the_towers_are_one_line(tmp_path: Path) -> None:
    path = str(tmp_path / "tower.safetensors")
    state = ImageTower(image_settings()).state_dict()
    del state["bn1.weight"], state["bn1.bias"]
    state["bn1.running_mean"] = torch.zeros(9)
    save_file({**state, **{f"more.{number}": torch.zeros(1) for number in range(5)}}, path)
    with pytest.raises(UsageError) as caught:
        ImageTower(image_settings(weights=path))
    assert str(caught.value) == (
        f"[image_tower] weights: {path}: not this tower's weights (missing: bn1.weight, bn1.bias); "
        "give a file of the same architecture, or change the settings"
    )


def test_a_file_that_is_not_there_a_folder_and_no_safetensors(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(b"nothing of the kind")
    missing = f"{tmp_path}/none: no such file; give a safetensors file, or leave the setting out to start from scratch"
    folder = f"{tmp_path}: a folder without model.safetensors or open_clip_model.safetensors; give one with weights in"
    for path, error, line in (
        (tmp_path / "none", UsageError, missing),
        (tmp_path, UsageError, folder),
        (tmp_path / "noise", UnreadableError, f"{tmp_path}/noise: no safetensors file: "),
    ):
        with pytest.raises(error) as caught:
            ImageTower(image_settings(weights=str(path)))
        assert str(caught.value).startswith(f"[image_tower] weights: {line}")
        assert "\n" not in str(caught.value)
