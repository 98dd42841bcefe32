"""Shards of some samples of other shards: images by ranges of bytes, in the order in which the parts are given."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from altalign import storage
from altalign.errors import UnreadableError
from altalign.machine import interrupts
from altalign.pipelines.files import parquet
from altalign.schema import SAMPLE

GAP_BYTES = 64 << 10  # so much between two images is read over: what follows an image in a tar is far less
AT_ONCE_BYTES = 8 << 20
_ROWS = 1_024  # of a side-car that are Python objects at a time

Row = dict[str, Any]
Numbers = npt.NDArray[np.int64]  # int64[n]


class Part(NamedTuple):
    """Some rows of a shard, by their rising numbers; `shards` is the folder that the shard is in."""

    shards: str
    shard: str
    rows: Numbers


def samples(parts: Iterable[Part]) -> Iterator[tuple[Row, bytes]]:
    """Yields the rows of the side-cars and their images, as they are stored.

    Raises:
        UnreadableError: a shard ends before an image does.
    """
    for part in parts:
        tar, sidecar = (storage.join(part.shards, f"{part.shard}.{ending}") for ending in ("tar", "parquet"))
        chosen = parquet.read_table(sidecar).select(SAMPLE.names).take(part.rows)
        places = list(zip(*(parquet.values(chosen, name) for name in ("tar_offset", "tar_bytes")), strict=True))
        found = images(tar, places)
        for begin in range(0, len(chosen), _ROWS):
            interrupts.check()
            for row in chosen.slice(begin, _ROWS).to_pylist():
                yield row, next(found)


def merged(sequences: Iterable[Iterable[Part]]) -> Iterator[tuple[Row, bytes]]:
    """The same of sequences of parts, each of which is in the order of (image_id, key), in that order. Raises as it."""
    return heapq.merge(*map(samples, sequences), key=_place)


def _place(sample: tuple[Row, bytes]) -> tuple[str, str]:
    """The place of a sample in the order of shards."""
    return sample[0]["image_id"], sample[0]["key"]


def images(tar: str, places: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """The bytes at these places (offset, length), which rise; neighbours are read at once."""
    together = list(_together(places))
    ranges = [(group[0][0], group[-1][0] + group[-1][1] - group[0][0]) for group in together]
    for group, (begin, length), data in zip(together, ranges, storage.read_ranges(tar, ranges), strict=True):
        if len(data) != length:
            raise UnreadableError(f"{tar}: it ends {length - len(data):,} bytes before an image does")
        for offset, size in group:
            yield data[offset - begin : offset - begin + size]


def _together(places: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """The places in groups, each of which is one range of at most `AT_ONCE_BYTES`, or one place."""
    group = list[tuple[int, int]]()
    for offset, size in places:
        if group:
            end = sum(group[-1])
            if not (end <= offset <= end + GAP_BYTES and offset + size - group[0][0] <= AT_ONCE_BYTES):
                yield group
                group = []
        group.append((offset, size))
    if group:
        yield group


class Slice(NamedTuple):
    """Rows `begin` to `end` of what is chosen of a thing of this name."""

    name: str
    begin: int
    end: int


def filled(chosen: Sequence[tuple[str, int]], per_shard: int) -> list[list[Slice]]:
    """Cuts what is chosen (names and rows) into shards of exactly `per_shard` rows; the last may have fewer."""
    shards, left = list[list[Slice]](), 0
    for name, rows in chosen:
        begin = 0
        while begin < rows:
            if not left:
                shards.append([])
                left = per_shard
            taken = min(left, rows - begin)
            shards[-1].append(Slice(name, begin, begin + taken))
            begin, left = begin + taken, left - taken
    return shards
