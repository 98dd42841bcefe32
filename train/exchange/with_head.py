"""The image tower as timm's tf_efficientnet_*, with the head convolution that timm requires and ours lacks.

It is filled so that outputs are equal: of each feature z it makes z and -z, its activation silu(z) and silu(-z), and
the linear layer after the pooling takes their difference, for silu(z) - silu(-z) = z.
"""

from typing import Any

import timm
import torch
from torch import Tensor

from altalign.train.encoders import Trained
from altalign.train.exchange.target import check_towers, has_odd_side, projection_of, refuse
from altalign.train.model.image_tower import FACTORS

EPSILON = 1e-3  # of timm's tf_* models


def name_of(of: Trained) -> str:
    """The name of timm's model."""
    return f"tf_efficientnet_{of.config.image_tower.architecture}"


def check(of: Trained, to: str) -> None:
    """Refuse what timm's model cannot hold.

    Raises:
        UsageError: naming it.
    """
    check_towers(of, to)
    tower, (_, px) = of.config.image_tower, of.evaluation_sizes
    width, depth = FACTORS[tower.architecture]
    if (tower.width or width, tower.depth or depth) != (width, depth):
        raise refuse(
            of,
            to,
            f"[image_tower] width = {tower.width:g}, depth = {tower.depth:g}, and {name_of(of)} has factors of its own",
            "train with width = 0 and depth = 0, or export to align or onnx",
        )
    if tower.padding == "keras" and has_odd_side(px):
        raise refuse(
            of,
            to,
            f'[image_tower] padding = "keras" pads otherwise than timm where a side is odd, as at {px} px',
            'train with padding = "same", or export with --crop-px of a multiple of 32',
        )
    if tower.batch_norm_epsilon != EPSILON:
        raise refuse(
            of,
            to,
            f"[image_tower] batch_norm_epsilon = {tower.batch_norm_epsilon:g}, and {name_of(of)} has {EPSILON:g}",
            "export to align or onnx",
        )


def channels(of: Trained) -> int:
    """Channels after the head convolution of timm's model."""
    with torch.device("meta"):
        model: Any = timm.create_model(name_of(of))
    return model.num_features


def state(of: Trained) -> dict[str, Tensor]:
    """Weights by timm's names; its classifier gives our features, before they are brought to length 1."""
    head, own = channels(of), of.model.image_tower.num_features
    weight, bias = projection_of(of)
    both = torch.zeros(head, own)
    both[:own], both[own : 2 * own] = torch.eye(own), -torch.eye(own)
    classifier = torch.zeros(of.model.width, head)
    classifier[:, :own], classifier[:, own : 2 * own] = weight, -weight
    return {
        **{name: values.contiguous() for name, values in of.model.image_tower.state_dict().items()},
        "conv_head.weight": both[:, :, None, None].contiguous(),
        "bn2.weight": torch.full((head,), 1 + EPSILON).sqrt(),  # undoes the division by sqrt(1 + epsilon)
        "bn2.bias": torch.zeros(head),
        "bn2.running_mean": torch.zeros(head),
        "bn2.running_var": torch.ones(head),
        "bn2.num_batches_tracked": torch.zeros((), dtype=torch.int64),
        "classifier.weight": classifier,
        "classifier.bias": bias.clone(),
    }
