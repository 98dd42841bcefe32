"""Samples in one order, that of image_id and key: of several runs, or of the generations of one.

Each run, and each generation of one, is in that order by itself. So they are merged a shard at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby

import numpy as np

from altalign.data import generations
from altalign.errors import UnreadableError
from altalign.machine import interrupts
from altalign.pipelines.derive import parents as finished
from altalign.pipelines.derive import units
from altalign.pipelines.derive.copy_shards import Slice, slices
from altalign.pipelines.derive.parents import Parent, Piece, of_unit
from altalign.pipelines.derive.units import Places
from altalign.pipelines.run.shard_tables import CHOSEN_ROWS
from altalign.pipelines.run.units import Run
from altalign.settings.curate import CurateConfig


def opened(folder: str, config: CurateConfig) -> Parent:
    """A finished run, with its units in one order: the shards that it would have if it were of one generation.

    Raises:
        UsageError, DamagedError: as `parents.opened`.
        UnreadableError: a generation is not in that order.
    """
    parent = finished.opened(folder, config)
    return parent if parent.generations == 1 else as_one(parent)


def as_one(parent: Parent) -> Parent:
    """A run with its units as the shards that it would have if they were of one generation, and full.

    Raises:
        UnreadableError: a generation is not in that order.
    """
    of_generations = [
        [(str(place), shard.rows) for place, shard in group]
        for _, group in groupby(enumerate(parent.shards), lambda each: generations.of(each[1].name))
    ]
    blocks = [
        (units.places_of(units.sidecar(parent, parent.shards[int(place)], ["image_id", "key"])) for place, _ in of)
        for of in of_generations
    ]
    sizes = list(cut(parent.folder, blocks, parent.config.shards.samples_per_shard))
    parts = merged(of_generations, sizes)
    return replace(parent, cuts=tuple(tuple(Piece(int(of.name), of.begin, of.end) for of in each) for each in parts))


def filled(run: Run, parents: Sequence[Parent], kept: Sequence[tuple[str, int]], per_shard: int) -> list[list[Slice]]:
    """The chosen rows (units and how many, parent after parent) in shards of exactly `per_shard`, in one order.

    Raises:
        UnreadableError: the shards of a parent are not in that order.
    """
    of_parents = [[unit for unit in kept if unit[0].startswith(f"{number:03d}-")] for number in range(len(parents))]
    blocks = [(_places(run, parents, name) for name, _ in of) for of in of_parents]
    where = ", ".join(parent.folder for parent in parents)
    return merged(of_parents, list(cut(where, blocks, per_shard)))


def _places(run: Run, parents: Sequence[Parent], name: str) -> Places:
    parent, pieces = of_unit(parents, name)
    rows = units.samples_of(parent, pieces, ["image_id", "key"])
    return units.places_of(rows.take(CHOSEN_ROWS.array(run, name)))


def cut(where: str, sequences: Sequence[Iterable[Places]], per_unit: int) -> Iterator[list[int]]:
    """Yields how many places of each sequence are in each unit of so many, of all in one order; the last may be less.

    Args:
        where: what an error names.
        sequences: of places that rise, in blocks; of each a block is in memory.
        per_unit: how many.

    Raises:
        UnreadableError: the places of a sequence do not rise.
    """
    waiting = [_rising(where, blocks) for blocks in sequences]
    there = {number: block for number, blocks in enumerate(waiting) if (block := next(blocks, None)) is not None}
    owners = np.zeros(0, np.int64)
    while there:
        interrupts.check()
        last = min(block[-1] for block in there.values())  # all up to here are in memory
        taken = {number: int(np.searchsorted(block, last, side="right")) for number, block in there.items()}
        places = np.concatenate([there[number][:many] for number, many in taken.items()])
        of = np.repeat(list(taken), list(taken.values()))[np.argsort(places, kind="stable")]
        owners = np.concatenate([owners, of])
        while len(owners) >= per_unit:
            yield np.bincount(owners[:per_unit], minlength=len(sequences)).tolist()
            owners = owners[per_unit:]
        rest = {number: block[taken[number] :] for number, block in there.items()}
        blocks = {number: block if len(block) else next(waiting[number], None) for number, block in rest.items()}
        there = {number: block for number, block in blocks.items() if block is not None}
    if len(owners):
        yield np.bincount(owners, minlength=len(sequences)).tolist()


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


def merged(sequences: Sequence[Sequence[tuple[str, int]]], sizes: Sequence[Sequence[int]]) -> list[list[Slice]]:
    """For each unit the slices of things (names and rows) of each sequence, of which it has so many rows."""
    of_sequences = [slices(things, [of[number] for of in sizes]) for number, things in enumerate(sequences)]
    return [list(chain(*of_unit)) for of_unit in zip(*of_sequences, strict=True)]
