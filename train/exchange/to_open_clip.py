"""`--to open_clip`: a folder for `open_clip.create_model_and_transforms("local-dir:DIR")`."""

import importlib
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from altalign import storage
from altalign.train.exchange import to_timm
from altalign.train.exchange.encoders import Trained
from altalign.train.exchange.forms import Reopened, write_tokenizer
from altalign.train.model.image_tower import HALF_OF_THE_RANGE

PACKAGE = "open_clip"
TOLERANCE = 1e-5
WEIGHTS = "open_clip_model.safetensors"


def unfit(trained: Trained) -> str:
    """Why open_clip's model cannot hold a model; empty where it can."""
    return to_timm.unfit(trained, has_text=True)


def write(trained: Trained, folder: Path) -> list[str]:
    """Write the folder; returns notes for its user."""
    (resize, crop), place = trained.evaluation_sizes, str(folder.resolve())
    settings = {
        "model_cfg": {
            "embed_dim": trained.model.width,
            "vision_cfg": {
                "timm_model_name": to_timm.name_of(trained),
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
                "context_length": trained.tokenizer.tokens_at_most,
                "vocab_size": trained.tokenizer.vocabulary,
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
    bias = trained.model.temperature.bias
    if bias is not None:
        settings["model_cfg"]["init_logit_bias"] = float(bias)
    storage.write_json(str(folder / "open_clip_config.json"), settings)
    trained.bert.config.save_pretrained(folder)
    write_tokenizer(trained, folder)
    tensors = {f"visual.trunk.{name}": values for name, values in to_timm.tower_state(trained).items()}
    tensors |= {f"text.transformer.{name}": values for name, values in trained.bert.state_dict().items()}
    last = f"text.transformer.encoder.layer.{trained.config.text_tower.layers - 1}.output.LayerNorm."
    weight = _without_bias(trained.model.text_projection, scale=tensors[f"{last}weight"], shift=tensors[f"{last}bias"])
    tensors |= {last + name: torch.ones_like(tensors[last + name]) for name in ("weight", "bias")}
    tensors |= {"text.proj.weight": weight, "logit_scale": -trained.model.temperature.value().log()}
    tensors |= {} if bias is None else {"logit_bias": bias}
    save_file({name: values.contiguous() for name, values in tensors.items()}, folder / WEIGHTS)
    notes = [
        "needs the packages open_clip_torch and transformers",
        "open_clip's tokenizer cleans captions first (curly quotes, ligatures, full-width letters, HTML entities, text "
        "that looks wrongly decoded), and no setting turns that off: after `tokenizer.clean_fn = str` every caption "
        "embeds as here",
        "open_clip_config.json names this folder as hf_model_name and hf_tokenizer_name: change both where you move it",
    ]
    if crop != resize:
        notes.append(
            f"open_clip's transform has no crop after its resize: it sees whole images at {crop} px, where ours sees "
            f"the middle {crop} of {resize} px; the model is the same"
        )
    return notes


def reopen(_trained: Trained, folder: Path) -> Reopened:
    """The folder as open_clip opens it."""
    open_clip = importlib.import_module("open_clip")
    model, _, _ = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    words = open_clip.get_tokenizer(f"local-dir:{folder}")
    words.clean_fn = str
    model.eval()
    return (
        lambda pixels: model.encode_image(pixels.float() / HALF_OF_THE_RANGE - 1, normalize=True),
        lambda captions: model.encode_text(words(captions), normalize=True),
    )


def _without_bias(layer: nn.Linear, *, scale: Tensor, shift: Tensor) -> Tensor:
    """Weights that give, after a layer norm of scale 1 and shift 1, what `layer` gives after this scale and shift.

    What a layer norm scales sums to 0, its shift does not: what is added to a whole row of weights counts as a bias.
    """
    weight, bias, of_norm = layer.weight.double(), layer.bias.double(), scale.double()
    scaled = weight * of_norm
    shifted = weight @ shift.double() + bias
    return (scaled + ((shifted - scaled.sum(1)) / len(of_norm))[:, None]).float()
