"""First weights from safetensors: of a file, of a folder of open_clip or transformers, or of a training run."""

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from altalign import storage
from altalign.errors import UnreadableError, UsageError
from altalign.train.run import checkpoints, published
from altalign.train.settings.training import OF_RUN

_OF_FOLDERS = ("model.safetensors", "open_clip_model.safetensors")
_PICKLES_OF_FOLDERS = ("pytorch_model.bin", "open_clip_pytorch_model.bin")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# of which a model with shorter captions takes the first
_POSITIONS = ("embeddings.position_embeddings.weight", "embed_positions.weight", "positional_embedding")


def read_into(
    module: nn.Module,
    path: str,
    *,
    setting: str,
    prefixes: Sequence[str],
    unused: Sequence[str],
    renamed: Mapping[str, str] | None = None,
) -> None:
    """Replace all weights and buffers of `module` by those of a file, a folder, or the newest checkpoint of `run:RUN`.

    Names in the file may all the same begin with one of `prefixes` (the file is of a larger model, whose other parts
    are left out); names that then begin with one of `unused` are left out too, and those in `renamed` get its names.
    Counts of batches may be missing. Of a longer table of positions the first are taken. Of a pickle tensors alone are
    read, and no code is run.
    """
    tensors = _read(path.removeprefix("open_clip:"), setting)
    for prefix in prefixes:
        if any(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(tuple(unused))}
    _fill(module, {(renamed or {}).get(name, name): tensor for name, tensor in kept.items()}, path, setting)


def read_layer_into(module: nn.Module, run: str, *, setting: str, prefix: str, is_optional: bool = False) -> None:
    """Replace the weights of the layer after a tower by those of a run whose names begin with `prefix`."""
    tensors = _read(run, setting).items()
    of_layer = {name.removeprefix(prefix): tensor for name, tensor in tensors if name.startswith(prefix)}
    if of_layer or not is_optional:
        _fill(module, of_layer, run, setting)


def check_there(path: str, setting: str) -> None:
    """Refuse first weights that are not there, before any work. Raises as `read_into`."""
    plain = path.removeprefix("open_clip:")
    if plain and not plain.startswith(OF_RUN) and not storage.is_remote(plain):
        if storage.kind(plain) == "missing":
            raise _missing(path, setting)
        if storage.kind(plain) == "folder":
            _files(plain, setting)


def check_published(path: str, tower: str, *, activation: str, heads: int) -> None:
    """Refuse a folder of a published model that computes otherwise than the settings say."""
    if not path.startswith(OF_RUN) and Path(path).is_dir():
        file = _files(path, f"[{tower}_tower] weights")[0]
        published.check(path, file, tower, activation=activation, heads=heads)


def _fill(module: nn.Module, tensors: dict[str, torch.Tensor], path: str, setting: str) -> None:
    """Replace all weights and buffers of a module. Raises UsageError where the tensors are not the module's."""
    state = module.state_dict()
    for name in _POSITIONS:
        if name in state and name in tensors:
            tensors[name] = tensors[name][: len(state[name])]
    both = [name for name in state if name in tensors]
    shapes = [
        f"{name} {_shape(tensors[name])} for {_shape(state[name])}"
        for name in both
        if tensors[name].shape != state[name].shape
    ]
    missing = [name for name in state if name not in tensors and not name.endswith("num_batches_tracked")]
    unexpected = sorted(tensors.keys() - state.keys())
    for what, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes)):
        if names:
            why = f"not this tower's weights ({what}: {', '.join(names[:3])})"
            raise UsageError(f"{setting}: {path}: {why}; give a file of the same architecture, or change the settings")
    with torch.no_grad():
        for name in both:
            state[name].copy_(tensors[name])


def _read(path: str, setting: str) -> dict[str, torch.Tensor]:
    if path.startswith(OF_RUN):
        try:
            path = str(checkpoints.chosen(path.removeprefix(OF_RUN), None, goes_on=False) / "model.safetensors")
        except UsageError as error:
            raise UsageError(f"{setting}: {error}") from None
    if not storage.is_remote(path) and Path(path).is_dir():
        return {name: tensor for file in _files(path, setting) for name, tensor in _read(file, setting).items()}
    try:
        held = storage.read_bytes(path)
        return published.as_ours(_unpickled(held, path, setting) if path.endswith(_PICKLES) else load(held))
    except FileNotFoundError:
        raise _missing(path, setting) from None
    except SafetensorError as error:
        raise UnreadableError(f"{setting}: {path}: no safetensors file: {error}") from None


def _unpickled(held: bytes, path: str, setting: str) -> dict[str, torch.Tensor]:
    """The tensors that `torch.save` wrote, or those of a checkpoint of open_clip's trainer."""
    try:
        found = torch.load(BytesIO(held), map_location="cpu", weights_only=True)
        tensors = found.get("state_dict", found)
        if all(isinstance(one, torch.Tensor) for one in tensors.values()):
            return tensors
    except (MemoryError, UsageError):
        raise
    except Exception:
        pass
    why = "more than a table of tensors, and a pickle may run code when it is read"
    raise UsageError(f"{setting}: {path}: {why}; give safetensors")


def _missing(path: str, setting: str) -> UsageError:
    advice = "give a safetensors file, or leave the setting out to start from scratch"
    return UsageError(f"{setting}: {path}: no such file; {advice}")


def _files(folder: str, setting: str) -> list[str]:
    """The file of a folder's weights, or those that its index lists."""
    index = Path(folder, "model.safetensors.index.json")
    if index.is_file():
        return [str(Path(folder, name)) for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    for file in (Path(folder, name) for name in (*_OF_FOLDERS, *_PICKLES_OF_FOLDERS)):
        if file.is_file():
            return [str(file)]
    why = f"a folder without {' or '.join(_OF_FOLDERS)}"
    raise UsageError(f"{setting}: {folder}: {why}; give one with weights in safetensors, or the path of the file")


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(str(side) for side in tensor.shape) or "number"
