"""Checkpoints of a training run: whole or not there, and checked when they are read.

    checkpoints/step-NNNNNNN/
      model.safetensors       weights and buffers of the towers, the temperature
      optimizer.safetensors   the optimiser's tensors, by PARAMETER/KEY
      optimizer.json          its numbers, by PARAMETER/KEY
      state.json              step, samples seen, lineage
      config.toml tokenizer.json
      manifest.json           SHA-256 of each; finished when it is there

There is no state of random numbers to keep: order, augmentation and dropout are functions of the seed and the step.
"""

import json
import shutil
from collections.abc import Mapping
from errno import EIO, ENOSPC
from hashlib import file_digest
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from altalign import storage, terminal
from altalign.errors import DamagedError, UnreadableError, UsageError
from altalign.storage.local import naming_a_full_disk

_PARTIAL = ".partial"
_FILES = {"model.safetensors", "optimizer.safetensors", "optimizer.json", "state.json", "config.toml", "tokenizer.json"}


def folder_of(run_folder: str, step: int) -> Path:
    """Where the checkpoint after `step` steps is."""
    return Path(run_folder, "checkpoints", f"step-{step:07}")


def finished(run_folder: str) -> list[int]:
    """Steps of the checkpoints that are there, the newest last."""
    found = Path(run_folder, "checkpoints").glob("step-*/manifest.json")
    numbers = (path.parent.name.removeprefix("step-") for path in found)
    return sorted(int(number) for number in numbers if number.isdecimal())  # others are partial, or somebody's copies


def save(
    run_folder: str, step: int, model: nn.Module, optimizer: Optimizer, state: Mapping[str, Any], *, keep: int
) -> None:
    """Write the checkpoint after `step` steps beside its place, then move it there; the `keep` newest stay.

    Raises:
        FullDiskError: no space is left; the checkpoints before it stay.
    """
    place = folder_of(run_folder, step)
    partial = place.with_name(place.name + _PARTIAL)
    with naming_a_full_disk(run_folder, "a checkpoint"):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        tensors, numbers = _state_of(optimizer)
        _write_tensors(
            {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()},
            partial / "model.safetensors",
        )
        _write_tensors(tensors, partial / "optimizer.safetensors")
        for name, value in (("optimizer.json", numbers), ("state.json", {"step": step, **state})):
            storage.write_json(str(partial / name), value)
        for name in ("config.toml", "tokenizer.json"):
            shutil.copyfile(Path(run_folder, name), partial / name)
        storage.write_json(
            str(partial / "manifest.json"), {path.name: _sha256(path) for path in sorted(partial.iterdir())}
        )
        shutil.rmtree(place, ignore_errors=True)  # of a try that went back to an older one
        partial.rename(place)
    for old in finished(run_folder)[:-keep]:
        shutil.rmtree(folder_of(run_folder, old))


def newest(run_folder: str) -> Path | None:
    """The newest whole checkpoint; a damaged one is named and passed over."""
    for step in reversed(finished(run_folder)):
        place = folder_of(run_folder, step)
        try:
            check(place)
        except DamagedError as error:
            terminal.stderr().print(
                f"{terminal.shown(str(error))}; going on from the one before", style="yellow", soft_wrap=True
            )
        else:
            return place
    return None


def chosen(run_folder: str, step: int | None) -> Path:
    """The checkpoint after `step` steps (None: the newest), checked.

    Raises:
        UsageError: it is not there.
        DamagedError: it is not as it was written.
    """
    place = newest(run_folder) if step is None else folder_of(run_folder, step)
    if place is None or not (place / "manifest.json").is_file():
        there = ", ".join(map(str, finished(run_folder))) or "none"
        raise UsageError(
            f"{run_folder}: no checkpoint{'' if step is None else f' of step {step}'} (there: {there}); train "
            "first, or give another step"
        )
    if step is not None:
        check(place)
    return place


def sweep(run_folder: str) -> None:
    """Delete what writes that never ended have left. Nobody else may be writing there."""
    for partial in Path(run_folder, "checkpoints").glob(f"*{_PARTIAL}"):
        storage.delete(str(partial))


def check(place: Path) -> None:
    """Compare a checkpoint with its manifest.

    Raises:
        DamagedError: a file is missing or not as it was written.
    """
    try:
        digests = storage.read_json(str(place / "manifest.json"))
    except UnreadableError:
        digests = {}
    for name in ("manifest.json", *sorted(_FILES | digests.keys())):
        is_whole = (
            digests.keys() >= _FILES
            if name == "manifest.json"
            else (place / name).is_file() and _sha256(place / name) == digests[name]
        )
        if not is_whole:
            raise DamagedError(f"{place / name}: not as it was written; delete the folder {place}, or bring it back")


def state_of(place: Path) -> dict[str, Any]:
    """Step, samples seen and lineage of a checkpoint."""
    return storage.read_json(str(place / "state.json"))


def load_model(place: Path, model: nn.Module) -> None:
    """Give the model a checkpoint's weights.

    Raises:
        DamagedError: they are another model's, or cut.
    """
    try:
        model.load_state_dict(load_file(place / "model.safetensors"))
    except (SafetensorError, RuntimeError) as error:
        said = str(error).strip().splitlines()[-1].strip()
        raise DamagedError(
            f"{place / 'model.safetensors'}: not the weights of the model that config.toml describes ({said})"
        ) from None


def load_optimizer(place: Path, optimizer: Optimizer) -> None:
    """Give the optimiser a checkpoint's state."""
    tensors = load_file(place / "optimizer.safetensors")
    numbers = storage.read_json(str(place / "optimizer.json"))
    layout = optimizer.state_dict()
    state: dict[int, dict[str, Any]] = {}
    names = _names(optimizer)
    places = {name: number for number, name in enumerate(names)}
    for path, value in (*tensors.items(), *numbers["state"].items()):
        name, _, key = path.rpartition("/")
        state.setdefault(places[name], {})[key] = value
    groups = [{**group, **kept} for group, kept in zip(layout["param_groups"], numbers["groups"], strict=True)]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for parameter, entries in optimizer.state.items():
        for key, value in entries.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                # in its memory format, of which the order of sums is
                entries[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _state_of(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimiser's tensors by name, and its numbers."""
    names = _names(optimizer)
    layout = optimizer.state_dict()
    tensors, numbers = {}, {}
    for number, entries in layout["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{names[number]}/{key}"] = value.detach().cpu().contiguous()
            else:
                numbers[f"{names[number]}/{key}"] = value
    groups = [
        {key: value for key, value in group.items() if key not in ("params", "param_names") and _is_plain(value)}
        for group in layout["param_groups"]
    ]
    return tensors, {"state": numbers, "groups": groups}


def _write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:  # what it says of a full disk is text
        raise OSError(ENOSPC if "os error 28" in str(error) else EIO, str(error), str(path)) from None


def _names(optimizer: Optimizer) -> list[str]:
    return [name for group in optimizer.param_groups for name in group["param_names"]]


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
