"""A model of open_clip with the same random weights each time."""

import warnings
from pathlib import Path

import open_clip
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

_OPSET = 17


def saved(name: str, folder: Path) -> Path:
    """Write its weights; returns the file."""
    torch.manual_seed(0)
    path = folder / "model.safetensors"
    save_file(open_clip.create_model(name).state_dict(), path)
    return path


def in_onnx(name: str, folder: Path) -> None:
    """Write its towers as graphs for `onnx:FOLDER`, and a linear head on its embeddings beside the folder.

    The tokenizer is of a few words: texts are not what is measured.
    """
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(value=False)  # of no graph
    model = open_clip.create_model(name).eval()
    wanted = open_clip.transform.PreprocessCfg(**model.visual.preprocess_cfg)
    side = wanted.size[0] if isinstance(wanted.size, tuple) else wanted.size
    _graph(_Tower(model, "encode_image"), torch.zeros(2, 3, side, side), folder / "image.onnx")
    tokens = torch.zeros(2, model.context_length, dtype=torch.int64)
    _graph(_Tower(model, "encode_text"), tokens, folder / "text.onnx")
    (folder / "image.toml").write_text(
        f'input_size = {side}\nmean = {list(wanted.mean)}\nstd = {list(wanted.std)}\nlayout = "nchw"\n'
        f'crop = true\ninterpolation = "{wanted.interpolation}"\n',
        encoding="utf-8",
    )
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "two": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file({"weight": torch.randn(1, model.text_projection.shape[1])}, folder.parent / "head.safetensors")


class _Tower(torch.nn.Module):
    def __init__(self, model: torch.nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return getattr(self.model, self.name)(given)


def _graph(tower: torch.nn.Module, example: torch.Tensor, path: Path) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            tower,
            (example,),
            str(path),
            input_names=["given"],
            output_names=["embeddings"],
            dynamic_axes={"given": {0: "n"}, "embeddings": {0: "n"}},
            opset_version=_OPSET,
            dynamo=False,  # the other exporter needs another package
        )
