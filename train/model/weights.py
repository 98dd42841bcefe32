"""A tower's first weights from a safetensors file."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from altalign import storage
from altalign.errors import UnreadableError, UsageError

NAMES_SHOWN = 3


def read_into(module: nn.Module, path: str, *, setting: str, prefixes: Sequence[str], unused: Sequence[str]) -> None:
    """Replace all weights and buffers of `module` by those of a file.

    Names in the file may all the same begin with one of `prefixes` (the file is of a larger model, whose other parts
    are left out); names that then begin with one of `unused` are left out too. Counts of batches may be missing.
    `setting` names the setting in errors.

    Raises:
        UsageError: the file is not there, or its tensors are not the module's.
        UnreadableError: it is no safetensors file.
    """
    tensors = _own(_read(path, setting), prefixes, unused)
    state = module.state_dict()
    missing = [name for name in state if name not in tensors and not name.endswith("num_batches_tracked")]
    unexpected = sorted(tensors.keys() - state.keys())
    odd = [
        f"{name} {_shape(tensors[name])} for {_shape(state[name])}"
        for name in state
        if name in tensors and tensors[name].shape != state[name].shape
    ]
    faults = [
        f"{word} {_named(names)}"
        for word, names in (("missing:", missing), ("unexpected:", unexpected), ("of another shape:", odd))
        if names
    ]
    if faults:
        raise UsageError(
            f"{setting}: {path}: not this tower's weights ({'; '.join(faults)}); give a file of the same architecture, "
            "or change the settings"
        )
    with torch.no_grad():
        for name in state.keys() & tensors.keys():
            state[name].copy_(tensors[name])


def _read(path: str, setting: str) -> dict[str, torch.Tensor]:
    try:
        return load(storage.read_bytes(path) if storage.is_remote(path) else Path(path).read_bytes())
    except FileNotFoundError:
        raise UsageError(
            f"{setting}: {path}: no such file; give a safetensors file, or leave the setting out to start from scratch"
        ) from None
    except IsADirectoryError:
        raise UsageError(
            f"{setting}: {path}: a folder, where a file of weights (safetensors) is meant; give the path of the file"
        ) from None
    except SafetensorError as error:
        raise UnreadableError(f"{setting}: {path}: no safetensors file: {error}") from None


def _own(tensors: dict[str, torch.Tensor], prefixes: Sequence[str], unused: Sequence[str]) -> dict[str, torch.Tensor]:
    for prefix in prefixes:
        if any(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(tuple(unused))}


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(str(side) for side in tensor.shape) or "number"


def _named(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
