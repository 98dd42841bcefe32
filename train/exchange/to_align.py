"""`--to align`: a folder of transformers' AlignModel, with its processor."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AlignConfig, AlignModel, AlignProcessor, AutoTokenizer, EfficientNetImageProcessor

from altalign.train.exchange.encoders import Trained
from altalign.train.exchange.forms import Reopened, unfit_padding, write_tokenizer
from altalign.train.exchange.forms import unfit as unfit_for_all
from altalign.train.model.image_tower import EPSILON, FACTORS, HALF_OF_THE_RANGE, align_names
from altalign.train.model.text_tower import FEED_FORWARD

PACKAGE = "transformers"
TOLERANCE = 1e-5
_PROCESSOR_TOKENS = 64  # AlignProcessor pads captions to this, whatever the model has
_BILINEAR = 2


def unfit(trained: Trained) -> str:
    """Why AlignModel cannot hold a model; empty where it can."""
    if why := unfit_for_all(trained, has_text=True):
        return why
    image: Any = trained.model.image_tower
    if trained.model.width != image.num_features:
        width = f"[image_tower] embedding_width = {trained.model.width}"
        own = f"whose own width is {image.num_features}"
        return f"{width}, and AlignModel has no projection after its image tower, {own}; train with embedding_width = 0"
    if why := unfit_padding(trained, "AlignModel", padding="keras"):
        return why
    if any(blocks[0].has_skip for blocks in image.blocks):
        width = f"at [image_tower] width = {trained.config.image_tower.width:g}"
        return f"{width} the first block of a stage has a skip, which AlignModel's has not; train with another width"
    return ""


def write(trained: Trained, folder: Path) -> list[str]:
    """Write the folder; returns notes for its user."""
    image, text, (resize, crop) = trained.config.image_tower, trained.config.text_tower, trained.evaluation_sizes
    width, depth = FACTORS[image.architecture]
    config = AlignConfig(
        text_config={
            "vocab_size": trained.tokenizer.vocabulary,
            "hidden_size": text.width,
            "num_hidden_layers": text.layers,
            "num_attention_heads": text.heads,
            "intermediate_size": FEED_FORWARD * text.width,
            "hidden_dropout_prob": text.dropout,
            "attention_probs_dropout_prob": text.dropout,
            "max_position_embeddings": max(trained.tokenizer.tokens_at_most, _PROCESSOR_TOKENS),
        },
        vision_config={
            "width_coefficient": image.width or width,
            "depth_coefficient": image.depth or depth,
            "image_size": crop,
            "hidden_dim": crop,  # of the pooling alone: not smaller than the map
            "batch_norm_eps": EPSILON,
            "batch_norm_momentum": image.batch_norm_momentum,
            "drop_connect_rate": 0.0,
        },
        projection_dim=trained.model.width,
        temperature_init_value=float(trained.model.temperature.value()),
    )
    model = AlignModel(config)
    model.load_state_dict(_state(trained, model.state_dict()))
    model.save_pretrained(folder)
    processor = EfficientNetImageProcessor(
        size={"height": resize, "width": resize},
        do_center_crop=True,
        crop_size={"height": crop, "width": crop},
        resample=_BILINEAR,
        rescale_factor=1 / HALF_OF_THE_RANGE,
        rescale_offset=True,
        do_normalize=False,
        include_top=False,
    )
    write_tokenizer(trained, folder)
    AlignProcessor(processor, AutoTokenizer.from_pretrained(folder)).save_pretrained(folder)
    most, kept = trained.tokenizer.tokens_at_most, 1 - image.batch_norm_momentum
    return [
        f"give the processor `truncation=True, max_length={most}`: it pads captions to {_PROCESSOR_TOKENS} by itself "
        "and does not cut them",
        f"do not train on with this class: its batch norm keeps {kept:.0%} of its running statistics a step",
    ]


def _state(trained: Trained, theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our weights by AlignModel's names. Positions beyond our captions, and the unused pooler, are zeros."""
    image, text = trained.model.image_tower.state_dict(), trained.bert.state_dict()
    ours = {f"vision_model.{name}": image[own] for own, name in align_names(image).items()}
    ours |= {f"text_model.{name}": values for name, values in text.items()}
    ours |= {f"text_projection.{name}": values for name, values in trained.model.text_projection.state_dict().items()}
    ours["temperature"] = trained.model.temperature.value()
    ours |= {name: torch.zeros_like(theirs[name]) for name in theirs if name.startswith("text_model.pooler.")}
    name = "text_model.embeddings.position_embeddings.weight"
    positions = torch.zeros_like(theirs[name])
    positions[: len(ours[name])] = ours[name]
    return {**ours, name: positions}


def reopen(trained: Trained, folder: Path) -> Reopened:
    """The folder as transformers opens it."""
    model = AlignModel.from_pretrained(folder).eval()
    words, most = AutoTokenizer.from_pretrained(folder), trained.tokenizer.tokens_at_most

    def encode_image(pixels: Tensor) -> Tensor:
        features: Any = model.get_image_features(pixel_values=pixels.float() / HALF_OF_THE_RANGE - 1)
        return functional.normalize(features.pooler_output, dim=-1)

    def encode_text(captions: list[str]) -> Tensor:
        tokens = words(captions, padding=True, truncation=True, max_length=most, return_tensors="pt")
        features: Any = model.get_text_features(**tokens)
        return functional.normalize(features.pooler_output, dim=-1)

    return encode_image, encode_text
