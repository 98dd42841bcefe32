"""`torch.compile` of blocks: what repeats is compiled once for all that are alike, and the rest runs as it is.

A whole model of 55 blocks is one program, which takes many minutes to compile. Blocks of one shape share theirs.
"""

from functools import partial
from typing import Any

import torch
from timm.models._efficientnet_blocks import DepthwiseSeparableConv, InvertedResidual
from timm.models.vision_transformer import Block
from torch import _dynamo, nn
from transformers.models.bart.modeling_bart import BartDecoderLayer, BartEncoderLayer

from altalign.train.model.bert_layer import Layer

_OF_IMAGES = (DepthwiseSeparableConv, InvertedResidual, Block)
BLOCKS = (*_OF_IMAGES, Layer, BartEncoderLayer, BartDecoderLayer)
# in training with and without gradient, and once more for the last chunk, which may be smaller
_WAYS = 4


def compile_blocks(model: nn.Module, **options: Any) -> int:
    """Have the blocks of all towers compiled when they are first called; returns how many there are.

    Args:
        model: a dual encoder or a classifier, not wrapped; activations are checkpointed before, if at all.
        options: of `torch.compile`.
    """
    blocks = [module for module in model.modules() if isinstance(module, BLOCKS)]
    # all blocks of a class are one piece of code to torch, which gives up compiling it after so many shapes
    programs: Any = _dynamo.config
    programs.recompile_limit = max(programs.recompile_limit, _WAYS * len(blocks))
    programs.accumulated_recompile_limit = max(programs.accumulated_recompile_limit, _WAYS * len(blocks))
    for block in blocks:
        # As soon as it sees a second block, torch would take the sides of images for numbers that may be any, and
        # compile for many minutes. How many tokens captions have is another number in each step: left to itself, torch
        # compiles for one number first, and what a checkpoint computes again may then come from another program.
        given = {**options, "dynamic": not isinstance(block, _OF_IMAGES)}
        wrapped = block.__dict__.get("forward")
        if isinstance(wrapped, partial):  # it computes activations again: what it does twice is compiled
            block.forward = partial(wrapped.func, torch.compile(wrapped.args[0], **given), **wrapped.keywords)
        else:
            block.compile(**given)
    return len(blocks)
