"""What all export formats share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from altalign.errors import UsageError
from altalign.train.exchange.encoders import Trained

STRIDED = 5  # convolutions of stride 2 that an image goes through


@dataclass(frozen=True)
class Reopened:
    """What was written, opened as its users open it.

    encode_image: embeddings of pixels, uint8 (n, 3, px, px).
    encode_text: embeddings of captions; None where there is no text tower.
    """

    encode_image: Callable[[Tensor], Tensor]
    encode_text: Callable[[list[str]], Tensor] | None


def has_odd_side(px: int) -> bool:
    """Whether a map has an odd side on the way through the tower, where the two ways of padding differ."""
    for _ in range(STRIDED):
        if px % 2:
            return True
        px //= 2
    return False


def refuse(of: Trained, to: str, why: str, repair: str) -> UsageError:
    """The error for what a form cannot hold."""
    return UsageError(f"{of.config.run.folder}: --to {to} cannot hold this model: {why}; {repair}")


def check_towers(of: Trained, to: str) -> None:
    """Refuse what no form but ONNX holds so far.

    Raises:
        UsageError: the image tower is a ViT, or evaluation keeps the aspect ratio.
    """
    if of.config.image_tower.is_vit:
        raise refuse(of, to, f"its image tower is a ViT ({of.config.image_tower.architecture})", "export to onnx")
    if of.config.evaluation.keep_aspect_ratio:
        raise refuse(of, to, "[evaluation] keep_aspect_ratio, which the form does not write", "export to onnx")


def projection_of(of: Trained) -> tuple[Tensor, Tensor]:
    """Weight (width, own width of the tower) and bias (width,) of the linear layer after the image tower."""
    layer = of.model.image_projection
    if isinstance(layer, nn.Linear):
        return layer.weight.detach(), layer.bias.detach()
    return torch.eye(of.model.width), torch.zeros(of.model.width)


def write_tokenizer(of: Trained, folder: Path) -> None:
    """`tokenizer.json` and what transformers wants beside it."""
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    (folder / "tokenizer.json").write_text(of.tokenizer.text, encoding="utf-8")
    PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        model_max_length=of.tokenizer.tokens_at_most,
        model_input_names=["input_ids", "attention_mask"],
        split_special_tokens=True,  # a caption may say "[SEP]"
        **special,
    ).save_pretrained(folder)
