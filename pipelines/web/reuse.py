"""What was fetched before begins the journals of the units that want it, and nobody is asked for it again.

A trial has fetched it, the run before an addition, or this run before stages ran anew.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.filters import identity
from altalign.pipelines.images.measuring import Outcome
from altalign.pipelines.run.image_places import Kind
from altalign.pipelines.run.sampled import fetched_before
from altalign.pipelines.run.tables.fetched import FETCHED, first_of_each_image
from altalign.pipelines.run.tables.judged import GROUPED
from altalign.pipelines.run.units import Run
from altalign.pipelines.web import journal
from altalign.pipelines.web.journal import JournalGrounds
from altalign.storage import arrays, parquet

_OTHER = "of another run"  # a digest that none is: what was measured is measured again
_GroundsOf = Callable[[Sequence[str]], JournalGrounds]
_AT_ONCE = 16  # units of a trial whose journals stay in memory


class _Unit(NamedTuple):
    """A fetch unit of a trial: the path of its files without an ending, and its images in order.

    `in_hand` has those that came from the input's files: these may have others by now.
    """

    stem: str
    image_ids: tuple[str, ...]
    in_hand: frozenset[str]


def adopt(run: Run, stem: str, image_ids: Sequence[str], from_web: Collection[int], grounds: _GroundsOf) -> None:
    """Begin the journal of a unit with what `fetched_before` of the run has; a unit that has one keeps it.

    Args:
        run: the run of the unit.
        stem: the path of its files without an ending.
        image_ids: of its images, which rise; at least one.
        from_web: the numbers of those that the web would be asked for.
        grounds: what a journal of these images rests on.
    """
    if storage.exists(f"{stem}.journal") or not (parts := list(_fetched(run, image_ids, from_web, grounds))):
        return
    own, outcomes, is_measured = grounds(image_ids), dict[int, Outcome](), True
    with storage.growing(f"{stem}.images", keep=0) as blob:
        for unit, measured, part in parts:
            part = {number: outcome for number, outcome in part.items() if number not in outcomes}
            in_hand = [number for number, outcome in part.items() if outcome.reason is None]
            ranges = [(part[number].offset, part[number].bytes) for number in in_hand]
            for number, data in zip(in_hand, storage.read_ranges(f"{unit.stem}.images", ranges), strict=True):
                part[number] = part[number]._replace(offset=blob.bytes)
                blob.write(data)
            outcomes |= part
            is_measured = is_measured and measured == own.measured
    if outcomes:
        journal.write(stem, own if is_measured else JournalGrounds(own.requests, _OTHER), outcomes)


def known(run: Run, stem: str, image_ids: Sequence[str], from_web: Collection[int], grounds: _GroundsOf) -> set[int]:
    """The numbers of the images of a unit that nobody will be asked for; arguments as of `adopt`."""
    own = journal.read(stem)
    if own.grounds is not None:
        return {*own.outcomes} & {*from_web} if own.grounds.requests == grounds(image_ids).requests else set()
    return {number for _, _, part in _fetched(run, image_ids, from_web, grounds) for number in part}


def _fetched(
    run: Run, image_ids: Sequence[str], from_web: Collection[int], grounds: _GroundsOf
) -> Iterator[tuple[_Unit, str, dict[int, Outcome]]]:
    """What units of before know of these images, by their numbers here, and the digest of how they measured.

    Only what was fetched by the same rules is taken.
    """
    number_of = {image_ids[number]: number for number in from_web}
    for unit in (each for folder in fetched_before(run) if folder != run.folder for each in _units_of(folder)):
        if unit.image_ids[0] > image_ids[-1] or image_ids[0] > unit.image_ids[-1]:
            continue
        entries = _entries(unit.stem, storage.stamp(f"{unit.stem}.journal"))
        if entries.grounds is not None and entries.grounds.requests == grounds(unit.image_ids).requests:
            outcomes = ((unit.image_ids[number], outcome) for number, outcome in entries.outcomes.items())
            by_number = {
                number_of[name]: outcome for name, outcome in outcomes if name in number_of and name not in unit.in_hand
            }
            yield unit, entries.grounds.measured, by_number


def _units_of(folder: str) -> Sequence[_Unit]:
    """The units of a trial that have a journal."""
    units = storage.join(folder, "work", *FETCHED.step.split("/"))
    journals = frozenset(journal.names(units)) if storage.kind(units) == "folder" else frozenset[str]()
    grouped = storage.join(folder, "work", *GROUPED.step.split("/"))
    paths = [storage.join(grouped, name) for name in storage.names(grouped, ".parquet")] if journals else []
    every = [each for path in paths for each in _images(path, storage.stamp(path)).items()]
    return [
        _Unit(storage.join(units, name), ids, in_hand) for name, (ids, in_hand) in every if name in journals and ids
    ]


@lru_cache(maxsize=4)
def _images(path: str, _: storage.Stamp) -> Mapping[str, tuple[tuple[str, ...], frozenset[str]]]:
    """The images of each fetch unit of a partition, and those in hand, by the name of the unit."""
    images = dict[str, tuple[tuple[str, ...], frozenset[str]]]()
    for number in range(len(parquet.row_groups(path))):
        (batch,) = parquet.read_row_groups(path, number, number, ["image_id", "place_kind"], rows_at_once=1 << 31)
        rows = pa.Table.from_batches([batch])
        rows = rows.take(first_of_each_image(rows))
        ids = tuple(map(str, identity.hexed(arrays.ids_of(rows["image_id"])).to_pylist()))
        is_in_hand: list[Any] = pc.greater(rows["place_kind"], pa.scalar(int(Kind.RECORD))).to_pylist()  # null: none
        in_hand = frozenset(name for name, is_here in zip(ids, is_in_hand, strict=True) if is_here)
        images[f"{storage.name(path).removesuffix('.parquet')}-{number:05d}"] = ids, in_hand
    return images


@lru_cache(maxsize=_AT_ONCE)
def _entries(stem: str, _: storage.Stamp) -> journal.Entries:
    return journal.read(stem)
