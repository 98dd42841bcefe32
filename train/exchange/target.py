"""What all export formats share."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedTokenizerFast

from altalign.errors import UsageError
from altalign.train.exchange.encoders import Trained

STRIDED = 5  # convolutions of stride 2 that an image goes through


# What was written, as its users open it: embeddings of pixels, uint8 (n, 3, px, px), and of captions, if it takes any
Reopened = tuple[Callable[[Tensor], Tensor], Callable[[list[str]], Tensor] | None]


def has_odd_side(px: int) -> bool:
    """Whether a map has an odd side on the way through the tower, where the two ways of padding differ."""
    return px % 2**STRIDED != 0


def refuse(trained: Trained, to: str, why: str, repair: str) -> UsageError:
    """The error for what a form cannot hold."""
    return UsageError(f"{trained.config.run.folder}: --to {to} cannot hold this model: {why}; {repair}")


def check_towers(trained: Trained, to: str) -> None:
    """Refuse what no form but ONNX holds so far: a ViT, and evaluation that keeps the aspect ratio."""
    tower = trained.config.image_tower
    if tower.is_vit:
        raise refuse(trained, to, f"its image tower is a ViT ({tower.architecture})", "export to onnx")
    if trained.config.evaluation.keep_aspect_ratio:
        raise refuse(trained, to, "[evaluation] keep_aspect_ratio, which the form does not write", "export to onnx")


def write_tokenizer(trained: Trained, folder: Path) -> None:
    """`tokenizer.json` and what transformers wants beside it."""
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    (folder / "tokenizer.json").write_text(trained.tokenizer.text, encoding="utf-8")
    PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        model_max_length=trained.tokenizer.tokens_at_most,
        model_input_names=["input_ids", "attention_mask"],
        split_special_tokens=True,  # a caption may say "[SEP]"
        **special,
    ).save_pretrained(folder)
