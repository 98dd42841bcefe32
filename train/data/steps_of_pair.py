"""Which steps of a training saw a pair, also after a change of its runs.

The order is a function of the seed and of the index in the training's folder, which has the key of every pair. So the
answer needs no shards, and stands when pairs were removed from the run that the training read. When a training goes on
though a run has changed, the index until then is kept beside the new one, and run.json says after which step it ended.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from altalign import storage
from altalign.errors import UsageError
from altalign.train.data.index import HELD_OUT, Pairs, read_pairs
from altalign.train.data.order import DistinctImages, Sampler, global_batches
from altalign.train.data.runs import Runs
from altalign.train.data.samples import Samples, key_of
from altalign.train.run import checkpoints, training_folder
from altalign.train.settings.training import TrainConfig

_AT_ONCE = 1 << 20  # pairs that are looked at together


class Seen(NamedTuple):
    """A step that had a pair in its batch: its number from 1, the epoch from 0, the pair's key in hex."""

    step: int
    epoch: int
    key: str


class _Part(NamedTuple):
    """The steps of a training after `first`, up to `last` (None: all that come), and the index that they went by."""

    samples: Samples
    sampler: Sampler
    first: int
    last: int | None

    def pairs_of(self, keys: frozenset[str]) -> dict[int, str]:
        """The pairs of these keys that are trained on: their keys, by the pairs' numbers."""
        numbers, count = dict[int, str](), len(self.samples)
        for first in range(0, count, _AT_ONCE):
            pairs = self.samples.pairs(np.arange(first, min(first + _AT_ONCE, count), dtype=np.int64))
            numbers |= {first + place: key for place, key in _where(pairs, keys)}
        return numbers


class Trained:
    """What a training goes through, from its settings and its indexes alone: more than one, where its data changed."""

    def __init__(self, config: TrainConfig):
        """Open the indexes. Raises UsageError where the folder lacks one."""
        first, self._parts = 0, list[_Part]()
        for last in [*(change["step"] for change in changes(config)), None]:
            folder = training_folder.path(config, "index") if last is None else index_until(config, last)
            facts = storage.read_json(storage.join(folder, "index.json"))
            if not facts:
                what = f"{storage.name(folder)}/index.json"
                raise UsageError(f"{config.run.folder}: it has no index of its pairs ({what}); train it first")
            samples = Samples(folder, Runs([]), facts)
            sampler = global_batches(config, samples)
            if isinstance(sampler, DistinctImages):
                sampler.resume(first)
            self._parts.append(_Part(samples, sampler, first, last))
            first = last or 0

    def trained_on(self, keys: frozenset[str]) -> set[str]:
        """Those of these keys whose pairs are trained on, now or before a change of the data."""
        return {key for part in self._parts for key in part.pairs_of(keys).values()}

    def held_out(self, keys: frozenset[str]) -> set[str]:
        """Those of these keys that were held out for evaluation."""
        files = [storage.join(part.samples.folder, HELD_OUT) for part in self._parts]
        return {key for file in files for _, key in _where(read_pairs(file), keys)}

    def steps(self, keys: frozenset[str], steps: int) -> Iterator[Seen]:
        """Yields each time that a step up to `steps` had a pair of one of these keys in its batch, in their order."""
        for part in self._parts:
            pairs, last = part.pairs_of(keys), steps if part.last is None else min(steps, part.last)
            numbers = np.array(sorted(pairs), np.int64)
            for step in range(part.first, last if pairs else 0):
                draws, epochs = part.sampler.batch(step)
                batch = part.samples.drawn(draws, epochs, part.sampler.order.seed)
                for place in np.flatnonzero(np.isin(batch, numbers)).tolist():
                    yield Seen(step + 1, int(epochs[place]), pairs[int(batch[place])])


def _where(pairs: Pairs, keys: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Places and keys of the pairs that have one of these keys."""
    firsts = np.array(sorted({int(key[:16], 16) for key in keys}), np.uint64)
    for place in np.flatnonzero(np.isin(pairs["key"][:, 0].astype(np.uint64), firsts)).tolist():
        if (key := key_of(pairs[place])) in keys:
            yield place, key


def changes(config: TrainConfig) -> list[dict[str, Any]]:
    """What was trained on before each change of the data: `step`, the last with it, `manifests` and `pairs`."""
    return training_folder.recorded(config).get("data_changes", [])


def index_until(config: TrainConfig, step: int) -> str:
    """The folder of the index that the steps up to this one went by."""
    return training_folder.path(config, f"index-until-{step:07}")


def settle(config: TrainConfig, manifests: Mapping[str, str], *, is_allowed: bool, say: Callable[[str], None]) -> None:
    """Before an index is made: refuse runs that are not as the training has learned from them, or note the change.

    `manifests` has the runs now, with the SHA-256 of the manifest of each. It can be ended anywhere, and called again.
    Raises UsageError: they have changed, and that is not allowed.
    """
    facts = training_folder.recorded(config)
    before: dict[str, str] | None = facts.get("manifests")
    if before is None or before == manifests:
        return
    digests = {run: (before.get(run, ""), manifests.get(run, "")) for run in {**before, **manifests}}
    none = "not among them"
    differ = ", ".join(
        f"{run} ({was[:12] or none}, now {now[:12] or none})" for run, (was, now) in digests.items() if was != now
    )
    if not is_allowed:
        raise UsageError(
            f"{config.run.folder}: the curated [data] runs are not as this run began with, by their manifest.json: "
            f"{differ}; bring back what was there, choose another [run] folder, or go on with `altalign train "
            "--data-changed`"
        )
    step, known, pairs = max(checkpoints.finished(config.run.folder), default=0), changes(config), facts.get("pairs", 0)
    if step > max((change["step"] for change in known), default=0):
        kept = index_until(config, step)
        if not storage.exists(storage.join(kept, "index.json")):
            storage.move_folder(training_folder.path(config, "index"), kept)
            storage.delete(training_folder.local(config, "index"))
        known = [*known, {"step": step, "manifests": before, "pairs": pairs}]
    others = {name: value for name, value in facts.items() if name not in training_folder.OF_DATA}
    storage.write_json(training_folder.path(config, "run.json"), {**others, "data_changes": known})
    say(f"data changed after step {step:,}: {differ}; there were {pairs:,} pairs")
