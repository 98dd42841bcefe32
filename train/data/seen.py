"""Which steps of a training saw a pair: the order is a function of the seed and of the index in the training's folder.

The index has the key of every pair. So the answer needs no shards, and stands when pairs were removed from the run that
the training read.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from altalign import storage
from altalign.errors import UsageError
from altalign.train.data.index import HELD_OUT, Pairs, read_pairs, weights_of
from altalign.train.data.order import DistinctImages, OneSource, Order, Sampler
from altalign.train.settings import TrainConfig

_AT_ONCE = 1 << 20  # pairs, or draws, that are looked at together

Numbers = npt.NDArray[np.int64]


class Seen(NamedTuple):
    """A step that had a pair in its batch: its number from 1, the epoch from 0, the pair's key in hex."""

    step: int
    epoch: int
    key: str


class Trained:
    """What a training goes through, from its settings and its index alone."""

    def __init__(self, config: TrainConfig):
        """Open the index.

        Raises:
            UsageError: the folder has none.
        """
        self._folder = storage.join(config.run.folder, "index")
        facts = storage.read_json(storage.join(self._folder, "index.json"))
        if not facts:
            raise UsageError(f"{config.run.folder}: it has no index of its pairs (index/index.json); train it first")
        self._files = [of["file"] for of in facts["sources"].values()]
        sizes = {name: of["pairs"] for name, of in facts["sources"].items()}
        is_sequential = config.data.sampling == "sequential"
        of_pairs = weights_of(self._folder, facts)
        order = Order(
            sizes, config.data.source_weights, config.run.seed, sequential=is_sequential, pair_weights=of_pairs
        )
        size = config.loop.global_batch
        self._sampler: Sampler | OneSource | DistinctImages
        if config.data.same_image_once_a_batch:
            pairs = np.concatenate([read_pairs(storage.join(self._folder, file)) for file in self._files])
            images = pairs["image_id"][:, 0].astype(np.uint64)
            self._sampler = DistinctImages(order, size, lambda wanted: images[wanted])
        else:
            self._sampler = OneSource(order, size) if config.data.sampling == "one_source" else Sampler(order, size)

    def pairs_of(self, keys: frozenset[str]) -> dict[int, str]:
        """The pairs of these keys that are trained on: their keys, by the pairs' numbers."""
        found, first = dict[int, str](), 0
        for file in self._files:
            pairs = read_pairs(storage.join(self._folder, file))
            found |= {first + place: key for place, key in _where(pairs, keys)}
            first += len(pairs)
        return found

    def held_out(self, keys: frozenset[str]) -> set[str]:
        """Those of these keys that were held out for evaluation."""
        return {key for _, key in _where(read_pairs(storage.join(self._folder, HELD_OUT)), keys)}

    def steps(self, pairs: dict[int, str], steps: int) -> Iterator[Seen]:
        """Yields each time that a step up to `steps` had one of these pairs in its batch, in the order of steps."""
        wanted = np.array(sorted(pairs), np.int64)
        for number in range(steps if len(wanted) else 0):
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
