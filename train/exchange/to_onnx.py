"""`--to onnx`: `image.onnx` and `text.onnx`, each with any number of inputs, and `image.toml` for our own embedder."""

import json
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from altalign.train.data.batches import padded
from altalign.train.data.tokenizer import read
from altalign.train.exchange.encoders import Trained
from altalign.train.exchange.target import Reopened, write_tokenizer

PACKAGE = "onnxruntime"
TOLERANCE = 1e-4
_OPSET = 17


class _Image(nn.Module):
    """Embeddings of squares as they were resized, floats from 0 to 255: (n, 3, resize_px, resize_px)."""

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        resize, self.side = trained.evaluation_sizes
        self.first, self.model = (resize - self.side) // 2, trained.model

    def forward(self, images: Tensor) -> Tensor:
        middle = slice(self.first, self.first + self.side)
        return self.model.encode_image(images[:, :, middle, middle])


class _Text(nn.Module):
    """Embeddings of tokens (n, length), padded with 0."""

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self.model = trained.model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model.encode_text(tokens, tokens != 0)


def check(_trained: Trained) -> None:
    """Graphs hold every model."""


def write(trained: Trained, folder: Path) -> list[str]:
    """Write the folder; returns notes for its user."""
    resize, crop = trained.evaluation_sizes
    tokens, _ = padded(trained.tokenizer.encode(["a", "a b"]), trained.tokenizer.tokens_at_most)
    _graph(_Image(trained), torch.zeros(2, 3, resize, resize), "images", {0: "images"}, folder / "image.onnx")
    _graph(_Text(trained), tokens, "tokens", {0: "captions", 1: "length"}, folder / "text.onnx")
    (folder / "image.toml").write_text(
        f"# images are resized to {resize} px; the graph takes the middle {crop} px and scales pixels itself\n"
        f"input_size = {resize}\nmean = [0.0, 0.0, 0.0]\nstd = [1.0, 1.0, 1.0]\nscale = 1.0\n"
        'layout = "nchw"\noutput_name = "embeddings"\n',
        encoding="utf-8",
    )
    write_tokenizer(trained, folder)
    facts = {"resize_px": resize, "crop_px": crop, "tokens_at_most": trained.tokenizer.tokens_at_most, "padding": 0}
    (folder / "preprocessing.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return [f"`image.onnx` takes floats from 0 to 255, (n, 3, {resize}, {resize}); `text.onnx` int64 (n, length)"]


def reopen(trained: Trained, folder: Path) -> Reopened:
    """The graphs as onnxruntime opens them. Pixels are of the crop: a border of zeros is laid around them."""
    import onnxruntime

    image, text = (
        onnxruntime.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
        for name in ("image", "text")
    )
    words = read(str(folder / "tokenizer.json"), tokens_at_most=trained.tokenizer.tokens_at_most)
    resize, crop = trained.evaluation_sizes
    first = (resize - crop) // 2
    after = resize - crop - first

    def encode_image(pixels: Tensor) -> Tensor:
        squares = nn.functional.pad(pixels.float(), (first, after, first, after))
        return torch.from_numpy(image.run(["embeddings"], {"images": squares.numpy()})[0])

    def encode_text(captions: list[str]) -> Tensor:
        tokens, _ = padded(words.encode(captions), words.tokens_at_most)
        return torch.from_numpy(text.run(["embeddings"], {"tokens": tokens.numpy()})[0])

    return Reopened(encode_image, encode_text)


def _graph(module: nn.Module, example: Tensor, name: str, free: dict[int, str], path: Path) -> None:
    """Write the graph of a module of one input, some of whose sides are free."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # what was traced is compared afterwards
        torch.onnx.export(
            module.eval(),
            (example,),
            str(path),
            input_names=[name],
            output_names=["embeddings"],
            dynamic_axes={name: free, "embeddings": {0: free[0]}},
            opset_version=_OPSET,
            dynamo=False,  # the other exporter needs another package
        )
