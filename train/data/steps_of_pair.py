"""Which steps of a training saw a pair, also after a change of its runs.

The order is a function of the seed and of the index in the training's folder, which has the key of every pair. So the
answer needs no shards, and stands when pairs were removed from the run that the training read. When a training goes on
though a run has changed, the index until then is kept beside the new one, and run.json says after which step it ended.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from altalign import storage
from altalign.errors import UsageError
from altalign.train.data.index import HELD_OUT, Pairs, read_pairs, weights_of
from altalign.train.data.order import DistinctImages, global_batches
from altalign.train.run import checkpoints, training_folder
from altalign.train.settings.training import TrainConfig

_AT_ONCE = 1 << 20  # pairs that are looked at together


class Seen(NamedTuple):
    """A step that had a pair in its batch: its number from 1, the epoch from 0, the pair's key in hex."""

    step: int
    epoch: int
    key: str


class Trained:
    """What a training goes through, from its settings and its indexes alone: more than one, where its data changed."""

    def __init__(self, config: TrainConfig):
        """Open the indexes. Raises UsageError where the folder lacks one."""
        first, self._parts = 0, list[_Part]()
        for change in changes(config):
            self._parts.append(_Part(config, index_until(config, change["step"]), first, change["step"]))
            first = change["step"]
        self._parts.append(_Part(config, training_folder.path(config, "index"), first, None))

    def trained_on(self, keys: frozenset[str]) -> set[str]:
        """Those of these keys whose pairs are trained on, now or before a change of the data."""
        return {key for part in self._parts for key in part.pairs_of(keys).values()}

    def held_out(self, keys: frozenset[str]) -> set[str]:
        """Those of these keys that were held out for evaluation."""
        return {key for part in self._parts for _, key in _where(part.read(HELD_OUT), keys)}

    def steps(self, keys: frozenset[str], steps: int) -> Iterator[Seen]:
        """Yields each time that a step up to `steps` had a pair of one of these keys in its batch, in their order."""
        for part in self._parts:
            yield from part.steps(keys, steps)


class _Part:
    """The steps of a training after `first`, up to `last` (None: all that come), and the index that they went by."""

    def __init__(self, config: TrainConfig, folder: str, first: int, last: int | None):
        self._folder, self._first, self._last = folder, first, last
        facts = storage.read_json(storage.join(folder, "index.json"))
        if not facts:
            name = storage.name(folder)
            raise UsageError(f"{config.run.folder}: it has no index of its pairs ({name}/index.json); train it first")
        self._files = [source["file"] for source in facts["sources"].values()]
        sizes = {name: source["pairs"] for name, source in facts["sources"].items()}
        weights = weights_of(folder, facts)
        self._sampler = global_batches(config, sizes, weights, lambda numbers: self._images[numbers])
        if isinstance(self._sampler, DistinctImages):
            self._sampler.begin(first)

    def read(self, file: str) -> Pairs:
        return read_pairs(storage.join(self._folder, file))

    @cached_property
    def _images(self) -> npt.NDArray[np.uint64]:
        return np.concatenate([self.read(file) for file in self._files])["image_id"][:, 0].astype(np.uint64)

    def pairs_of(self, keys: frozenset[str]) -> dict[int, str]:
        """The pairs of these keys that are trained on: their keys, by the pairs' numbers."""
        numbers, first = dict[int, str](), 0
        for pairs in map(self.read, self._files):
            numbers |= {first + place: key for place, key in _where(pairs, keys)}
            first += len(pairs)
        return numbers

    def steps(self, keys: frozenset[str], steps: int) -> Iterator[Seen]:
        pairs = self.pairs_of(keys)
        numbers = np.array(sorted(pairs), np.int64)
        last = steps if self._last is None else min(steps, self._last)
        for number in range(self._first, last if len(numbers) else 0):
            batch, epochs = self._sampler.batch(number)
            for place in np.flatnonzero(np.isin(batch, numbers)).tolist():
                yield Seen(number + 1, int(epochs[place]), pairs[int(batch[place])])


def _where(pairs: Pairs, keys: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Numbers and keys of the pairs that have one of these keys."""
    firsts = np.array(sorted({int(key[:16], 16) for key in keys}), np.uint64)
    for begin in range(0, len(pairs), _AT_ONCE):
        some = pairs[begin : begin + _AT_ONCE]["key"]
        for place in np.flatnonzero(np.isin(some[:, 0].astype(np.uint64), firsts)).tolist():
            key = some[place].tobytes().hex()
            if key in keys:
                yield begin + place, key


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
    before = facts.get("manifests")
    if before is None or before == manifests:
        return
    short = lambda digest: digest[:12] if digest else "not among them"  # noqa: E731 - in a line
    differ = ", ".join(
        f"{run} ({short(before.get(run))}, now {short(manifests.get(run))})"
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
