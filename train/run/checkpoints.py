"""Checkpoints of a training run: whole or not there, and checked when they are read.

    checkpoints/step-NNNNNNN/
      model.safetensors       weights and buffers of the towers, the temperature
      average.safetensors     the same of their moving average, where one is kept
      optimizer.safetensors   the optimiser's tensors, by PARAMETER/KEY
      moments/*.safetensors   of a sharded training: those that ranks hold parts of, each rank's in a file
      optimizer.json          its numbers, by PARAMETER/KEY
      state.json              step, samples seen, lineage
      config.toml tokenizer.json
      manifest.json           SHA-256 of each; finished when it is there

Of a run in an object store they are written to a local folder, then published. There is no state of random numbers to
keep: order, augmentation and dropout are functions of the seed and the step.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from altalign import storage, terminal
from altalign.errors import DamagedError, UnreadableError, UsageError
from altalign.storage.local import naming_a_full_disk
from altalign.train.run import object_store_sync, sharded_tensors
from altalign.train.run.object_store_sync import MANIFEST
from altalign.train.run.ranks import Ranks
from altalign.train.run.sharded_tensors import Meeting

_PARTIAL = ".partial"
_OF_THE_OPTIMIZER = ("optimizer.", "moments/")  # names begin so
_WEIGHTS, _AVERAGE = "model.safetensors", "average.safetensors"
_FILES = {_WEIGHTS, "optimizer.safetensors", "optimizer.json", "state.json", "config.toml", "tokenizer.json"}


def folder_of(run_folder: str, step: int) -> Path:
    """Where this machine has the checkpoint after `step` steps."""
    return Path(storage.local_folder(run_folder), "checkpoints", f"step-{step:07}")


def place_of(run_folder: str, step: int) -> str:
    """Where the run has it: in a store, if the run is in one."""
    return storage.join(run_folder, "checkpoints", folder_of(run_folder, step).name)


def finished(run_folder: str) -> list[int]:
    """Steps of the checkpoints that are there, the newest last."""
    manifests = storage.below(storage.join(run_folder, "checkpoints"), MANIFEST)
    names = (storage.name(storage.folder_of(path)) for path in manifests)
    # others are partial, or somebody's copies
    return sorted(int(name[5:]) for name in names if name.startswith("step-") and name[5:].isdecimal())


def state_of(place: Path | str) -> dict[str, Any]:
    """Step, samples seen and lineage of a checkpoint, wherever it is."""
    return storage.read_json(f"{place}/state.json")


# Writing -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """Copies, in the CPU's memory, of weights and the optimiser's state; `parts` are this rank's of a sharded model."""

    weights: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]
    numbers: Mapping[str, object]
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    meeting: Meeting | None = None
    average: Mapping[str, Tensor] = field(default_factory=dict)  # of weights, where one is kept

    @classmethod
    def now(
        cls,
        model: nn.Module,
        optimizer: Optimizer,
        meeting: Meeting | None = None,
        average: Mapping[str, Tensor] | None = None,
    ) -> Self:
        """Those of now. Of a sharded model all ranks call it, with where they meet."""
        names, layout = _names(optimizer), optimizer.state_dict()
        moments, numbers = dict[str, Tensor](), dict[str, object]()
        for number, of_parameter in layout["state"].items():
            for key, value in of_parameter.items():
                (moments if isinstance(value, Tensor) else numbers)[f"{names[number]}/{key}"] = value
        groups = [
            {key: value for key, value in group.items() if key not in ("params", "param_names")}
            for group in layout["param_groups"]
        ]
        parts = meeting.parts_of(moments) if meeting is not None else {}
        weights, averages = dict[str, Tensor](), dict[str, Tensor]()
        for copies, tensors in ((weights, model.state_dict()), (averages, average or {})):
            for name, value in tensors.items():
                gathered = sharded_tensors.whole(value)  # one at a time: not all of them fit
                if meeting is None or meeting.is_first:
                    copies[name] = _copy(gathered)
        own = {name: _copy(value) for name, value in moments.items() if name not in parts}
        return cls(weights, own, {"state": numbers, "groups": groups}, parts, meeting, averages)


def save(run_folder: str, step: int, kept: Kept, state: Mapping[str, object], *, keep: int) -> None:
    """Write the checkpoint after `step` steps beside its place, then move it there; the `keep` newest stay.

    Of a sharded model all ranks write their parts of moments, and the first the rest. Of a run in a store each machine
    has a folder of its own, and publishes the parts that are in it.
    """
    place, target, meeting = folder_of(run_folder, step), place_of(run_folder, step), kept.meeting
    partial, is_remote = place.with_name(place.name + _PARTIAL), storage.is_remote(run_folder)
    published = dict[str, str]()
    with naming_a_full_disk(str(place.parents[1]), "a checkpoint"):
        # with parts the folder is of the first of all, or of each machine, where machines share none
        if meeting is None or (meeting.is_first_of_machine if is_remote else meeting.is_first):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        if meeting is not None:
            meeting.write(kept.parts, partial / "moments")
            if is_remote:
                mine = dict[str, str]()
                if meeting.is_first_of_machine:
                    mine = object_store_sync.put_files(partial / "moments", f"{target}/moments")
                machines = meeting.gathered(mine)
                published = {f"moments/{name}": digest for files in machines for name, digest in files.items()}
            if not meeting.is_first:
                return
        averages = {_AVERAGE: kept.average} if kept.average else {}
        files = {_WEIGHTS: kept.weights, **averages, "optimizer.safetensors": kept.moments}
        for name, tensors in files.items():
            try:
                save_file(dict(tensors), partial / name)
            except SafetensorError as error:  # what it says of a full disk is text
                raise OSError(ENOSPC if "os error 28" in str(error) else EIO, str(error), str(partial / name)) from None
        storage.write_json(str(partial / "optimizer.json"), kept.numbers)
        storage.write_json(str(partial / "state.json"), {"step": step, **state})
        for name in ("config.toml", "tokenizer.json"):
            (partial / name).write_bytes(storage.read_bytes(storage.join(run_folder, name)))
        names = [path.relative_to(partial).as_posix() for path in object_store_sync.files_of(partial)]
        own = {name: object_store_sync.sha256_of(partial / name) for name in names if name not in published}
        storage.write_json(str(partial / MANIFEST), published | own)
        shutil.rmtree(place, ignore_errors=True)  # of a try that went back to an older one
        partial.rename(place)
    if is_remote:
        object_store_sync.publish_checkpoint(place, target, published | own, published)
    old = finished(run_folder)[:-keep]
    storage.delete_units([place_of(run_folder, step) for step in old])
    for step in old:
        shutil.rmtree(folder_of(run_folder, step), ignore_errors=True)


def sweep(run_folder: str) -> None:
    """Delete what interrupted writes left. Nobody else may be writing there."""
    for left in folder_of(run_folder, 0).parent.glob(f"*{_PARTIAL}"):
        storage.delete(str(left))


# Reading -------------------------------------------------------------------------------------------------------------


def newest(run_folder: str, *, goes_on: bool = True) -> Path | None:
    """The newest whole checkpoint; a damaged one is named and passed over. `goes_on` as for `brought`."""
    for step in reversed(finished(run_folder)):
        try:
            return brought(run_folder, step, goes_on=goes_on)
        except DamagedError as error:
            words = f"{terminal.shown(str(error))}; going on from the one before"
            terminal.stderr().print(words, style="yellow", soft_wrap=True)
    return None


def chosen(run_folder: str, step: int | None, *, goes_on: bool = True) -> Path:
    """The checkpoint after `step` steps (None: the newest), checked. `goes_on` as for `brought`."""
    place, steps = None, finished(run_folder)
    if step is None:
        place = newest(run_folder, goes_on=goes_on)
    elif step in steps:
        place = brought(run_folder, step, goes_on=goes_on)
    if place is None:
        existing, which = ", ".join(map(str, steps)) or "none", "" if step is None else f" of step {step}"
        raise UsageError(f"{run_folder}: no checkpoint{which} (there: {existing}); train first, or give another step")
    return place


def brought(run_folder: str, step: int, *, goes_on: bool = True) -> Path:
    """A finished checkpoint, on this machine and compared with its manifest.

    Of one in a store what only the optimiser has is brought where a training `goes_on`. Raises DamagedError: a file is
    missing, or not as it was written.
    """
    place, source, is_remote = folder_of(run_folder, step), place_of(run_folder, step), storage.is_remote(run_folder)

    def damaged(name: str) -> DamagedError:
        return DamagedError(f"{source}/{name}: not as it was written; delete the folder {source}, or bring it back")

    try:
        digests = storage.read_json(storage.join(source, MANIFEST))
    except UnreadableError:
        digests = {}
    if not digests.keys() >= _FILES:
        raise damaged(MANIFEST)

    def is_right(name: str) -> bool:
        return (place / name).is_file() and object_store_sync.sha256_of(place / name) == digests[name]

    with naming_a_full_disk(str(place.parents[1]), "a checkpoint"):
        for path in object_store_sync.files_of(place) if is_remote else ():
            if path.relative_to(place).as_posix() not in digests:  # of another attempt
                path.unlink()
        for name in sorted(digests):
            if is_right(name):
                continue
            if not is_remote:
                raise damaged(name)
            if goes_on or not name.startswith(_OF_THE_OPTIMIZER):
                try:
                    storage.take_file(storage.join(source, name), str(place / name))
                except FileNotFoundError:
                    raise damaged(name) from None
                if not is_right(name):
                    raise damaged(name)
        if is_remote:
            storage.take_file(storage.join(source, MANIFEST), str(place / MANIFEST))
    return place


def on_all_machines(run_folder: str, chosen: Path | None, ranks: Ranks, *, goes_on: bool = True) -> Path | None:
    """The checkpoint that the first rank has chosen, where this rank's machine has it. `goes_on` as for `brought`."""
    step = ranks.of_first(state_of(chosen)["step"] if chosen is not None else None)
    if step is None:
        return None
    if storage.is_remote(run_folder) and ranks.is_first_of_machine and not ranks.is_first:
        return ranks.first_then_others(lambda: brought(run_folder, step, goes_on=goes_on))
    return ranks.first_then_others(lambda: folder_of(run_folder, step))


def weights_of(place: Path, *, averaged: bool) -> Path:
    """The file of a checkpoint's weights, or of their moving average."""
    return place / (_AVERAGE if averaged else _WEIGHTS)


def load_average(place: Path, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint's moving average, as `values` are; of those that are spread over ranks, this rank's parts."""
    return _read(weights_of(place, averaged=True), values.get)


def load_model(place: Path, model: nn.Module, *, optional: tuple[str, ...] = (), averaged: bool = False) -> None:
    """Give the model a checkpoint's weights, or their average.

    Parts with names that begin with one of `optional` may be in one alone.
    """
    path = weights_of(place, averaged=averaged)
    try:
        own = model.state_dict()
        tensors = _read(path, own.get)
        if optional:
            shared = {name: value for name, value in tensors.items() if name in own or not name.startswith(optional)}
            tensors = {name: value for name, value in own.items() if name.startswith(optional)} | shared
        model.load_state_dict(tensors)
    except (SafetensorError, RuntimeError) as error:
        why = f"not the weights of the model that config.toml describes ({str(error).strip().splitlines()[-1].strip()})"
        raise DamagedError(f"{path}: {why}") from None


def load_optimizer(place: Path, optimizer: Optimizer, *, optional: tuple[str, ...] = ()) -> None:
    """Give the optimiser a checkpoint's state; `optional` as for `load_model`, and groups keep their settings then."""
    listed = (parameter for group in optimizer.param_groups for parameter in group["params"])
    parameters = dict(zip(_names(optimizer), listed, strict=True))
    tensors = _read(place / "optimizer.safetensors", lambda path: parameters.get(path.rpartition("/")[0]))
    tensors |= sharded_tensors.read_moments(place / "moments", parameters)
    numbers = storage.read_json(str(place / "optimizer.json"))
    state: dict[int, dict[str, object]] = {}
    places = {name: number for number, name in enumerate(parameters)}
    for path, value in (*tensors.items(), *numbers["state"].items()):
        name, _, key = path.rpartition("/")
        if name in places or not (optional and name.startswith(optional)):
            state.setdefault(places[name], {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    if not optional:
        groups = [{**group, **kept} for group, kept in zip(groups, numbers["groups"], strict=True)]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for parameter, entries in optimizer.state.items():
        for key, value in entries.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                # in its memory format, of which the order of sums is
                entries[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _read(path: Path, like: Callable[[str], Tensor | None]) -> dict[str, Tensor]:
    """The tensors of a file; of those that are spread over ranks, this rank's parts."""
    with safe_open(path, framework="pt") as file:
        return {name: sharded_tensors.read_like(file, name, like(name)) for name in file.keys()}  # noqa: SIM118 - no mapping


def _copy(value: Tensor) -> Tensor:
    return torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())


def _names(optimizer: Optimizer) -> list[str]:
    return [name for group in optimizer.param_groups for name in group["param_names"]]
