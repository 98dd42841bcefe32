"""The folder of a training run: its settings, its lineage, and whether a command that is run again may go on with it."""

import platform
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from altalign import __version__, storage
from altalign.errors import UsageError
from altalign.settings import dump, flatten
from train.settings import TrainConfig

# Settings that a run may go on with other values of: they change neither the samples, nor what is learned from them.
# A chunk of another size draws other dropout, and rounds sums in another order; no more, where batch norm does not take its statistics of chunks.
FREE = (
    *("data.workers", "loop.device", "loop.compile", "loop.activation_checkpointing", "loop.log_every", "loop.evaluate_every"),
    *("loop.checkpoint_every", "loop.keep_checkpoints", "loss.block", "evaluation."),
)


def path(config: TrainConfig, *parts: str) -> str:
    """A path in the run's folder."""
    return str(Path(config.run.folder, *parts))


def check_folder(config: TrainConfig) -> None:
    """Refuse a folder that this run may not be written to, before anything is.

    Raises:
        UsageError: the folder is in a store, holds something else, or a run of other settings.
    """
    folder = config.run.folder
    if storage.is_remote(folder):
        raise UsageError(f"[run] folder = {folder!r}: a training run is written to a local disk; give a local folder, and copy its checkpoints")
    kind = storage.kind(folder)
    if kind not in ("folder", "missing"):
        raise UsageError(f"[run] folder = {folder!r}: a file, where the folder of a run is meant; choose another")
    if storage.exists(path(config, "config.toml")):
        _check_same(config)
    elif any(name != "log" and not storage.is_partial(name) for name in storage.entries(folder)):
        raise UsageError(f"{folder}: a folder that is no training run of altalign (it has no config.toml); choose another [run] folder, or empty it")


def open_run(config: TrainConfig) -> None:
    """Write config.toml, in the folder that is checked and held."""
    storage.sweep(config.run.folder)
    storage.write_bytes(path(config, "config.toml"), resolved(config).encode())


def check_trained(config: TrainConfig) -> None:
    """Refuse a folder that has no training run of these settings.

    Raises:
        UsageError: saying what to do.
    """
    if not storage.exists(path(config, "config.toml")):
        raise UsageError(f"{config.run.folder}: no training run is there; train first, or give its folder in [run] folder")
    _check_same(config)


def resolved(config: TrainConfig) -> str:
    """`config.toml`: the settings as resolved, defaults included, without run.folder."""
    return dump(config.model_dump(mode="json", exclude={"run": {"folder"}}))


def _check_same(config: TrainConfig) -> None:
    place = path(config, "config.toml")
    try:
        before = dict(flatten(tomllib.loads(storage.read_bytes(place).decode())))
    except ValueError as error:
        raise UsageError(f"{place}: not the settings of a training run ({error}); choose another [run] folder") from None
    now = dict(flatten(tomllib.loads(resolved(config))))
    free = FREE if config.image_tower.batch_norm in ("local", "sync") else (*FREE, "loop.chunk")
    other = [name for name in {**before, **now} if before.get(name) != now.get(name) and not name.startswith(free)]
    if other:
        name = other[0]
        more = f" (and {len(other) - 1} more)" if other[1:] else ""
        raise UsageError(
            f"{config.run.folder}: this run has {name} = {before.get(name)!r}, not {now.get(name)!r}{more}; give it as it was, or choose another [run] folder"
        )


def begin(config: TrainConfig, lineage: Mapping[str, Any], *, step: int, ranks: int, device: str) -> None:
    """Write run.json: versions, what the run is trained on, and this attempt beside those before it.

    Raises:
        UsageError: what it was trained on until now is not there any more as it was.
    """
    place = path(config, "run.json")
    before = storage.read_json(place)
    for name, value in lineage.items():
        if before.get(name, value) != value:
            raise UsageError(f"{config.run.folder}: {name} are not those that this run began with; bring them back, or choose another [run] folder")
    attempt = {"started": _now(), "from_step": step, "ranks": ranks, "device": device}
    versions = {name: version(name) for name in ("torch", "timm", "transformers", "tokenizers")}
    facts = {
        "altalign": __version__,
        "versions": {**versions, "python": platform.python_version(), "cuda": torch.version.cuda},
        **lineage,
        "attempts": [*before.get("attempts", []), attempt],
        "finished": None,
    }
    storage.write_json(place, facts)


def end(config: TrainConfig) -> None:
    """Note in run.json that the last step is done."""
    place = path(config, "run.json")
    storage.write_json(place, {**storage.read_json(place), "finished": _now()})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
