"""Which steps of a training saw a pair: the order is a function of the seed and of the index in the training's folder.

The index has the key of every pair. So the answer needs no shards, and stands when pairs were removed from the run that
the training read.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from altalign import storage
from altalign.errors import UsageError
from altalign.train.data import changed_runs
from altalign.train.data.index import HELD_OUT, Pairs, read_pairs, weights_of
from altalign.train.data.order import DistinctImages, global_batches
from altalign.train.run import training_folder
from altalign.train.settings.training import TrainConfig

_AT_ONCE = 1 << 20  # pairs, or draws, that are looked at together

Numbers = npt.NDArray[np.int64]


class Seen(NamedTuple):
    """A step that had a pair in its batch: its number from 1, the epoch from 0, the pair's key in hex."""

    step: int
    epoch: int
    key: str


class Trained:
    """What a training goes through, from its settings and its indexes alone: more than one, where its data changed."""

    def __init__(self, config: TrainConfig):
        """Open the indexes.

        Raises:
            UsageError: the folder lacks one.
        """
        first, self._parts = 0, list[_Part]()
        for change in changed_runs.changes(config):
            self._parts.append(_Part(config, changed_runs.index_until(config, change["step"]), first, change["step"]))
            first = change["step"]
        self._parts.append(_Part(config, training_folder.path(config, "index"), first, None))

    def trained_on(self, keys: frozenset[str]) -> set[str]:
        """Those of these keys whose pairs are trained on, now or before a change of the data."""
        return {key for part in self._parts for key in part.pairs_of(keys).values()}

    def held_out(self, keys: frozenset[str]) -> set[str]:
        """Those of these keys that were held out for evaluation."""
        return {key for part in self._parts for key in part.held_out(keys)}

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
        self._files = [of["file"] for of in facts["sources"].values()]
        sizes = {name: of["pairs"] for name, of in facts["sources"].items()}
        self._sampler = global_batches(config, sizes, weights_of(folder, facts), self._images_of)
        if isinstance(self._sampler, DistinctImages):
            self._sampler.begin(first)

    @cached_property
    def _images(self) -> npt.NDArray[np.uint64]:
        pairs = np.concatenate([read_pairs(storage.join(self._folder, file)) for file in self._files])
        return pairs["image_id"][:, 0].astype(np.uint64)

    def _images_of(self, numbers: Numbers) -> npt.NDArray[np.uint64]:
        return self._images[numbers]

    def pairs_of(self, keys: frozenset[str]) -> dict[int, str]:
        """The pairs of these keys that are trained on: their keys, by the pairs' numbers."""
        found, first = dict[int, str](), 0
        for file in self._files:
            pairs = read_pairs(storage.join(self._folder, file))
            found |= {first + place: key for place, key in _where(pairs, keys)}
            first += len(pairs)
        return found

    def held_out(self, keys: frozenset[str]) -> set[str]:
        return {key for _, key in _where(read_pairs(storage.join(self._folder, HELD_OUT)), keys)}

    def steps(self, keys: frozenset[str], steps: int) -> Iterator[Seen]:
        pairs = self.pairs_of(keys)
        wanted = np.array(sorted(pairs), np.int64)
        last = steps if self._last is None else min(steps, self._last)
        for number in range(self._first, last if len(wanted) else 0):
            there, epochs = self._sampler.batch(number)
            for place in np.flatnonzero(np.isin(there, wanted)).tolist():
                yield Seen(number + 1, int(epochs[place]), pairs[int(there[place])])


def _where(pairs: Pairs, keys: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Numbers and keys of the pairs that have one of these keys."""
    wanted = np.array(sorted(bytes.fromhex(key) for key in keys), "V16")
    firsts = np.unique(wanted.view(">u8")[::2].astype(np.uint64))
    for begin in range(0, len(pairs), _AT_ONCE):
        some = pairs[begin : begin + _AT_ONCE]["key"]
        for place in np.flatnonzero(np.isin(some[:, 0].astype(np.uint64), firsts)).tolist():
            key = some[place].tobytes().hex()
            if key in keys:
                yield begin + place, key
