"""What the forms of other libraries share.

Each form is a module with the PACKAGE that opens it, the TOLERANCE of an embedding's numbers, and three functions:
`unfit` says why it cannot hold a model, `write` writes a folder and gives notes for its user, and `reopen` opens it.
"""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedTokenizerFast

from altalign.train.exchange.encoders import Trained

# What was written, as its users open it: embeddings of pixels, uint8 (n, 3, px, px), and of captions, if it takes any
Reopened = tuple[Callable[[Tensor], Tensor], Callable[[list[str]], Tensor] | None]


def unfit(trained: Trained, *, has_text: bool) -> str:
    """Why only ONNX holds a model; empty where nothing speaks against others."""
    tower = trained.config.image_tower
    if tower.is_vit:
        return f"its image tower is a ViT ({tower.architecture}); export to onnx"
    if trained.config.evaluation.keep_aspect_ratio:
        return "[evaluation] keep_aspect_ratio, which the form does not write; export to onnx"
    if has_text and trained.bert is None:
        name = {"bart": "BART", "clip": "CLIP", "siglip": "SigLIP"}[trained.config.text_tower.architecture]
        return f"the text tower is {name}'s, and this form has BERT; give onnx or timm"
    return ""


def unfit_padding(trained: Trained, library: str, *, padding: str) -> str:
    """Why a library that pads so cannot hold a model; empty where no side is odd at five convolutions of stride 2."""
    own, (_, px) = trained.config.image_tower.padding, trained.evaluation_sizes
    if own == padding or px % 2**5 == 0:
        return ""
    why = f'[image_tower] padding = "{own}" pads otherwise than {library} where a side is odd, as at {px} px'
    return f'{why}; train with padding = "{padding}", or export with --crop-px of a multiple of 32'


def write_tokenizer(trained: Trained, folder: Path) -> None:
    """`tokenizer.json` and what transformers wants beside it."""
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    special = {name: piece for name, piece in zip(names, trained.tokenizer.special, strict=True) if piece}
    (folder / "tokenizer.json").write_text(trained.tokenizer.text, encoding="utf-8")
    PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        model_max_length=trained.tokenizer.tokens_at_most,
        model_input_names=["input_ids", "attention_mask"],
        split_special_tokens=True,  # a caption may say "[SEP]"
        **special,
    ).save_pretrained(folder)
