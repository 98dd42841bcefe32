"""`altalign status RUN --lineage`: what a run was made of; what a model was trained on, and when it saw a pair."""

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from altalign import storage
from altalign.data import lineage
from altalign.data.stages import REMOVED_FILE
from altalign.errors import UsageError
from altalign.terminal import shown

_CHECKPOINT = re.compile(r"step-(\d+)")
_SHOWN = 20


def show(path: str, key: str, removed: str, *, is_json: bool) -> int:
    """Print what a finished run was made of; of a training run or checkpoint, the runs that it was trained on.

    Of a training, `key` asks which steps had this pair, `removed` which checkpoints have seen what was removed from
    this run. Returns the exit code.

    Raises:
        UsageError: there is no such run, or a question does not fit it.
    """
    path = path.rstrip("/") or "/"
    storage.check(path)
    if key and removed:
        raise UsageError("--key and --removed are two questions; ask one after the other")
    if key and not re.fullmatch(r"[0-9a-fA-F]{32}", key):
        raise UsageError(f"--key {key}: not 32 hex digits; `altalign explain` finds the key of a pair")
    if storage.exists(storage.join(path, "manifest.json")) and not _CHECKPOINT.fullmatch(storage.name(path)):
        if key or removed:
            raise UsageError(f"{path}: a run of pairs, not of training; --key and --removed ask of what was trained")
        made = lineage.of_run(path)
        _print(made.to_json(), list(lineage.drawn(made, path)), is_json=is_json)
        return 0
    facts, lines = _of_training(path, key.lower(), removed)
    _print(facts, lines, is_json=is_json)
    return 0


def _print(told: dict[str, Any], lines: Sequence[str], *, is_json: bool) -> None:
    if is_json:
        sys.stdout.write(json.dumps(told, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("".join(f"{shown(line)}\n" for line in lines))


def _of_training(path: str, key: str, removed: str) -> tuple[dict[str, Any], list[str]]:
    from altalign.commands import train

    train.check_installed()
    from altalign.train.data import steps_of_pair
    from altalign.train.run import checkpoints  # torch: seconds, which --help and runs of pairs need not wait for
    from altalign.train.settings.training import TrainConfig

    at = _CHECKPOINT.fullmatch(storage.name(path))
    folder = storage.folder_of(storage.folder_of(path)) if at else path
    settings = storage.join(folder, "config.toml")
    if not storage.exists(settings):
        raise UsageError(f"{path}: no finished run, no training run and no checkpoint; give the folder of one")
    config = TrainConfig.load(settings, [f"run.folder={json.dumps(folder)}"])
    steps = checkpoints.finished(folder)
    last = int(at[1]) if at else max(steps, default=0)
    if last not in steps:
        raise UsageError(f"{path}: no checkpoint of step {last} (there: {', '.join(map(str, steps)) or 'none'})")
    state = checkpoints.state_of(checkpoints.place_of(folder, last))
    told: dict[str, Any] = {"training": folder, "step": last, "manifests": state.get("manifests", {}), "runs": {}}
    lines = [f"{folder} step {last}, trained on"]
    for run, digest in state.get("manifests", {}).items():
        told["runs"][run], drawn = _of_data(run, digest)
        lines += [f"  {line}" for line in drawn]
    told["data_changes"] = [change for change in steps_of_pair.changes(config) if change["step"] < last]
    for change in told["data_changes"]:
        were = ", ".join(f"{run} (manifest {digest[:12]})" for run, digest in change["manifests"].items())
        lines.append(f"  until step {change['step']}: {change['pairs']:,} pairs of {were}")
    if key:
        told["seen"], more = _seen(config, key, last)
        lines += more
    if removed:
        told["removed"], more = _removed(config, removed, [step for step in steps if step <= last])
        lines += more
    return told, lines


def _of_data(run: str, digest: str) -> tuple[dict[str, Any] | None, list[str]]:
    """What is known of a run that was trained on, by the SHA-256 of its manifest then."""
    path = storage.join(run, "manifest.json")
    if not storage.exists(path):
        return None, [f"{run} (manifest {digest[:12]}), which is not there now"]
    made = lineage.of_run(run)
    now = hashlib.sha256(storage.read_bytes(path)).hexdigest()
    note = [] if now == digest else [f"  it has changed since: its manifest was {digest[:12]}, and is {now[:12]} now"]
    return made.to_json(), [*lineage.drawn(made, run), *note]


def _seen(config: Any, key: str, last: int) -> tuple[dict[str, Any], list[str]]:
    from altalign.train.data.steps_of_pair import Trained

    trained, keys = Trained(config), frozenset([key])
    found = list(trained.steps(keys, last))
    is_held_out = bool(trained.held_out(keys))
    if found:
        few = ", ".join(f"{each.step} (epoch {each.epoch})" for each in found[:_SHOWN])
        said = f"key {key}: in {len(found):,} of {last:,} steps: {few}{' …' if len(found) > _SHOWN else ''}"
    elif trained.trained_on(keys):
        said = f"key {key}: in none of {last:,} steps; it comes later in the order"
    else:
        why = "it was held out for evaluation" if is_held_out else "no pair that was trained on has it"
        said = f"key {key}: in none of {last:,} steps; {why}"
    return {"key": key, "steps": [[each.step, each.epoch] for each in found], "held_out": is_held_out}, [said]


def _removed(config: Any, run: str, steps: Sequence[int]) -> tuple[dict[str, Any], list[str]]:
    import pyarrow.parquet as pq

    from altalign.train.data.steps_of_pair import Trained

    path = run if run.endswith(".parquet") else storage.join(run, REMOVED_FILE)
    if not storage.exists(path):
        raise UsageError(f"--removed {run}: nothing was removed there (it has no {REMOVED_FILE})")
    rows = pq.read_table(storage.mappable(path), columns=["kind", "hash"]).to_pylist()
    keys = frozenset(row["hash"] for row in rows if row["kind"] in ("pair", "key") and row["hash"])
    trained = Trained(config)
    pairs = trained.trained_on(keys)
    first: dict[str, int] = {}
    for each in trained.steps(keys, max(steps, default=0)):
        first.setdefault(each.key, each.step)
    by_step = Counter({step: sum(at <= step for at in first.values()) for step in steps})
    lines = [f"removed pairs: {len(keys):,}, of which {len(pairs):,} are in the order of this training"]
    lines += [f"  step {step}: has seen {number:,} of them" for step, number in sorted(by_step.items())]
    return {"pairs": len(keys), "in_order": len(pairs), "seen_by_step": dict(sorted(by_step.items()))}, lines
