"""`--to onnx`: `image.onnx` and `text.onnx`, each with any number of inputs, and `image.toml` for our own embedder."""

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from altalign import storage
from altalign.train.data.batches import padded
from altalign.train.data.tokenizer import read
from altalign.train.exchange.encoders import Trained
from altalign.train.exchange.forms import Reopened, write_tokenizer
from altalign.train.model.text_tower import ClipTower

PACKAGE = "onnxruntime"
TOLERANCE = 1e-4
_OPSET = 17


class _Graph(nn.Module):
    def __init__(self, model: nn.Module, compute: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.compute = model, compute

    def forward(self, given: Tensor) -> Tensor:
        return self.compute(given)


def unfit(_trained: Trained) -> str:
    """Graphs hold every model."""
    return ""


def write(trained: Trained, folder: Path) -> list[str]:
    """Write the folder; returns notes for its user."""
    (resize, crop), model = trained.evaluation_sizes, trained.model
    middle = slice((resize - crop) // 2, (resize - crop) // 2 + crop)
    tokens, _ = padded(trained.tokenizer.encode(["a", "a b"]), trained.tokenizer.tokens_at_most)
    padding = _padding(trained)
    # of squares as they were resized, floats from 0 to 255 (n, 3, resize_px, resize_px); of tokens padded with 0
    image = _Graph(model, lambda images: model.encode_image(images[:, :, middle, middle]))
    pieces = (lambda tokens: tokens.clamp(min=0)) if padding else (lambda tokens: tokens)
    text = _Graph(model, lambda tokens: model.encode_text(pieces(tokens), tokens != padding))
    _write(image, torch.zeros(2, 3, resize, resize), "images", {0: "images"}, folder / "image.onnx")
    _write(text, tokens, "tokens", {0: "captions", 1: "length"}, folder / "text.onnx")
    (folder / "image.toml").write_text(
        f"# images are resized to {resize} px; the graph takes the middle {crop} px and scales pixels itself\n"
        f"input_size = {resize}\nmean = [0.0, 0.0, 0.0]\nstd = [1.0, 1.0, 1.0]\nscale = 1.0\n"
        'layout = "nchw"\noutput_name = "embeddings"\n',
        encoding="utf-8",
    )
    write_tokenizer(trained, folder)
    facts = {
        "resize_px": resize,
        "crop_px": crop,
        "tokens_at_most": trained.tokenizer.tokens_at_most,
        "padding": padding,
    }
    storage.write_json(str(folder / "preprocessing.json"), facts)
    return [f"`image.onnx` takes floats from 0 to 255, (n, 3, {resize}, {resize}); `text.onnx` int64 (n, length)"]


def _padding(trained: Trained) -> int:
    """What stands for no token: of CLIP and SigLIP 0 is a piece of text."""
    return -1 if isinstance(trained.model.text_tower, ClipTower) else 0


def reopen(trained: Trained, folder: Path) -> Reopened:
    """The graphs as onnxruntime opens them. Pixels are of the crop: a border of zeros is laid around them."""
    import onnxruntime

    image, text = (
        onnxruntime.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
        for name in ("image", "text")
    )
    words = read(str(folder / "tokenizer.json"), tokens_at_most=trained.tokenizer.tokens_at_most)
    resize, crop = trained.evaluation_sizes
    before = (resize - crop) // 2
    after = resize - crop - before

    def encode_image(pixels: Tensor) -> Tensor:
        squares = nn.functional.pad(pixels.float(), (before, after, before, after))
        return torch.from_numpy(image.run(["embeddings"], {"images": squares.numpy()})[0])

    def encode_text(captions: list[str]) -> Tensor:
        tokens, mask = padded(words.encode(captions), words.tokens_at_most)
        tokens = tokens.masked_fill(~mask, _padding(trained))
        return torch.from_numpy(text.run(["embeddings"], {"tokens": tokens.numpy()})[0])

    return encode_image, encode_text


def _write(graph: _Graph, example: Tensor, name: str, free: dict[int, str], path: Path) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # what was traced is compared afterwards
        torch.onnx.export(
            graph.eval(),
            (example,),
            str(path),
            input_names=[name],
            output_names=["embeddings"],
            dynamic_axes={name: free, "embeddings": {0: free[0]}},
            opset_version=_OPSET,
            dynamo=False,  # the other exporter needs another package
        )
