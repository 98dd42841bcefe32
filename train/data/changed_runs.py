"""A training that goes on though a run that it learns from has changed: what it went through before stays known.

The order of pairs is a function of the seed and the index. So the index until then is kept beside the new one, and
run.json says after which step it ended: `altalign status --lineage` can still tell who saw a pair.
"""

from collections.abc import Callable, Mapping
from typing import Any

from altalign import storage
from altalign.errors import UsageError
from altalign.train.run import checkpoints, training_folder
from altalign.train.settings.training import TrainConfig


def changes(config: TrainConfig) -> list[dict[str, Any]]:
    """What was trained on before each change of the data: `step`, the last with it, `manifests` and `pairs`."""
    return training_folder.recorded(config).get("data_changes", [])


def index_until(config: TrainConfig, step: int) -> str:
    """The folder of the index that the steps up to this one went by."""
    return training_folder.path(config, f"index-until-{step:07}")


def settle(config: TrainConfig, manifests: Mapping[str, str], *, is_allowed: bool, say: Callable[[str], None]) -> None:
    """Before an index is made: refuse runs that are not as the training has learned from them, or note the change.

    It can be ended anywhere, and called again.

    Args:
        config: of the training, which may not have begun.
        manifests: the runs now, with the SHA-256 of the manifest of each.
        is_allowed: go on from the newest checkpoint with what is there now.
        say: told what has changed.

    Raises:
        UsageError: they have changed, and that is not allowed.
    """
    facts = training_folder.recorded(config)
    before = facts.get("manifests")
    if before is None or before == manifests:
        return
    differ = ", ".join(
        f"{run} ({_short(before.get(run))}, now {_short(manifests.get(run))})"
        for run in {**before, **manifests}
        if before.get(run) != manifests.get(run)
    )
    if not is_allowed:
        raise UsageError(
            f"{config.run.folder}: the curated [data] runs are not as this run began with, by their manifest.json: "
            f"{differ}; bring back what was there, choose another [run] folder, or go on with `altalign train "
            "--data-changed`"
        )
    step = max(checkpoints.finished(config.run.folder), default=0)
    known = changes(config)
    if step > max((change["step"] for change in known), default=0):
        index, kept = training_folder.path(config, "index"), index_until(config, step)
        if not storage.exists(storage.join(kept, "index.json")):
            storage.move_folder(index, kept)
            storage.delete(training_folder.local(config, "index"))
        known = [*known, {"step": step, "manifests": before, "pairs": facts.get("pairs", 0)}]
    others = {name: value for name, value in facts.items() if name not in training_folder.OF_DATA}
    storage.write_json(training_folder.path(config, "run.json"), {**others, "data_changes": known})
    say(f"data changed after step {step:,}: {differ}; there were {facts.get('pairs', 0):,} pairs")


def _short(digest: str | None) -> str:
    return digest[:12] if digest else "not among them"
