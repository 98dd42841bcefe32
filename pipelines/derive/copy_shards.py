"""Shards of some samples of other shards, which are copied as bytes: all that changes is where their images begin."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.schema import SAMPLE
from altalign.data.shards import ShardWriter
from altalign.errors import UnreadableError
from altalign.machine import interrupts
from altalign.machine.cores import cores
from altalign.pipelines.run.shard_files import starts, write_files
from altalign.pipelines.run.shard_tables import ShardFacts
from altalign.storage import parquet

GAP_BYTES = 64 << 10  # so much between two images is read over: what follows an image in a tar is far less
AT_ONCE_BYTES = 8 << 20
SECONDS_PER_SAMPLE = 3e-5  # of one core, about

Numbers = npt.NDArray[np.int64]  # int64[n]


def at_once(folder: str, *, in_store: int = 16) -> int:
    """How many files of a run are worked on at a time; in a store fewer where each has much of them in memory."""
    return in_store if storage.is_remote(folder) else cores()


class Part(NamedTuple):
    """Some rows of a shard, by their rising numbers; `shards` is the folder that the shard is in."""

    shards: str
    shard: str
    rows: Numbers


def copied(folder: str, name: str, sequences: Iterable[Iterable[Part]]) -> ShardFacts:
    """Write a shard of samples of others, as `write_shard` does.

    Each sequence of parts is in the order of (image_id, key), and all together are then. One alone stays as it is.

    Raises:
        UnreadableError: a shard ends before a sample does, or its tar is not its side-car's.
    """
    opened = [[_opened(part) for part in sequence] for sequence in sequences]
    rows = pa.concat_tables([rows for parts in opened for rows, _ in parts]).combine_chunks()
    waiting = [chain.from_iterable(members for _, members in parts) for parts in opened]
    turns = np.repeat(np.arange(len(opened)), [sum(len(rows) for rows, _ in parts) for parts in opened])
    if len(opened) > 1:
        order = pc.sort_indices(rows, [("image_id", "ascending"), ("key", "ascending")]).to_numpy()
        rows, turns = rows.take(order), turns[order]

    def fill(shard: ShardWriter) -> pa.Table:
        places = list[int]()
        keys, before = (parquet.values(rows, column) for column in ("key", "tar_offset"))
        for turn, key, was in zip(turns.tolist(), keys, before, strict=True):
            tar, members = next(waiting[turn])
            try:
                places.append(shard.copy(members, key, was))
            except ValueError as error:
                raise UnreadableError(f"{tar}: {error}") from None
        number = rows.column_names.index("tar_offset")
        return rows.set_column(number, SAMPLE.field(number), pa.array(places, pa.int64()))

    return write_files(folder, name, fill)


def _opened(part: Part) -> tuple[pa.Table, Iterator[tuple[str, bytes]]]:
    """The rows of a part, and for each the path of its tar and its members there, from the first header on."""
    tar, sidecar = (storage.join(part.shards, f"{part.shard}.{ending}") for ending in ("tar", "parquet"))
    rows = parquet.read_table(sidecar).select(SAMPLE.names)
    at = starts(rows, storage.stamp(tar).size)
    if (missing := int(at[:-1].max(initial=0) - at[-1])) > 0:
        raise UnreadableError(f"{tar}: it ends {missing:,} bytes before a sample does")
    places = zip(at[part.rows].tolist(), np.diff(at)[part.rows].tolist(), strict=True)
    return rows.take(part.rows), zip(repeat(tar), images(tar, list(places)))


def images(tar: str, places: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """The bytes at these places (offset, length) of images or samples, which rise; neighbours are read at once."""
    groups = list[list[tuple[int, int]]]()
    for offset, size in places:
        begin, end = (groups[-1][0][0], sum(groups[-1][-1])) if groups else (0, -1)
        if end <= offset <= end + GAP_BYTES and offset + size - begin <= AT_ONCE_BYTES and groups:
            groups[-1].append((offset, size))
        else:
            groups.append([(offset, size)])
    ranges = [(group[0][0], sum(group[-1]) - group[0][0]) for group in groups]
    for group, (begin, length), data in zip(groups, ranges, storage.read_ranges(tar, ranges), strict=True):
        interrupts.check()
        if len(data) != length:
            raise UnreadableError(f"{tar}: it ends {length - len(data):,} bytes before a sample does")
        for offset, size in group:
            yield data[offset - begin : offset - begin + size]


class Slice(NamedTuple):
    """Rows `begin` to `end` of what is chosen of a thing of this name."""

    name: str
    begin: int
    end: int


def filled(chosen: Sequence[tuple[str, int]], per_shard: int) -> list[list[Slice]]:
    """Cuts what is chosen (names and rows) into shards of exactly `per_shard` rows; the last may have fewer."""
    left = sum(rows for _, rows in chosen)
    return list(slices(chosen, (min(per_shard, left - begin) for begin in range(0, left, per_shard))))


def slices(things: Iterable[tuple[str, int]], sizes: Iterable[int]) -> Iterator[list[Slice]]:
    """Cuts things, one after the other, into pieces of these sizes."""
    left, name, begin, rows = iter(things), "", 0, 0
    for size in sizes:
        piece = list[Slice]()
        while size:
            if begin == rows:
                name, rows = next(left)
                begin = 0
                continue
            many = min(size, rows - begin)
            piece.append(Slice(name, begin, begin + many))
            begin, size = begin + many, size - many
        yield piece
