"""EfficientNet B0 to B7 and L2 of timm's blocks, without the 1x1 convolution of the head (ALIGN section 5)."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from timm.layers import Conv2dSame  # pyright: ignore[reportPrivateImportUsage]
from timm.models._efficientnet_blocks import SqueezeExcite as OfTimm
from timm.models.efficientnet import EfficientNet, decode_arch_def, round_channels  # pyright: ignore[reportPrivateImportUsage]
from torch import nn
from torch.nn import functional

from altalign.train.model import batch_norm
from altalign.train.model.blocks import Tower, compute_again, replace
from altalign.train.model.normalise import SqueezeExcite
from altalign.train.settings.training import ImageTowerSettings

STAGES = [  # of B0: EfficientNet, table 1
    ["ds_r1_k3_s1_e1_c16_se0.25"],
    ["ir_r2_k3_s2_e6_c24_se0.25"],
    ["ir_r2_k5_s2_e6_c40_se0.25"],
    ["ir_r3_k3_s2_e6_c80_se0.25"],
    ["ir_r3_k5_s1_e6_c112_se0.25"],
    ["ir_r4_k5_s2_e6_c192_se0.25"],
    ["ir_r1_k3_s1_e6_c320_se0.25"],
]
FACTORS = {  # of channels, of blocks
    "b0": (1.0, 1.0),
    "b1": (1.0, 1.1),
    "b2": (1.1, 1.2),
    "b3": (1.2, 1.4),
    "b4": (1.4, 1.8),
    "b5": (1.6, 2.2),
    "b6": (1.8, 2.6),
    "b7": (2.0, 3.1),
    "l2": (4.3, 5.3),  # Noisy Student, table 7
}
EPSILON = 1e-3  # added to variances, as timm's tf_* models have it
HALF_OF_THE_RANGE = 127.5  # pixels 0..255 become -1..1, as in COYO-ALIGN

# AlignModel's names of the parts
_STEM = {"conv_stem": "embeddings.convolution", "bn1": "embeddings.batchnorm"}
_BOTH = {"se.conv_reduce": "squeeze_excite.reduce", "se.conv_expand": "squeeze_excite.expand"}
_FIRST_STAGE = {  # which has no expansion
    "conv_dw": "depthwise_conv.depthwise_conv",
    "bn1": "depthwise_conv.depthwise_norm",
    "conv_pw": "projection.project_conv",
    "bn2": "projection.project_bn",
}
_OTHER_STAGES = {
    "conv_pw": "expansion.expand_conv",
    "bn1": "expansion.expand_bn",
    "conv_dw": "depthwise_conv.depthwise_conv",
    "bn2": "depthwise_conv.depthwise_norm",
    "conv_pwl": "projection.project_conv",
    "bn3": "projection.project_bn",
}


class ImageTower(Tower, EfficientNet):
    """Images to features; state as timm's tf_efficientnet_*, less `conv_head`, `bn2` and `classifier`."""

    num_features: int
    conv_stem: nn.Conv2d

    def __init__(self, settings: ImageTowerSettings) -> None:
        own_width, own_depth = FACTORS[settings.architecture]
        super().__init__(
            block_args=decode_arch_def(STAGES, settings.depth or own_depth),
            num_classes=0,
            num_features=0,
            round_chs_fn=partial(round_channels, multiplier=settings.width or own_width),
            pad_type="same",
            act_layer=nn.SiLU,
            norm_layer=partial(nn.BatchNorm2d, eps=EPSILON, momentum=1 - settings.batch_norm_momentum),
        )
        batch_norm.convert(self, statistics=settings.batch_norm, group=settings.ghost_group)
        replace(self, OfTimm, SqueezeExcite)
        replace(self, Conv2dSame, partial(StridedConvolution, as_if_even=settings.padding == "keras"))
        self.begin(
            settings,
            self,
            prefixes=("image_tower.", "visual.trunk.", "vision_model."),  # ours, open_clip's, AlignModel's
            unused=("conv_head.", "bn2.", "classifier."),
            renamed={theirs: own for own, theirs in align_names(self.state_dict()).items()},
        )

    def layers(self) -> list[nn.Module]:
        """The blocks of all stages."""
        return [block for stage in self.blocks.children() for block in stage.children()]

    def checkpoint_stages(self, count: int) -> None:
        """Compute activations of the first stages again instead of keeping them."""
        for stage in list(self.blocks.children())[:count]:
            compute_again(stage.children())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features (n, num_features) of images (n, 3, height, width), uint8 or floats from 0 to 255."""
        pixels = x.to(self.conv_stem.weight.dtype) / HALF_OF_THE_RANGE - 1
        return self.global_pool(self.forward_features(pixels))


class StridedConvolution(nn.Conv2d):
    """A convolution of stride 2 that pads like TensorFlow (SAME), or, `as_if_even`, like Keras that knows no size.

    SAME pads an odd side on both ends alike, which the convolution does itself: at 289 pixels (145, 73, 37, 19, 10)
    nothing is copied.
    """

    def __init__(self, replaced: Any, *, as_if_even: bool) -> None:
        factory = {"device": replaced.weight.device, "dtype": replaced.weight.dtype}
        shape = {"stride": 2, "groups": replaced.groups, "bias": replaced.bias is not None}
        super().__init__(replaced.in_channels, replaced.out_channels, replaced.kernel_size, **shape, **factory)
        self.load_state_dict(replaced.state_dict())
        self.as_if_even = as_if_even

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """Images (n, channels, height, width) at half the size, rounded up (`keras` drops an odd last row)."""
        before, after = zip(*(self._padding(side) for side in input.shape[-2:]), strict=True)
        padded, padding = input, before
        if before != after:
            padded, padding = functional.pad(input, (before[1], after[1], before[0], after[0])), (0, 0)
        return functional.conv2d(padded, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def _padding(self, side: int) -> tuple[int, int]:
        half = self.kernel_size[0] // 2
        return (half, half) if side % 2 and not self.as_if_even else (half - 1, half)


def align_names(names: Iterable[str]) -> dict[str, str]:
    """AlignVisionModel's name of each name of the tower's state; blocks are numbered through there."""
    names = list(names)
    blocks = sorted({tuple(map(int, name.split(".")[1:3])) for name in names if name.startswith("blocks.")})
    theirs = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        if module in _STEM:
            theirs[name] = f"{_STEM[module]}.{leaf}"
        else:
            _, stage, block, inner = module.split(".", 3)
            parts = {**(_FIRST_STAGE if stage == "0" else _OTHER_STAGES), **_BOTH}
            theirs[name] = f"encoder.blocks.{blocks.index((int(stage), int(block)))}.{parts[inner]}.{leaf}"
    return theirs
