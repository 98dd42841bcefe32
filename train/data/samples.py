"""The pairs of a training run, and their bytes, one read of a tar each.

Those that are held out come image by image.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from altalign import storage
from altalign.data.shards import pair_range, read_pair
from altalign.errors import UnreadableError
from altalign.train.data import index
from altalign.train.data.index import Pairs
from altalign.train.data.pair_selection import Asked
from altalign.train.data.runs import Runs
from altalign.train.data.weights import Weights

_OPEN_AT_MOST = 128  # tars, of each process
# bytes that are read for nothing: what a tar has between two pairs, the second's row in JSON above all
_BETWEEN = 16 << 10
_TOGETHER = 256  # pairs that one read brings, at most
_AT_A_TIME = 64  # images that are held out, with their captions, that are read together of a store


class HeldOut(NamedTuple):
    """An image that is held out, with all its captions."""

    image_id: str
    image: bytes
    captions: list[str]


class Samples:
    """The pairs that are trained on, numbered source by source in the order of their names.

    Each of several processes maps the index anew.

    Attributes:
        runs: shards, and the digests of the manifests.
        sources: pairs of each source.
        facts: what index.json has.
    """

    def __init__(self, folder: str, runs: Runs, facts: Mapping[str, Any]):
        self._folder, self.runs, self.facts = folder, runs, facts
        self.sources: dict[str, int] = {name: source["pairs"] for name, source in facts["sources"].items()}
        self._ends = np.cumsum(list(self.sources.values()), dtype=np.int64)
        self._mapped: list[Pairs] | None = None
        self._tars = _Tars()

    @classmethod
    def open(
        cls,
        folder: str,
        runs: Sequence[str],
        *,
        held_out: float = 0.0,
        pairs: int = 0,
        clusters: bool = False,
        asked: Asked | None = None,
    ) -> "Samples":
        """Open finished runs, with their index in a local folder, which is made where there is none.

        Raises as `Runs.open` and `index.build`.

        With `held_out` = 1 all pairs of the runs are held out: a set for evaluation. With `clusters` the sources are
        those of `altalign score --clusters`. `asked` is what is asked of the pairs that are trained on.
        """
        return cls.of(folder, Runs.open(runs, clusters=clusters, asked=asked), held_out=held_out, pairs=pairs)

    @classmethod
    def of(cls, folder: str, runs: Runs, *, held_out: float, pairs: int) -> "Samples":
        """The same of runs that are open. Raises as `index.build`."""
        return cls(folder, runs, index.build(folder, runs, held_out=held_out, pairs=pairs))

    @property
    def weights(self) -> dict[str, Weights]:
        """The weights of the pairs of each source; empty: all are alike."""
        return index.weights_of(self._folder, self.facts)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None, "_tars": _Tars()}

    def pairs(self, numbers: npt.NDArray[np.int64]) -> Pairs:
        """The index entries of pairs: `index.PAIR`[n] of int64[n]."""
        if self._mapped is None:
            self._mapped = [
                index.read_pairs(storage.join(self._folder, source["file"]))
                for source in self.facts["sources"].values()
            ]
        found = np.empty(len(numbers), index.PAIR)
        which = np.searchsorted(self._ends, numbers, side="right")
        for source in np.unique(which):
            of_source = which == source
            mapped = self._mapped[source]
            found[of_source] = mapped[numbers[of_source] - (self._ends[source] - len(mapped))]
        return found

    def sources_of(self, numbers: npt.NDArray[np.int64]) -> list[str]:
        """The source of each pair."""
        names = list(self.sources)
        return [names[source] for source in np.searchsorted(self._ends, numbers, side="right")]

    def images_of(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """The first 64 bits of the `image_id` of each pair: images that share them count as one."""
        return self.pairs(numbers)["image_id"][:, 0].astype(np.uint64)

    def read(self, pairs: Pairs) -> list[tuple[bytes, str]]:
        """Image and caption of each pair; neighbours by one read, and many reads at a time of an object store.

        Raises:
            UnreadableError: a tar is not there, or not as the index has it.
        """
        of = next((folder for folder in self.runs.manifests if storage.is_remote(folder)), "")
        together = neighbours(pairs)
        read = storage.each(self._read, [pairs[places] for places in together], of=of)
        found: dict[int, tuple[bytes, str]] = {}
        for places, some in zip(together, read, strict=True):
            found |= zip(places.tolist(), some, strict=True)
        return [found[place] for place in range(len(pairs))]

    def shard_of(self, pair: np.void) -> str:
        """Path of the tar of a pair."""
        return self.runs.shards[pair["shard"]].tar

    def held_out(self, images_at_most: int = 0) -> Iterator[HeldOut]:
        """The images that are held out, in the order of their ids, each with its captions in the order of their keys.

        With `images_at_most` those of the smallest ids, which are hashes. Holds the index of all that are held out in
        memory.
        """
        pairs = np.asarray(index.read_pairs(storage.join(self._folder, index.HELD_OUT)))
        pairs = pairs[np.lexsort([pairs[column][:, half] for column in ("key", "image_id") for half in (1, 0)])]
        begins = (
            [
                0,
                *(np.flatnonzero((pairs["image_id"][1:] != pairs["image_id"][:-1]).any(axis=1)) + 1).tolist(),
                len(pairs),
            ]
            if len(pairs)
            else [0]
        )
        if images_at_most:
            begins = begins[: images_at_most + 1]
        for first in range(0, len(begins) - 1, _AT_A_TIME):
            part = begins[first : first + _AT_A_TIME + 1]
            read = iter(self.read(pairs[part[0] : part[-1]]))
            for begin, end in pairwise(part):
                found = [next(read) for _ in range(begin, end)]
                yield HeldOut(pairs[begin]["image_id"].tobytes().hex(), found[0][0], [caption for _, caption in found])

    def captions(self, at_most: int = 0) -> Iterator[list[str]]:
        """Captions of the pairs that are trained on, in the order of the runs, a shard at a time.

        With `at_most` those of so many smallest keys.
        """
        last_key = self.facts["last_key"]
        if 0 < at_most < len(self):
            files = [storage.join(self._folder, source["file"]) for source in self.facts["sources"].values()]
            last_key = index.nth_key(files, at_most)[0].hex()
        return index.captions(self.runs, held_out=self.facts["asked"]["held_out"], last_key=last_key)

    def _read(self, pairs: Pairs) -> list[tuple[bytes, str]]:
        """Neighbours, in the order of their tar."""
        path = self.shard_of(pairs[0])
        ranges = [pair_range(int(pair["block"]) * index.BLOCK, *_sizes(pair)) for pair in pairs]
        first, after = ranges[0][0], max(offset + length for offset, length in ranges)
        try:
            data = self._tars.read(path, first, after - first)
            return [
                read_pair(
                    data[offset - first : offset - first + length],
                    key=key_of(pair),
                    tar_bytes=_sizes(pair)[0],
                    caption_bytes=_sizes(pair)[1],
                )
                for pair, (offset, length) in zip(pairs, ranges, strict=True)
            ]
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UnreadableError(f"{path}: {why}") from None


def _sizes(pair: np.void) -> tuple[int, int]:
    return int(pair["image_bytes"]), int(pair["caption_bytes"])


def neighbours(pairs: Pairs) -> list[npt.NDArray[np.int64]]:
    """The places of pairs, those together that one read brings, each in the order of their tar: int64 (k,)."""
    if not len(pairs):
        return []
    ordered = np.lexsort([pairs["block"], pairs["shard"]])
    shards, begins = pairs["shard"][ordered], pairs["block"][ordered].astype(np.int64) * index.BLOCK
    ends = begins + pairs["image_bytes"][ordered] + pairs["caption_bytes"][ordered]
    is_far = (shards[1:] != shards[:-1]) | (begins[1:] - ends[:-1] > _BETWEEN)
    parts = np.split(ordered, np.flatnonzero(is_far) + 1)
    return [part[first : first + _TOGETHER] for part in parts for first in range(0, len(part), _TOGETHER)]


def key_of(pair: np.void) -> str:
    """The sample's key, 32 hex digits."""
    return pair["key"].tobytes().hex()


class _Tars:
    """Local tars stay open, those that were read last; objects are asked for ranges.

    Of one thread where files are local.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()

    def read(self, path: str, offset: int, length: int) -> bytes:
        if storage.is_remote(path):
            return storage.read_range(path, offset, length)
        file = self._open.pop(path, None)
        if file is None:
            if len(self._open) >= _OPEN_AT_MOST:
                os.close(self._open.popitem(last=False)[1])
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._open[path] = file
        return os.pread(file, length, offset)

    def __del__(self) -> None:
        for file in self._open.values():
            os.close(file)
