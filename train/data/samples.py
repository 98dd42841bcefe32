"""The pairs of a training run, and their bytes, one read of a tar each."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from altalign import storage
from altalign.data.shards import pair_range, read_pair
from altalign.errors import UnreadableError, UsageError
from altalign.eval.image_sources import Images
from altalign.eval.sets import ImageSet
from altalign.train.data import index
from altalign.train.data.index import Pairs, Weights
from altalign.train.data.random_bits import Numbers, keyed
from altalign.train.data.runs import Runs

# bytes that are read for nothing: what a tar has between two pairs, the second's row in JSON above all
_BETWEEN = 16 << 10
_CAPTION = 12  # what the random numbers are for
_TOGETHER = 256  # pairs that one read brings, at most
_HELD_OUT_TOGETHER = 64  # pairs that are held out, in memory at a time


class Decoded(NamedTuple):
    """Keys and captions of some pairs, whether each image can be decoded, and pixels (k, …) of those that can."""

    keys: list[str]
    captions: list[str]
    is_whole: list[bool]
    pixels: torch.Tensor


class Samples:
    """The pairs that are trained on, numbered source by source in the order of their names, with the index's `facts`.

    `sources` has the number of pairs of each source, `draws` of what is drawn: of pairs, or of images, one of whose
    captions is drawn at each visit. Draws are numbered apart, in the same way. Files are mapped anew for each look, so
    all of it travels.
    """

    def __init__(self, folder: str, runs: Runs, facts: Mapping[str, Any]):
        self.folder, self.runs, self.facts = folder, runs, facts
        self.sources: dict[str, int] = {name: source["pairs"] for name, source in facts["sources"].items()}
        self.draws: dict[str, int] = {name: of.get("draws", of["pairs"]) for name, of in facts["sources"].items()}
        self._ends = np.cumsum(list(self.sources.values()), dtype=np.int64)
        files = [source["file"] for source in facts["sources"].values()]
        self._files = [storage.mappable(storage.join(folder, file)) for file in files]

    @classmethod
    def open(cls, folder: str, runs: Runs | Sequence[str], *, held_out: float = 0.0, pairs: int = 0) -> "Samples":
        """The pairs of runs, with their index in a local folder. Raises as `Runs` and `index.build`.

        With `held_out` = 1 all pairs are held out: a set for evaluation.
        """
        runs = runs if isinstance(runs, Runs) else Runs(runs)
        return cls(folder, runs, index.build(folder, runs, held_out=held_out, pairs=pairs))

    def __len__(self) -> int:
        return sum(self.sources.values())

    @property
    def weights(self) -> dict[str, Weights]:
        """The weights of the pairs of each source; empty: all are alike."""
        return {
            name: Weights(storage.mappable(storage.join(self.folder, source["weights"])))
            for name, source in self.facts["sources"].items()
            if "weights" in source and source["pairs"]
        }

    def firsts(self, draws: Numbers) -> Numbers:
        """Numbers of pairs of the images of these draws."""
        return self._captions_at(draws, np.zeros(len(draws)))

    def drawn(self, draws: Numbers, epochs: Numbers, seed: int) -> Numbers:
        """Numbers of the pairs of draws: of an image a caption by its share, by seed, epoch and image."""
        if self.draws == self.sources:
            return draws
        ids = self.pairs(self.firsts(draws))["image_id"].astype(np.uint64)
        points = (keyed(seed, epochs, ids[:, 0], ids[:, 1], _CAPTION) >> np.uint64(11)) / 2.0**53  # [0, 1)
        return self._captions_at(draws, points)

    def _captions_at(self, draws: Numbers, points: npt.NDArray[np.float64]) -> Numbers:
        pairs, ends = draws.copy(), np.cumsum(list(self.draws.values()))
        which = np.searchsorted(ends, draws, side="right")
        for source, (name, of) in enumerate(self.facts["sources"].items()):
            of_source = which == source
            if "images" in of and of_source.any():
                paths = (storage.mappable(storage.join(self.folder, of[file])) for file in ("images", "shares"))
                places = draws[of_source] - (ends[source] - self.draws[name])
                found = index.Captions(*paths).at(places, points[of_source])
                pairs[of_source] = self._ends[source] - self.sources[name] + found
        return pairs

    def pairs(self, numbers: npt.NDArray[np.int64]) -> Pairs:
        """The index entries of pairs: `index.PAIR`[n] of int64[n]."""
        rows = np.empty(len(numbers), index.PAIR)
        which = np.searchsorted(self._ends, numbers, side="right")
        for source in np.unique(which):
            of_source, pairs = which == source, index.read_pairs(self._files[source])
            rows[of_source] = pairs[numbers[of_source] - (self._ends[source] - len(pairs))]
        return rows

    def sources_of(self, numbers: npt.NDArray[np.int64]) -> list[str]:
        """The source of each pair."""
        names = list(self.sources)
        return [names[source] for source in np.searchsorted(self._ends, numbers, side="right")]

    def images_of(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """The first 64 bits of the `image_id` of each pair: images that share them count as one."""
        return self.pairs(numbers)["image_id"][:, 0].astype(np.uint64)

    def shard_of(self, pair: np.void) -> str:
        """Path of the tar of a pair."""
        return self.runs.shards[pair["shard"]].path(".tar")

    def read(self, pairs: Pairs) -> list[tuple[bytes, str]]:
        """Image and caption of each pair; neighbours by one read, and many reads at a time of an object store.

        Raises UnreadableError: a tar is missing, or not as the index has it.
        """
        order = np.lexsort([pairs["block"], pairs["shard"]])
        shards, begins = pairs["shard"][order], pairs["block"][order].astype(np.int64) * index.BLOCK
        ends = begins + pairs["image_bytes"][order] + pairs["caption_bytes"][order]
        is_far = (shards[1:] != shards[:-1]) | (begins[1:] - ends[:-1] > _BETWEEN)
        runs = [run for run in np.split(order, np.flatnonzero(is_far) + 1) if len(run)]
        together = [run[first : first + _TOGETHER] for run in runs for first in range(0, len(run), _TOGETHER)]
        parts = storage.each(self._read, [pairs[places] for places in together], place=self.runs.remote)
        read: dict[int, tuple[bytes, str]] = {}
        for places, part in zip(together, parts, strict=True):
            read |= zip(places.tolist(), part, strict=True)
        return [read[place] for place in range(len(pairs))]

    def _read(self, pairs: Pairs) -> list[tuple[bytes, str]]:
        """Neighbours, in the order of their tar."""
        path = self.shard_of(pairs[0])
        sizes = [(int(pair["image_bytes"]), int(pair["caption_bytes"])) for pair in pairs]
        ranges = [pair_range(int(pair["block"]) * index.BLOCK, *size) for pair, size in zip(pairs, sizes, strict=True)]
        first, after = ranges[0][0], max(offset + length for offset, length in ranges)
        data = _bytes_of(path, first, after - first)
        parts = [data[offset - first : offset - first + length] for offset, length in ranges]
        try:
            return [
                read_pair(part, key=key_of(pair), tar_bytes=tar_bytes, caption_bytes=caption_bytes)
                for part, pair, (tar_bytes, caption_bytes) in zip(parts, pairs, sizes, strict=True)
            ]
        except ValueError as error:
            raise UnreadableError(f"{path}: {error}") from None

    def held_out(self, images_at_most: int = 0) -> ImageSet:
        """The images that training never sees (0: all) in the order of their ids, with their captions in that of keys.

        Raises UsageError: none is held out.
        """
        pairs = np.asarray(index.read_pairs(storage.join(self.folder, index.HELD_OUT)))
        if not len(pairs):
            share = self.facts["asked"]["held_out"]
            raise UsageError(f"[data] held_out = {share:g} keeps no image of these runs; give a larger share")
        pairs = pairs[np.lexsort([pairs[column][:, half] for column in ("key", "image_id") for half in (1, 0)])]
        if images_at_most:
            is_next = (pairs["image_id"][1:] != pairs["image_id"][:-1]).any(axis=1)
            pairs = pairs[np.cumsum(np.r_[False, is_next]) < images_at_most]
        captions, places = dict[str, list[str]](), list[tuple[str, int, int]]()
        for first in range(0, len(pairs), _HELD_OUT_TOGETHER):
            rows = pairs[first : first + _HELD_OUT_TOGETHER]
            for row, (image, caption) in zip(rows, self.read(rows), strict=True):
                identity = row["image_id"].tobytes().hex()
                if identity not in captions:
                    places.append((self.shard_of(row), int(row["block"]) * index.BLOCK, len(image)))
                captions.setdefault(identity, []).append(caption)
        names, remote = list(captions), self.runs.remote

        def image_at(number: int) -> bytes:
            return _bytes_of(*places[number])

        images = Images(names, names, lambda numbers: storage.each(image_at, numbers, place=remote))
        return ImageSet(images, list(captions.values()), {})

    def captions(self, at_most: int = 0) -> Iterator[list[str]]:
        """Captions of the pairs, or those of so many smallest keys, in the order of the runs, a shard at a time."""
        last = int(self.facts["last_key"][:16] or "f" * 16, 16)
        if 0 < at_most < len(self):
            last, _ = index.nth_key([index.read_pairs(file) for file in self._files], at_most)
        share = self.facts["asked"]["held_out"]
        for shard, table in self.runs.sidecars(["key", "image_id", "caption"]):
            ids, keys = (index.hashes(table[name])[:, 0] for name in ("image_id", "key"))
            why, _ = self.runs.choice(shard, table)
            takes = ~index.is_held_out(ids, share) & (keys <= np.uint64(last)) & (why == "")
            yield [str(caption) for caption in table["caption"].filter(pa.array(takes)).to_pylist()]

    def decoded(
        self, decode: Callable[[bytes], torch.Tensor], numbers: npt.NDArray[np.int64], *, size: int, threads: int
    ) -> Iterator[Decoded]:
        """Yields the pairs of these numbers, `size` at a time; an image of which `decode` raises is not whole."""

        def pixels_of(image: bytes) -> torch.Tensor | None:
            try:
                return decode(image)
            except (ValueError, OSError):  # what an `Encoder` raises of an image
                return None

        with ThreadPoolExecutor(threads) as pool:
            for first in range(0, len(numbers), size):
                rows = self.pairs(numbers[first : first + size])
                images, captions = map(list, zip(*self.read(rows), strict=True))
                pixels = list(pool.map(pixels_of, images))
                whole = [one for one in pixels if one is not None]
                stacked = torch.stack(whole) if whole else torch.empty(0)
                yield Decoded(list(map(key_of, rows)), captions, [one is not None for one in pixels], stacked)


def _bytes_of(tar: str, offset: int, length: int) -> bytes:
    try:
        if storage.is_remote(tar):
            return storage.read_range(tar, offset, length)
        # not by `read_range`, which a signal ends: a training makes its step and a checkpoint first
        with Path(tar).open("rb", buffering=0) as file:
            return os.pread(file.fileno(), length, offset)
    except OSError as error:
        raise UnreadableError(f"{tar}: {error.strerror}") from None


def key_of(pair: np.void) -> str:
    """The sample's key, 32 hex digits."""
    return pair["key"].tobytes().hex()
