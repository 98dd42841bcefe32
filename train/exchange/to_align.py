"""`--to align`: a folder of transformers' AlignModel, with its processor."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AlignConfig, AlignModel, AlignProcessor, AutoTokenizer, EfficientNetImageProcessor

from altalign.train.exchange.encoders import Trained
from altalign.train.exchange.target import Reopened, check_towers, has_odd_side, refuse, write_tokenizer
from altalign.train.model.image_tower import EPSILON, FACTORS, HALF_OF_THE_RANGE, align_names
from altalign.train.model.text_tower import FEED_FORWARD

PACKAGE = "transformers"
TOLERANCE = 1e-5
_PROCESSOR_TOKENS = 64  # AlignProcessor pads captions to this, whatever the model has
_BILINEAR = 2


def check(of: Trained) -> None:
    """Refuse what AlignModel cannot hold.

    Raises:
        UsageError: naming it.
    """
    check_towers(of, "align")
    _ = of.bert
    tower, own, (_, px) = of.config.image_tower, of.model.image_tower.num_features, of.evaluation_sizes
    if of.model.width != own:
        raise refuse(
            of,
            "align",
            f"[image_tower] embedding_width = {of.model.width}, and AlignModel has no projection after its image "
            f"tower, whose own width is {own}",
            "train with embedding_width = 0",
        )
    if tower.padding == "same" and has_odd_side(px):
        raise refuse(
            of,
            "align",
            f'[image_tower] padding = "same" pads otherwise than AlignModel where a side is odd, as at {px} px',
            'train with padding = "keras", or export with --crop-px of a multiple of 32',
        )
    if any(blocks[0].has_skip for blocks in of.model.image_tower.blocks):  # type: ignore[index]
        raise refuse(
            of,
            "align",
            f"at [image_tower] width = {tower.width:g} the first block of a stage has a skip, which "
            "AlignModel's has not",
            "train with another width",
        )


def write(of: Trained, folder: Path) -> list[str]:
    """Write the folder; returns notes for its user."""
    model = AlignModel(_config(of))
    model.load_state_dict(_state(of, model.state_dict()))
    model.save_pretrained(folder)
    resize, crop = of.evaluation_sizes
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
    write_tokenizer(of, folder)
    AlignProcessor(processor, AutoTokenizer.from_pretrained(folder)).save_pretrained(folder)
    most, kept = of.tokenizer.tokens_at_most, 1 - of.config.image_tower.batch_norm_momentum
    return [
        f"give the processor `truncation=True, max_length={most}`: it pads captions to {_PROCESSOR_TOKENS} by itself "
        "and does not cut them",
        f"do not train on with this class: its batch norm keeps {kept:.0%} of its running statistics a step",
    ]


def reopen(of: Trained, folder: Path) -> Reopened:
    """The folder as transformers opens it."""
    model = AlignModel.from_pretrained(folder).eval()
    words = AutoTokenizer.from_pretrained(folder)

    def encode_image(pixels: Tensor) -> Tensor:
        found: Any = model.get_image_features(pixel_values=pixels.float() / HALF_OF_THE_RANGE - 1)
        return functional.normalize(found.pooler_output, dim=-1)

    def encode_text(captions: list[str]) -> Tensor:
        most = of.tokenizer.tokens_at_most
        given = words(captions, padding=True, truncation=True, max_length=most, return_tensors="pt")
        found: Any = model.get_text_features(**given)
        return functional.normalize(found.pooler_output, dim=-1)

    return Reopened(encode_image, encode_text)


def _config(of: Trained) -> AlignConfig:
    image, text = of.config.image_tower, of.config.text_tower
    width, depth = FACTORS[image.architecture]
    _, px = of.evaluation_sizes
    text_config: dict[str, object] = {
        "vocab_size": of.tokenizer.vocabulary,
        "hidden_size": text.width,
        "num_hidden_layers": text.layers,
        "num_attention_heads": text.heads,
        "intermediate_size": FEED_FORWARD * text.width,
        "hidden_dropout_prob": text.dropout,
        "attention_probs_dropout_prob": text.dropout,
        "max_position_embeddings": max(of.tokenizer.tokens_at_most, _PROCESSOR_TOKENS),
    }
    vision_config = {
        "width_coefficient": image.width or width,
        "depth_coefficient": image.depth or depth,
        "image_size": px,
        "hidden_dim": px,  # of the pooling alone: not smaller than the map
        "batch_norm_eps": EPSILON,
        "batch_norm_momentum": image.batch_norm_momentum,
        "drop_connect_rate": 0.0,
    }
    temperature = float(of.model.temperature.value())
    return AlignConfig(
        text_config=text_config,
        vision_config=vision_config,
        projection_dim=of.model.width,
        temperature_init_value=temperature,
    )


def _state(of: Trained, theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our weights by AlignModel's names. Positions beyond our captions, and the unused pooler, are zeros."""
    image, text = of.model.image_tower.state_dict(), of.bert.state_dict()
    found = {f"vision_model.{name}": image[own] for own, name in align_names(image).items()}
    found |= {f"text_model.{name}": values for name, values in text.items()}
    found |= {f"text_projection.{name}": values for name, values in of.model.text_projection.state_dict().items()}
    found["temperature"] = of.model.temperature.value()
    for name, values in theirs.items():
        if name.startswith("text_model.pooler."):
            found[name] = torch.zeros_like(values)
    positions = "text_model.embeddings.position_embeddings.weight"
    found[positions] = torch.zeros_like(theirs[positions]).index_copy_(
        0, torch.arange(len(found[positions])), found[positions]
    )
    return found
