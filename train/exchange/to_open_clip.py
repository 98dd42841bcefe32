"""`--to open_clip`: a folder for `open_clip.create_model_and_transforms("local-dir:DIR")`."""

import importlib
import json
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from altalign.errors import UsageError, bring
from altalign.train.encoders import Trained
from altalign.train.exchange import with_head
from altalign.train.exchange.target import Reopened, refuse, write_tokenizer
from altalign.train.model.image_tower import HALF_OF_THE_RANGE

TOLERANCE = 1e-5
WEIGHTS = "open_clip_model.safetensors"
_REST_AT_MOST = 1e-6  # of the text projection's bias


def check(of: Trained) -> None:
    """Refuse what open_clip's model cannot hold.

    Raises:
        UsageError: naming it, or the package is missing.
    """
    if find_spec("open_clip") is None:
        raise UsageError(
            f"--to open_clip: what is written is opened by the package open_clip, which is "
            f"missing; {bring('open_clip')}"
        )
    with_head.check(of, "open_clip")
    rest = _shift(of)[1]
    if rest > _REST_AT_MOST:
        raise refuse(
            of,
            "open_clip",
            f"the text projection has a bias, open_clip's has none, and the {of.config.text_tower.width} numbers of "
            f"the text tower cannot make up for {of.model.width} of it ({rest:.2g} stays)",
            "export to align or onnx, or train with [text_tower] width of at least that of the embeddings",
        )


def write(of: Trained, folder: Path) -> list[str]:
    """Write the folder; returns notes for its user."""
    resize, crop = of.evaluation_sizes
    place = str(folder.resolve())
    settings = {
        "model_cfg": {
            "embed_dim": of.model.width,
            "vision_cfg": {
                "timm_model_name": with_head.name_of(of),
                "timm_model_pretrained": False,
                "timm_pool": "avg",
                "timm_proj": "",
                "image_size": crop,
            },
            "text_cfg": {
                "hf_model_name": place,
                "hf_tokenizer_name": place,
                "hf_proj_type": "linear",
                "hf_pooler_type": "cls_last_hidden_state_pooler",
                "context_length": of.tokenizer.tokens_at_most,
                "vocab_size": of.tokenizer.vocabulary,
            },
        },
        "preprocess_cfg": {
            "size": crop,
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
            "interpolation": "bilinear",
            "resize_mode": "squash",
        },
    }
    (folder / "open_clip_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    of.bert.config.save_pretrained(folder)
    write_tokenizer(of, folder)
    image = {f"visual.trunk.{name}": values for name, values in with_head.state(of).items()}
    text = {f"text.transformer.{name}": values for name, values in of.bert.state_dict().items()}
    last = f"text.transformer.encoder.layer.{of.config.text_tower.layers - 1}.output.LayerNorm.bias"
    text[last] = text[last] + _shift(of)[0]
    rest = {
        "text.proj.weight": of.model.text_projection.weight,
        "logit_scale": -of.model.temperature.value().log(),
    }
    save_file({name: values.contiguous() for name, values in {**image, **text, **rest}.items()}, folder / WEIGHTS)
    notes = [
        "open_clip_config.json names this folder as hf_model_name and hf_tokenizer_name: change both where you move it"
    ]
    if crop != resize:
        notes.append(
            f"open_clip's transform has no crop after its resize: it sees whole images at {crop} px, where ours sees "
            f"the middle {crop} of {resize} px; the model is the same"
        )
    return notes


def reopen(_of: Trained, folder: Path) -> Reopened:
    """The folder as open_clip opens it."""
    open_clip = importlib.import_module("open_clip")
    model, _, _ = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    words = open_clip.get_tokenizer(f"local-dir:{folder}")
    model.eval()

    def encode_image(pixels: Tensor) -> Tensor:
        return model.encode_image(pixels.float() / HALF_OF_THE_RANGE - 1, normalize=True)

    return Reopened(encode_image, lambda captions: functional.normalize(model.encode_text(words(captions)), dim=-1))


def _shift(of: Trained) -> tuple[Tensor, float]:
    """What to add to the last layer norm's shift, so that the projection without bias gives what it gave with it.

    Also how much of the bias, at most, no such shift makes up for.
    """
    layer = of.model.text_projection
    weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
    shift = torch.linalg.lstsq(weight, bias[:, None], driver="gelsd").solution[:, 0]
    return shift.float(), float((weight @ shift - bias).abs().max())
