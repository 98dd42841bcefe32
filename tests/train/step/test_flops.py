"""Operations of a pair, beside those that papers state."""

from typing import Any

import pytest
import torch
from torch import nn

from altalign.train.settings.training import TrainConfig
from altalign.train.step import flops

# billions of multiplications with additions at an image's own size: EfficientNet, table 2; Dosovitskiy et al. have none
# of ViT, 12 blocks of 197 tokens and 768 numbers are 17.5 by arithmetic
STATED = {"b0": (224, 0.39), "b3": (300, 1.8), "vit_b16": (224, 17.5)}


def config(architecture: str, px: int, **loop: Any) -> TrainConfig:
    values: dict[str, dict[str, Any]] = {
        "data": {"resize_px": px, "crop_px": px},
        "image_tower": {"architecture": architecture},
        "text_tower": {"layers": 1, "width": 4, "heads": 1},
        "tokenizer": {"tokens_at_most": 8},
        "loop": loop,
    }
    return TrainConfig.from_values(values, where="test")


@pytest.mark.parametrize("architecture", STATED)
def test_operations_are_those_of_the_papers(architecture: str) -> None:
    """A step has three forwards, of which the first layer's lacks the gradient of the image: within 8 %.

    A multiplication with its addition is two operations; the head of the papers' networks is not there.
    """
    px, stated = STATED[architecture]
    assert flops.of_a_pair(config(architecture, px), vocabulary=50) == pytest.approx(3 * 2 * stated * 1e9, rel=0.08)


@pytest.mark.parametrize("groups", [1, 4, 16])
def test_a_depthwise_convolution_goes_back_by_twice_its_forward(groups: int) -> None:
    layer, images = nn.Conv2d(16, 16, 3, groups=groups, padding=1), torch.rand(2, 16, 8, 8, requires_grad=True)
    forward = 2 * 2 * 8 * 8 * 16 * (16 // groups) * 9
    with flops.counter() as counted:
        layer(images).sum().backward()
    assert counted.get_total_flops() == 3 * forward
    with flops.counter() as counted:
        layer(images.detach()).sum().backward()
    assert counted.get_total_flops() == 2 * forward


def test_the_share_of_a_gpu_is_by_device() -> None:
    work = flops.Work(of_a_pair=1e12, devices=4, peak=flops.peak_of("NVIDIA H100 80GB HBM3"))
    assert work.at(989.0) == {"tflops_per_s": pytest.approx(247.2, rel=1e-3), "mfu": 0.25}
    assert flops.peak_of("NVIDIA GeForce") is None
    assert flops.Work(1e12, 1, None).at(2.0) == {"tflops_per_s": 2.0}
