"""Shards of some samples of other shards, which are copied as bytes: all that changes is where their images begin.

Samples of all captions of an image are written anew from their rows, for some of these may go, and others come.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.schema import SAMPLE
from altalign.data.shards import ShardWriter, table_of
from altalign.errors import UnreadableError
from altalign.machine import interrupts
from altalign.machine.cores import cores
from altalign.pipelines.run.shard_files import AS_PAIRS, starts, write_files, written
from altalign.pipelines.run.shard_tables import ShardFacts
from altalign.settings.curate import ShardsSettings
from altalign.storage import parquet

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


def copied(
    folder: str, name: str, sequences: Iterable[Iterable[Part]], settings: ShardsSettings = AS_PAIRS
) -> ShardFacts:
    """Write a shard of samples of others, as `write_shard` does.

    Each sequence of parts is in the order of (image_id, key), and all together are then. One alone stays as it is.

    Raises:
        UnreadableError: a shard ends before a sample does, or its tar is not its side-car's.
    """
    whole = settings.captions == "all"
    opened = [[_opened(part, whole=whole) for part in sequence] for sequence in sequences]
    rows = pa.concat_tables([rows for parts in opened for rows, _ in parts]).combine_chunks()
    waiting = [chain.from_iterable(members for _, members in parts) for parts in opened]
    turns = np.repeat(np.arange(len(opened)), [sum(len(rows) for rows, _ in parts) for parts in opened])
    if len(opened) > 1:
        order = pc.sort_indices(rows, [("image_id", "ascending"), ("key", "ascending")]).to_numpy()
        rows, turns = rows.take(order), turns[order]

    def fill(shard: ShardWriter) -> pa.Table:
        if whole:
            of_rows = zip(rows.to_pylist(), turns.tolist(), strict=True)
            return table_of(written(shard, ((row, next(waiting[turn])[1]) for row, turn in of_rows), settings))
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


def _opened(part: Part, *, whole: bool) -> tuple[pa.Table, Iterator[tuple[str, bytes]]]:
    """The rows of a part, and for each the path of its tar and its members there, from the first header on.

    Of whole images it is the image alone, which rows that follow one another share.
    """
    tar, sidecar = (storage.join(part.shards, f"{part.shard}.{ending}") for ending in ("tar", "parquet"))
    rows = parquet.read_table(sidecar).select(SAMPLE.names)
    at = starts(rows, storage.stamp(tar).size)
    if (missing := int(at[:-1].max(initial=0) - at[-1])) > 0:
        raise UnreadableError(f"{tar}: it ends {missing:,} bytes before a sample does")
    places = zip(at[part.rows].tolist(), np.diff(at)[part.rows].tolist(), strict=True)
    rows = rows.take(part.rows)
    if whole:
        places = zip(*(parquet.values(rows, name) for name in ("tar_offset", "tar_bytes")), strict=True)
        counted = [(place, len(list(same))) for place, same in groupby(places)]
        of_images = images(tar, [place for place, _ in counted])
        each = (repeat(image, times) for image, (_, times) in zip(of_images, counted, strict=True))
        return rows, zip(repeat(tar), chain.from_iterable(each))
    return rows, zip(repeat(tar), images(tar, list(places)))


def images(tar: str, places: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """The bytes at these places (offset, length) of images or samples, which rise."""
    for (_, length), data in zip(places, storage.read_ranges(tar, places), strict=True):
        interrupts.check()
        if len(data) != length:
            raise UnreadableError(f"{tar}: it ends {length - len(data):,} bytes before a sample does")
        yield data
