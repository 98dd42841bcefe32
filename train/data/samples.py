"""The pairs of a training run, and their bytes, one read of a tar each; those held out come image by image."""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from altalign import storage
from altalign.data.shards import pair_range, read_pair
from altalign.errors import UnreadableError
from altalign.train.data import index
from altalign.train.data.augment import UndecodableError
from altalign.train.data.index import Pairs, Weights
from altalign.train.data.runs import Runs

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


class Decoded(NamedTuple):
    """Keys and captions of some pairs, whether each image can be decoded, and pixels (k, …) of those that can."""

    keys: list[str]
    captions: list[str]
    is_whole: list[bool]
    pixels: torch.Tensor


class Samples:
    """The pairs that are trained on, numbered source by source in the order of their names, with the index's `facts`.

    Each of several processes maps the index anew. `sources` has the number of pairs of each source.
    """

    def __init__(self, folder: str, runs: Runs, facts: Mapping[str, Any]):
        self._folder, self.runs, self.facts = folder, runs, facts
        self.sources: dict[str, int] = {name: source["pairs"] for name, source in facts["sources"].items()}
        self._ends = np.cumsum(list(self.sources.values()), dtype=np.int64)
        self._mapped: list[Pairs] | None = None
        self._tars = _Tars()

    @classmethod
    def open(cls, folder: str, runs: Runs | Sequence[str], *, held_out: float = 0.0, pairs: int = 0) -> "Samples":
        """The pairs of runs, with their index in a local folder. Raises as `Runs.open` and `index.build`.

        With `held_out` = 1 all pairs are held out: a set for evaluation.
        """
        runs = runs if isinstance(runs, Runs) else Runs.open(runs)
        return cls(folder, runs, index.build(folder, runs, held_out=held_out, pairs=pairs))

    @property
    def weights(self) -> dict[str, Weights]:
        """The weights of the pairs of each source; empty: all are alike."""
        return index.weights_of(self._folder, self.facts)

    @property
    def _files(self) -> list[str]:
        return [storage.join(self._folder, source["file"]) for source in self.facts["sources"].values()]

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None, "_tars": _Tars()}

    def pairs(self, numbers: npt.NDArray[np.int64]) -> Pairs:
        """The index entries of pairs: `index.PAIR`[n] of int64[n]."""
        if self._mapped is None:
            self._mapped = [index.read_pairs(file) for file in self._files]
        rows = np.empty(len(numbers), index.PAIR)
        which = np.searchsorted(self._ends, numbers, side="right")
        for source in np.unique(which):
            of_source, mapped = which == source, self._mapped[source]
            rows[of_source] = mapped[numbers[of_source] - (self._ends[source] - len(mapped))]
        return rows

    def sources_of(self, numbers: npt.NDArray[np.int64]) -> list[str]:
        """The source of each pair."""
        names = list(self.sources)
        return [names[source] for source in np.searchsorted(self._ends, numbers, side="right")]

    def images_of(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """The first 64 bits of the `image_id` of each pair: images that share them count as one."""
        return self.pairs(numbers)["image_id"][:, 0].astype(np.uint64)

    def read(self, pairs: Pairs) -> list[tuple[bytes, str]]:
        """Image and caption of each pair; neighbours by one read, and many reads at a time of an object store.

        Raises UnreadableError: a tar is missing, or not as the index has it.
        """
        together = _neighbours(pairs)
        parts = storage.each(self._read, [pairs[places] for places in together], place=self.runs.remote)
        read: dict[int, tuple[bytes, str]] = {}
        for places, part in zip(together, parts, strict=True):
            read |= zip(places.tolist(), part, strict=True)
        return [read[place] for place in range(len(pairs))]

    def shard_of(self, pair: np.void) -> str:
        """Path of the tar of a pair."""
        return self.runs.shards[pair["shard"]].tar

    def held_out(self, images_at_most: int = 0) -> Iterator[HeldOut]:
        """The images that are held out (or so many) in the order of their ids; captions in that of keys."""
        pairs = np.asarray(index.read_pairs(storage.join(self._folder, index.HELD_OUT)))
        pairs = pairs[np.lexsort([pairs[column][:, half] for column in ("key", "image_id") for half in (1, 0)])]
        is_next = (pairs["image_id"][1:] != pairs["image_id"][:-1]).any(axis=1)
        begins = np.concatenate([[0], np.flatnonzero(is_next) + 1, [len(pairs)]])
        if images_at_most:
            begins = begins[: images_at_most + 1]
        for first in range(0, len(begins) - 1 if len(pairs) else 0, _AT_A_TIME):
            rows = pairs[begins[first] : begins[min(first + _AT_A_TIME, len(begins) - 1)]]
            ids = (row["image_id"].tobytes().hex() for row in rows)
            for image_id, group in groupby(zip(ids, self.read(rows), strict=True), key=lambda row: row[0]):
                read = [pair for _, pair in group]
                yield HeldOut(image_id, read[0][0], [caption for _, caption in read])

    def captions(self, at_most: int = 0) -> Iterator[list[str]]:
        """Captions of the pairs, or those of so many smallest keys, in the order of the runs, a shard at a time."""
        last_key = self.facts["last_key"]
        if 0 < at_most < len(self):
            last_key = index.nth_key(self._files, at_most)[0].hex()
        return index.captions(self.runs, held_out=self.facts["asked"]["held_out"], last_key=last_key)

    def decoded(
        self,
        decode: Callable[[bytes], torch.Tensor],
        numbers: npt.NDArray[np.int64],
        *,
        size: int,
        threads: int,
        undecodable: tuple[type[Exception], ...] = (UndecodableError,),
    ) -> Iterator[Decoded]:
        """Yields the pairs of these numbers, `size` at a time; `undecodable` is what `decode` raises of an image."""

        def pixels_of(image: bytes) -> torch.Tensor | None:
            try:
                return decode(image)
            except undecodable:
                return None

        with ThreadPoolExecutor(threads) as pool:
            for first in range(0, len(numbers), size):
                rows = self.pairs(numbers[first : first + size])
                images, captions = map(list, zip(*self.read(rows), strict=True))
                pixels = list(pool.map(pixels_of, images))
                whole = [one for one in pixels if one is not None]
                is_whole = [one is not None for one in pixels]
                stacked = torch.stack(whole) if whole else torch.empty(0)
                yield Decoded(list(map(key_of, rows)), captions, is_whole, stacked)

    def _read(self, pairs: Pairs) -> list[tuple[bytes, str]]:
        """Neighbours, in the order of their tar."""
        path = self.shard_of(pairs[0])
        sizes = [(int(pair["image_bytes"]), int(pair["caption_bytes"])) for pair in pairs]
        ranges = [pair_range(int(pair["block"]) * index.BLOCK, *size) for pair, size in zip(pairs, sizes, strict=True)]
        first, after = ranges[0][0], max(offset + length for offset, length in ranges)
        try:
            data = self._tars.read(path, first, after - first)
            return [
                read_pair(
                    data[offset - first : offset - first + length],
                    key=key_of(pair),
                    tar_bytes=image_bytes,
                    caption_bytes=caption_bytes,
                )
                for pair, (image_bytes, caption_bytes), (offset, length) in zip(pairs, sizes, ranges, strict=True)
            ]
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UnreadableError(f"{path}: {why}") from None


def _neighbours(pairs: Pairs) -> list[npt.NDArray[np.int64]]:
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
    """Local tars stay open, those that were read last, in one thread; objects are asked for ranges."""

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
