"""`--to timm`: the image tower alone, for `timm.create_model("local-dir:DIR", pretrained=True)`."""

import json
from pathlib import Path

import timm
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from altalign.train.exchange import with_head
from altalign.train.exchange.encoders import Trained
from altalign.train.exchange.target import Reopened
from altalign.train.model.image_tower import HALF_OF_THE_RANGE

PACKAGE = "timm"
TOLERANCE = 1e-5


def check(of: Trained) -> None:
    """Refuse what timm's model cannot hold. Raises as `with_head.check`."""
    with_head.check(of, "timm")


def write(of: Trained, folder: Path) -> list[str]:
    """Write the folder; returns notes for its user."""
    resize, crop = of.evaluation_sizes
    settings = {
        "architecture": with_head.name_of(of),
        "num_classes": of.model.width,
        "num_features": with_head.channels(of),
        "pretrained_cfg": {
            "num_classes": of.model.width,
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
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    save_file(with_head.state(of), folder / "model.safetensors")
    return ["the classifier's outputs are the image's features; bring them to length 1 for cosines"]


def reopen(_of: Trained, folder: Path) -> Reopened:
    """The folder as timm opens it."""
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()

    def encode_image(pixels: Tensor) -> Tensor:
        return functional.normalize(model(pixels.float() / HALF_OF_THE_RANGE - 1), dim=-1)

    return Reopened(encode_image, None)
