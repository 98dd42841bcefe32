"""Checkpoints of a training run: whole or not there, and checked when they are read.

    checkpoints/step-NNNNNNN/
      model.safetensors       weights and buffers of the towers, the temperature
      optimizer.safetensors   the optimiser's tensors, by PARAMETER/KEY
      moments/*.safetensors   of a sharded training: those that ranks hold parts of, each rank's in a file
      optimizer.json          its numbers, by PARAMETER/KEY
      state.json              step, samples seen, lineage
      config.toml tokenizer.json
      manifest.json           SHA-256 of each; finished when it is there

There is no state of random numbers to keep: order, augmentation and dropout are functions of the seed and the step.
"""

import json
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from errno import EIO, ENOSPC
from hashlib import file_digest
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from altalign import storage, terminal
from altalign.errors import DamagedError, UnreadableError, UsageError
from altalign.storage.disk_errors import naming_a_full_disk
from altalign.train import moments as spread
from altalign.train.step import sharding

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


@dataclass(frozen=True)
class Kept:
    """Weights, and the optimiser's tensors and numbers, as they were after a step: copies, in the CPU's memory.

    Of a sharded model `parts` are the tensors of which this rank has a part; only the first rank has the weights.
    """

    weights: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]
    numbers: Mapping[str, object]
    parts: spread.Parts | None = None

    @classmethod
    def of(cls, model: nn.Module, optimizer: Optimizer, meeting: spread.Meeting | None = None) -> Self:
        """Those of now. Of a sharded model all ranks call it, with where they meet."""
        moments, numbers = _state_of(optimizer)
        parts = meeting.parts_of(moments) if meeting is not None else None
        if parts is not None:
            moments = {name: value for name, value in moments.items() if name not in parts.tensors}
        weights = dict[str, Tensor]()
        for name, value in model.state_dict().items():
            gathered = sharding.whole(value)  # one at a time: not all of them fit
            if meeting is None or meeting.is_first:
                weights[name] = _copy(gathered)
        return cls(weights, {name: _copy(value) for name, value in moments.items()}, numbers, parts)


class Writer:
    """Writes checkpoints while the steps go on, one at a time; leaving the block waits for the last."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def begin(self, run_folder: str, step: int, kept: Kept, state: Mapping[str, object], *, keep: int) -> None:
        """Begin to write a checkpoint, once the one before is written."""
        self.wait()
        self._writing = self._thread.submit(save, run_folder, step, kept, state, keep=keep)

    def check(self) -> None:
        """Raise what has befallen the one that was being written, if it is done."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Wait until all are written.

        Raises:
            FullDiskError: as `save`.
        """
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.shutdown(wait=True)
        if kind is None:
            self.wait()


def save(run_folder: str, step: int, kept: Kept, state: Mapping[str, object], *, keep: int) -> None:
    """Write the checkpoint after `step` steps beside its place, then move it there; the `keep` newest stay.

    Of a sharded model all ranks write their parts of moments, and the first the rest.

    Raises:
        FullDiskError: no space is left; the checkpoints before it stay.
    """
    place = folder_of(run_folder, step)
    partial = place.with_name(place.name + _PARTIAL)
    with naming_a_full_disk(run_folder, "a checkpoint"):
        if kept.parts is None or kept.parts.meeting.is_first:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        if kept.parts is not None:
            kept.parts.write(partial / "moments")
            if not kept.parts.meeting.is_first:
                return
        _write_tensors(kept.weights, partial / "model.safetensors")
        _write_tensors(kept.moments, partial / "optimizer.safetensors")
        for name, value in (("optimizer.json", kept.numbers), ("state.json", {"step": step, **state})):
            storage.write_json(str(partial / name), value)
        for name in ("config.toml", "tokenizer.json"):
            shutil.copyfile(Path(run_folder, name), partial / name)
        files = sorted(path for path in partial.rglob("*") if path.is_file())
        digests = {path.relative_to(partial).as_posix(): _sha256(path) for path in files}
        storage.write_json(str(partial / "manifest.json"), digests)
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
    """Delete what interrupted writes left. Nobody else may be writing there."""
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


def load_model(place: Path, model: nn.Module, *, optional: tuple[str, ...] = ()) -> None:
    """Give the model a checkpoint's weights; parts with names that begin with one of `optional` may be in one alone.

    Raises:
        DamagedError: they are another model's, or cut.
    """
    try:
        tensors, own = load_file(place / "model.safetensors"), model.state_dict()
        if optional:
            shared = {name: value for name, value in tensors.items() if name in own or not name.startswith(optional)}
            tensors = {name: value for name, value in own.items() if name.startswith(optional)} | shared
        model.load_state_dict(
            {name: sharding.spread_like(value, own.get(name, value)) for name, value in tensors.items()}
        )
    except (SafetensorError, RuntimeError) as error:
        said = str(error).strip().splitlines()[-1].strip()
        raise DamagedError(
            f"{place / 'model.safetensors'}: not the weights of the model that config.toml describes ({said})"
        ) from None


def load_optimizer(place: Path, optimizer: Optimizer, *, optional: tuple[str, ...] = ()) -> None:
    """Give the optimiser a checkpoint's state; `optional` as for `load_model`, and groups keep their settings then."""
    parameters = dict(
        zip(_names(optimizer), (one for of in optimizer.param_groups for one in of["params"]), strict=True)
    )
    tensors = {**load_file(place / "optimizer.safetensors"), **spread.read(place / "moments", parameters)}
    numbers = storage.read_json(str(place / "optimizer.json"))
    layout = optimizer.state_dict()
    state: dict[int, dict[str, object]] = {}
    places = {name: number for number, name in enumerate(parameters)}
    for path, value in (*tensors.items(), *numbers["state"].items()):
        name, _, key = path.rpartition("/")
        if optional and name not in places and name.startswith(optional):
            continue
        is_tensor = isinstance(value, Tensor)
        state.setdefault(places[name], {})[key] = sharding.spread_like(value, parameters[name]) if is_tensor else value
    groups = layout["param_groups"]
    if not optional:
        groups = [{**group, **kept} for group, kept in zip(groups, numbers["groups"], strict=True)]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for parameter, entries in optimizer.state.items():
        for key, value in entries.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                # in its memory format, of which the order of sums is
                entries[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _state_of(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, object]]:
    """The optimiser's tensors by name, and its numbers."""
    names = _names(optimizer)
    layout = optimizer.state_dict()
    tensors, numbers = {}, {}
    for number, entries in layout["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{names[number]}/{key}"] = value
            else:
                numbers[f"{names[number]}/{key}"] = value
    groups = [
        {key: value for key, value in group.items() if key not in ("params", "param_names") and _is_plain(value)}
        for group in layout["param_groups"]
    ]
    return tensors, {"state": numbers, "groups": groups}


def _copy(value: Tensor) -> Tensor:
    return torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())


def _write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:  # what it says of a full disk is text
        raise OSError(ENOSPC if "os error 28" in str(error) else EIO, str(error), str(path)) from None


def _names(optimizer: Optimizer) -> list[str]:
    return [name for group in optimizer.param_groups for name in group["param_names"]]


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
