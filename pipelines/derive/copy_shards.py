"""Shards of some samples of other shards, which are copied as bytes: all that changes is where their images begin."""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from altalign.pipelines.run.shard_files import Slice, slices, starts, write_files
from altalign.pipelines.run.shard_tables import ShardFacts
from altalign.storage import parquet

SECONDS_PER_SAMPLE = 3e-5  # of one core, about

Numbers = npt.NDArray[np.int64]  # int64[n]
Places = npt.NDArray[np.bytes_]  # S64[n]: image_id and key


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
    """The bytes at these places (offset, length) of images or samples, which rise."""
    for (_, length), data in zip(places, storage.read_ranges(tar, places), strict=True):
        interrupts.check()
        if len(data) != length:
            raise UnreadableError(f"{tar}: it ends {length - len(data):,} bytes before a sample does")
        yield data


# Which samples a shard has -------------------------------------------------------------------------------------------


def merged(
    where: str, sequences: Sequence[Sequence[tuple[str, int]]], read: Callable[[str], Places], per_shard: int
) -> list[list[Slice]]:
    """Cuts several sequences of things (names and rows) into full shards, as `filled` one: all rows come in one order.

    `read` gives the places of a thing, which rise in a sequence; those of one thing of each are in memory. `where` is
    what an error names.
    """
    waiting = [_rising(where, map(read, (name for name, _ in things))) for things in sequences]
    heads = {number: block for number, blocks in enumerate(waiting) if (block := next(blocks, None)) is not None}
    owners, sizes = np.zeros(0, np.int64), list[list[int]]()  # sizes: rows of each sequence in each shard
    while heads:
        interrupts.check()
        last = min(block[-1] for block in heads.values())  # all up to here are in memory
        taken = {number: int(np.searchsorted(block, last, side="right")) for number, block in heads.items()}
        places = np.concatenate([heads[number][:many] for number, many in taken.items()])
        in_order = np.repeat(list(taken), list(taken.values()))[np.argsort(places, kind="stable")]
        owners = np.concatenate([owners, in_order])
        for number, many in taken.items():
            rest = heads.pop(number)[many:]
            block = rest if len(rest) else next(waiting[number], None)
            if block is not None:
                heads[number] = block
        while len(owners) >= per_shard or (len(owners) and not heads):
            sizes.append(np.bincount(owners[:per_shard], minlength=len(sequences)).tolist())
            owners = owners[per_shard:]
    of_sequences = [slices(things, [of_shard[number] for of_shard in sizes]) for number, things in enumerate(sequences)]
    return [list(chain(*of_shard)) for of_shard in zip(*of_sequences, strict=True)]


def _rising(where: str, blocks: Iterable[Places]) -> Iterator[Places]:
    """Yields the blocks that have places."""
    before = b""
    for block in blocks:
        if not len(block):
            continue
        if block[0] < before or (block[1:] < block[:-1]).any():
            raise UnreadableError(f"{where}: samples are not in the order of image_id and key")
        yield block
        before = block[-1]
