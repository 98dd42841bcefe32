"""`--to timm`: the image tower alone, for `timm.create_model("local-dir:DIR", pretrained=True)`.

timm's tf_efficientnet_* require a head convolution that ours lack. It is filled so that outputs are equal: of each
feature z it makes z and -z, its activation silu(z) and silu(-z), and the linear layer after the pooling takes their
difference, for silu(z) - silu(-z) = z.

timm has no towers of other widths and depths. They become the smallest of its towers that is as wide and deep, with
zeros: such channels stay 0 through all layers, and such blocks add nothing to what skips them.
"""

from functools import cache
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from altalign import storage
from altalign.train.exchange.encoders import Trained
from altalign.train.exchange.forms import Reopened, unfit_padding
from altalign.train.exchange.forms import unfit as unfit_for_all
from altalign.train.model.image_tower import EPSILON, FACTORS, HALF_OF_THE_RANGE

PACKAGE = "timm"
TOLERANCE = 1e-5
_TOWER = ("conv_stem.", "bn1.", "blocks.", "conv_head.")


def unfit(trained: Trained, *, has_text: bool = False) -> str:
    """Why timm's model cannot hold the tower, nor open_clip's with it; empty where it can."""
    if why := unfit_for_all(trained, has_text=has_text):
        return why
    tower = trained.config.image_tower
    if not name_of(trained):
        return (
            f"at [image_tower] width = {tower.width:g}, depth = {tower.depth:g} a stage is larger than those of all "
            "tf_efficientnet, or its first block has a skip, which theirs has not; train with another width, or export "
            "to onnx"
        )
    return unfit_padding(trained, "timm", padding="same")


def write(trained: Trained, folder: Path) -> list[str]:
    """Write the folder; returns notes for its user."""
    (resize, crop), width, name = trained.evaluation_sizes, trained.model.width, name_of(trained)
    settings = {
        "architecture": name,
        "num_classes": width,
        "num_features": _like(name).num_features,
        "pretrained_cfg": {
            "num_classes": width,
            "input_size": [3, crop, crop],
            "interpolation": "bilinear",
            "crop_pct": crop / resize,
            "crop_mode": "squash",
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
            "first_conv": "conv_stem",
            "classifier": "classifier",
        },
    }
    storage.write_json(str(folder / "config.json"), settings)
    save_file(tower_state(trained), folder / "model.safetensors")
    return ["the classifier's outputs are the image's features; bring them to length 1 for cosines"]


def reopen(_trained: Trained, folder: Path) -> Reopened:
    """The folder as timm opens it."""
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return lambda pixels: functional.normalize(model(pixels.float() / HALF_OF_THE_RANGE - 1), dim=-1), None


# The tower in one of timm's, which open_clip takes too ----------------------------------------------------------------


def name_of(trained: Trained) -> str:
    """The name of the smallest of timm's models that holds the tower; empty where none does."""
    tower: Any = trained.model.image_tower
    own, skips = tower.state_dict(), [blocks[0].has_skip for blocks in tower.blocks]
    for name in (f"tf_efficientnet_{architecture}" for architecture in FACTORS):
        theirs = _like(name).state_dict()
        fits = all(
            key in theirs and all(a <= b for a, b in zip(values.shape, theirs[key].shape, strict=True))
            for key, values in own.items()
        )
        if fits and skips == [blocks[0].has_skip for blocks in _like(name).blocks]:
            return name
    return ""


@cache
def _like(name: str) -> Any:
    with torch.device("meta"):
        return timm.create_model(name)


def tower_state(trained: Trained) -> dict[str, Tensor]:
    """Weights by timm's names; its classifier gives our features, before they are brought to length 1."""
    like = _like(name_of(trained))
    head, own, width = like.num_features, trained.model.image_tower.num_features, trained.model.width
    layer, weight, bias = trained.model.image_projection, torch.eye(width), torch.zeros(width)
    if isinstance(layer, nn.Linear):
        weight, bias = layer.weight, layer.bias
    both = torch.zeros(head, own)
    both[:own], both[own : 2 * own] = torch.eye(own), -torch.eye(own)
    classifier = torch.zeros(width, head)
    classifier[:, :own], classifier[:, own : 2 * own] = weight, -weight
    ours: dict[str, Tensor] = {**trained.model.image_tower.state_dict(), "conv_head.weight": both[:, :, None, None]}
    state = dict[str, Tensor]()
    for name, theirs in like.state_dict().items():
        if name.startswith(_TOWER):  # zeros of their shape, with our values in the first places
            state[name] = torch.zeros(theirs.shape, dtype=ours[name].dtype if name in ours else torch.float32)
            if name in ours:
                state[name][tuple(slice(side) for side in ours[name].shape)] = ours[name]
    return {
        **state,
        "bn2.weight": torch.full((head,), 1 + EPSILON).sqrt(),  # undoes the division by sqrt(1 + epsilon)
        "bn2.bias": torch.zeros(head),
        "bn2.running_mean": torch.zeros(head),
        "bn2.running_var": torch.ones(head),
        "bn2.num_batches_tracked": torch.zeros((), dtype=torch.int64),
        "classifier.weight": classifier,
        "classifier.bias": bias.clone(),
    }
