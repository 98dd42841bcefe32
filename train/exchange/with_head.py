"""The image tower as timm's tf_efficientnet_*, with the head convolution that timm requires and ours lacks.

It is filled so that outputs are equal: of each feature z it makes z and -z, its activation silu(z) and silu(-z), and
the linear layer after the pooling takes their difference, for silu(z) - silu(-z) = z.

timm has no towers of other widths and depths. They become the smallest of its towers that is as wide and deep, with
zeros: such channels stay 0 through all layers, and such blocks add nothing to what skips them.
"""

from functools import cache
from typing import Any

import timm
import torch
from torch import Tensor

from altalign.train.exchange.encoders import Trained
from altalign.train.exchange.target import check_towers, has_odd_side, projection_of, refuse
from altalign.train.model.image_tower import EPSILON, FACTORS

_TOWER = ("conv_stem.", "bn1.", "blocks.", "conv_head.")


def name_of(of: Trained) -> str:
    """The name of the smallest of timm's models that holds the tower; empty where none does."""
    tower: Any = of.model.image_tower
    own, skips = tower.state_dict(), [blocks[0].has_skip for blocks in tower.blocks]
    for name in (f"tf_efficientnet_{architecture}" for architecture in FACTORS):
        theirs = _like(name).state_dict()
        if skips == [blocks[0].has_skip for blocks in _like(name).blocks] and all(
            key in theirs and all(a <= b for a, b in zip(values.shape, theirs[key].shape, strict=True))
            for key, values in own.items()
        ):
            return name
    return ""


def check(of: Trained, to: str) -> None:
    """Refuse what timm's model cannot hold.

    Raises:
        UsageError: naming it.
    """
    check_towers(of, to)
    tower, (_, px) = of.config.image_tower, of.evaluation_sizes
    if not name_of(of):
        raise refuse(
            of,
            to,
            f"at [image_tower] width = {tower.width:g}, depth = {tower.depth:g} a stage is larger than those of all "
            "tf_efficientnet, or its first block has a skip, which theirs has not",
            "train with another width, or export to onnx",
        )
    if tower.padding == "keras" and has_odd_side(px):
        raise refuse(
            of,
            to,
            f'[image_tower] padding = "keras" pads otherwise than timm where a side is odd, as at {px} px',
            'train with padding = "same", or export with --crop-px of a multiple of 32',
        )


@cache
def _like(name: str) -> Any:
    """The model of timm, without its weights."""
    with torch.device("meta"):
        return timm.create_model(name)


def channels(of: Trained) -> int:
    """Channels after the head convolution of timm's model."""
    return _like(name_of(of)).num_features


def state(of: Trained) -> dict[str, Tensor]:
    """Weights by timm's names; its classifier gives our features, before they are brought to length 1."""
    head, own = channels(of), of.model.image_tower.num_features
    weight, bias = projection_of(of)
    both = torch.zeros(head, own)
    both[:own], both[own : 2 * own] = torch.eye(own), -torch.eye(own)
    classifier = torch.zeros(of.model.width, head)
    classifier[:, :own], classifier[:, own : 2 * own] = weight, -weight
    found: dict[str, Tensor] = {**of.model.image_tower.state_dict(), "conv_head.weight": both[:, :, None, None]}
    theirs = {name: values for name, values in _like(name_of(of)).state_dict().items() if name.startswith(_TOWER)}
    return {
        **{name: _with_zeros(found.get(name), values.shape) for name, values in theirs.items()},
        "bn2.weight": torch.full((head,), 1 + EPSILON).sqrt(),  # undoes the division by sqrt(1 + epsilon)
        "bn2.bias": torch.zeros(head),
        "bn2.running_mean": torch.zeros(head),
        "bn2.running_var": torch.ones(head),
        "bn2.num_batches_tracked": torch.zeros((), dtype=torch.int64),
        "classifier.weight": classifier,
        "classifier.bias": bias.clone(),
    }


def _with_zeros(values: Tensor | None, shape: torch.Size) -> Tensor:
    """Zeros of this shape, with the values in their first places."""
    found = torch.zeros(shape, dtype=torch.float32 if values is None else values.dtype)
    if values is not None:
        found[tuple(slice(side) for side in values.shape)] = values
    return found
