"""The names that transformers' AlignModel has for the weights of the image tower, whose own are timm's."""

from collections.abc import Iterable

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


def of(names: Iterable[str]) -> dict[str, str]:
    """AlignVisionModel's name of each name of an image tower's state; blocks are numbered through there."""
    names = list(names)
    blocks = sorted({tuple(map(int, name.split(".")[1:3])) for name in names if name.startswith("blocks.")})
    found = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        if module in _STEM:
            found[name] = f"{_STEM[module]}.{leaf}"
        else:
            _, stage, block, inner = module.split(".", 3)
            parts = {**(_FIRST_STAGE if stage == "0" else _OTHER_STAGES), **_BOTH}
            found[name] = f"encoder.blocks.{blocks.index((int(stage), int(block)))}.{parts[inner]}.{leaf}"
    return found
