"""The folder of a training run: its settings, its lineage, and whether a repeated command may continue it."""

import platform
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from altalign import __version__, storage
from altalign.errors import DamagedError, UnreadableError, UsageError
from altalign.settings.common import dump, flatten
from altalign.train.run import object_store_sync
from altalign.train.settings.training import TrainConfig

# Settings that a run may go on with other values of: they change neither the samples, nor what is learned from them. A
# chunk of another size draws other dropout, and rounds sums in another order; no more, where batch norm does not take
# its statistics of chunks.
_FREE = (
    *("data.workers", "evaluation."),
    *("loop.device", "loop.timeout_s", "loop.speed", "loop.sharded", "loop.recompute", "loop.log_every"),
    *("loop.wandb_project", "loop.evaluate_every", "loop.checkpoint_every", "loop.keep_checkpoints"),
)
_BEFORE = ("log", "eval", "index", "packed")  # what an evaluation of another model leaves before there is a run
OF_DATA = ("manifests", "clusters", "scores", "pairs")  # what another manifest of a [data] run changes


def path(config: TrainConfig, *parts: str) -> str:
    """A path in the run's folder."""
    return storage.join(config.run.folder, *parts)


def local(config: TrainConfig, *parts: str) -> str:
    """The same of what is mapped into memory or grows: of a run in a store, in a folder of this machine."""
    return storage.join(storage.local_folder(config.run.folder), *parts)


def check_folder(config: TrainConfig) -> None:
    """Raise UsageError for a folder that holds something else, or a run of other settings; before any work."""
    folder, place = config.run.folder, path(config, "config.toml")
    storage.check(folder)
    if storage.kind(folder) not in ("folder", "missing"):
        raise UsageError(f"[run] folder = {folder!r}: a file, where the folder of a run is meant; choose another")
    if storage.exists(place):
        before = _settings(place)
        if _has_begun(config):
            _check_same(config, before)
    elif any(name not in _BEFORE and not storage.is_partial(name) for name in storage.entries(folder)):
        why = "a folder that is no training run of altalign (it has no config.toml)"
        raise UsageError(f"{folder}: {why}; choose another [run] folder, or empty it")


def open_run(config: TrainConfig) -> None:
    """Write config.toml into the checked and locked folder; a run that never began may get other settings."""
    for folder in {config.run.folder, storage.local_folder(config.run.folder)}:
        storage.sweep(folder)
    object_store_sync.take_growing(config.run.folder)
    place = path(config, "config.toml")
    if storage.exists(place) and not _has_begun(config) and _changed(config, _settings(place)):
        storage.delete(path(config, "tokenizer.json"))
    storage.write_bytes(place, resolved(config).encode())


def check_trained(config: TrainConfig) -> None:
    """Refuse a folder that has no training run of these settings. Raises UsageError: saying what to do."""
    place = path(config, "config.toml")
    if not storage.exists(place):
        why = "no training run is there; train first, or give its folder in [run] folder"
        raise UsageError(f"{config.run.folder}: {why}")
    _check_same(config, _settings(place))


def resolved(config: TrainConfig) -> str:
    """`config.toml`: the settings as resolved, defaults included, without run.folder."""
    return dump(config.model_dump(mode="json", exclude={"run": {"folder"}}))


def check_checkpoint(
    config: TrainConfig, place: Path, state: Mapping[str, object], lineage: Mapping[str, object]
) -> None:
    """Raise UsageError for a checkpoint that another run left, or that was trained on other data."""
    if name := next(iter(_changed(config, _settings(str(place / "config.toml")))), ""):
        raise UsageError(f"{place}: a checkpoint of other settings than this run's ({name} differs); move it away")
    is_before = any(change["step"] == state.get("step") for change in recorded(config).get("data_changes", []))
    of_old_data = OF_DATA if is_before else ()
    check_lineage(str(place), {name: value for name, value in state.items() if name not in of_old_data}, lineage)


def check_lineage(place: str, before: Mapping[str, object], lineage: Mapping[str, object]) -> None:
    """Refuse to go on with other data than a run, or a checkpoint of it, had before."""
    for name, value in lineage.items():
        if before.get(name, value) != value:
            why = f"{name} of the data is not as this run began with"
            raise UsageError(f"{place}: {why}; bring back what was there, or choose another [run] folder")


def _has_begun(config: TrainConfig) -> bool:
    """Whether training has begun. Until then, settings may still be changed."""
    return storage.exists(path(config, "run.json")) or bool(storage.entries(path(config, "checkpoints")))


def _settings(place: str) -> dict[str, object]:
    """Names and values of a config.toml."""
    try:
        values = tomllib.loads(storage.read_bytes(place).decode())
        if others := sorted(values.keys() - TrainConfig.model_fields.keys()):
            raise ValueError(f"it has [{others[0]}]")
    except ValueError as error:
        why = f"not the settings of a training run ({error})"
        raise UsageError(f"{place}: {why}; choose another [run] folder") from None
    return dict(flatten(values))


def _changed(config: TrainConfig, before: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    """Settings that may not change and did: what they were, and what they are."""
    now, defaults = (dict(flatten(tomllib.loads(resolved(one)))) for one in (config, TrainConfig()))
    before = {**defaults, **before}
    free = _FREE if config.image_tower.batch_norm in ("local", "sync") else (*_FREE, "loop.chunk")
    names = (name for name in {**before, **now} if not name.startswith(free))
    return {name: (before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)}


def _check_same(config: TrainConfig, before: Mapping[str, object]) -> None:
    """Raise UsageError where a run began with other settings, naming the first."""
    if changed := _changed(config, before):
        name, (old, new) = next(iter(changed.items()))
        why = f"this run has {name} = {old!r}, not {new!r}"
        raise UsageError(f"{config.run.folder}: {why}; give it as it was, or choose another [run] folder")


def begin(config: TrainConfig, lineage: Mapping[str, object], *, step: int, ranks: int, device: str) -> None:
    """Write run.json: versions, what the run is trained on, and this attempt beside those before it."""
    before = recorded(config)
    attempt = {"started": _now(), "from_step": step, "ranks": ranks, "device": device}
    versions = {name: version(name) for name in ("torch", "timm", "transformers", "tokenizers")}
    facts = {
        "altalign": __version__,
        "versions": {**versions, "python": platform.python_version(), "cuda": torch.version.cuda},
        **lineage,
        **({"data_changes": before["data_changes"]} if "data_changes" in before else {}),
        "without_lineage": config.data.files,
        "attempts": [*before.get("attempts", []), attempt],
        "finished": None,
    }
    object_store_sync.put_index(config.run.folder)
    storage.write_json(path(config, "run.json"), facts)


def end(config: TrainConfig) -> None:
    """Note in run.json that the last step is done."""
    storage.write_json(path(config, "run.json"), {**recorded(config), "finished": _now()})


def recorded(config: TrainConfig) -> dict[str, Any]:
    """run.json, empty where there is none. Raises DamagedError: it is not as it was written."""
    place = path(config, "run.json")
    try:
        facts = storage.read_json(place)
        if not isinstance(facts.get("attempts", []), list):
            raise UnreadableError(f"{place}: attempts are no list")
    except UnreadableError as error:
        advice = "bring it back, or delete it: the checkpoints know what they were trained on"
        raise DamagedError(f"{error}; {advice}") from None
    return facts


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
