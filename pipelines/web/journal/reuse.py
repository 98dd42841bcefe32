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
from altalign.pipelines.run.image_tables import FETCHED, first_of_each_image
from altalign.pipelines.run.text_tables import GROUPED
from altalign.pipelines.run.units import Run, fetched_before
from altalign.pipelines.web.journal import journal
from altalign.pipelines.web.journal.journal import JournalGrounds
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


def adopt(run: Run, stem: str, image_ids: Sequence[str], wanted: Collection[int], grounds: _GroundsOf) -> None:
    """Begin the journal of a unit with what `fetched_before` of the run has; a unit that has one keeps it.

    Args:
        run: the run of the unit.
        stem: the path of its files without an ending.
        image_ids: of its images, which rise; at least one.
        wanted: the numbers of those that the web would be asked for.
        grounds: what a journal of these images rests on.
    """
    if storage.exists(f"{stem}.journal") or not (there := list(_fetched(run, image_ids, wanted, grounds))):
        return
    own, outcomes, is_measured = grounds(image_ids), dict[int, Outcome](), True
    with storage.growing(f"{stem}.images", keep=0) as blob:
        for unit, measured, found in there:
            found = {number: outcome for number, outcome in found.items() if number not in outcomes}
            in_hand = [number for number, outcome in found.items() if outcome.reason is None]
            ranges = [(found[number].offset, found[number].bytes) for number in in_hand]
            for number, data in zip(in_hand, storage.read_ranges(f"{unit.stem}.images", ranges), strict=True):
                found[number] = found[number]._replace(offset=blob.bytes)
                blob.write(data)
            outcomes |= found
            is_measured = is_measured and measured == own.measured
    if outcomes:
        journal.write(stem, own if is_measured else JournalGrounds(own.asked, _OTHER), outcomes)


def known(run: Run, stem: str, image_ids: Sequence[str], wanted: Collection[int], grounds: _GroundsOf) -> set[int]:
    """The numbers of the wanted images of a unit that nobody will be asked for; arguments as of `adopt`."""
    own = journal.read(stem)
    if own.grounds is not None:
        return {*own.outcomes} & {*wanted} if own.grounds.asked == grounds(image_ids).asked else set()
    return {number for _, _, found in _fetched(run, image_ids, wanted, grounds) for number in found}


def _fetched(
    run: Run, image_ids: Sequence[str], wanted: Collection[int], grounds: _GroundsOf
) -> Iterator[tuple[_Unit, str, dict[int, Outcome]]]:
    """What units of before know of wanted images, by their numbers here, and the digest of how they measured.

    Only what was fetched by the same rules is taken.
    """
    number_of = {image_ids[number]: number for number in wanted}
    for unit in (each for folder in fetched_before(run) if folder != run.folder for each in _units_of(folder)):
        if unit.image_ids[0] > image_ids[-1] or image_ids[0] > unit.image_ids[-1]:
            continue
        there = _entries(unit.stem, storage.stamp(f"{unit.stem}.journal"))
        if there.grounds is not None and there.grounds.asked == grounds(unit.image_ids).asked:
            named = ((unit.image_ids[number], outcome) for number, outcome in there.outcomes.items())
            yield (
                unit,
                there.grounds.measured,
                {number_of[name]: of for name, of in named if name in number_of and name not in unit.in_hand},
            )


def _units_of(folder: str) -> Sequence[_Unit]:
    """The units of a trial that have a journal."""
    units = storage.join(folder, "work", *FETCHED.step.split("/"))
    journals = frozenset(journal.names(units)) if storage.kind(units) == "folder" else frozenset[str]()
    grouped = storage.join(folder, "work", *GROUPED.step.split("/"))
    parts = [name for name in storage.names(grouped, ".parquet") if journals]
    paths = [storage.join(grouped, name) for name in parts]
    every = [each for path in paths for each in _image_ids(path, storage.stamp(path)).items()]
    return [_Unit(storage.join(units, name), *of) for name, of in every if name in journals and of[0]]


@lru_cache(maxsize=4)
def _image_ids(path: str, _: storage.Stamp) -> Mapping[str, tuple[tuple[str, ...], frozenset[str]]]:
    """The images of each fetch unit of a partition, and those in hand, by the name of the unit."""
    found = dict[str, tuple[tuple[str, ...], frozenset[str]]]()
    for number in range(len(parquet.row_groups(path))):
        (batch,) = parquet.read_row_groups(path, number, number, ["image_id", "place_kind"], rows_at_once=1 << 31)
        rows = pa.Table.from_batches([batch])
        rows = rows.take(first_of_each_image(rows))
        ids = tuple(map(str, identity.hexed(arrays.ids_of(rows["image_id"])).to_pylist()))
        in_hand: list[Any] = pc.greater(rows["place_kind"], pa.scalar(int(Kind.RECORD))).to_pylist()  # null: no place
        of = ids, frozenset(name for name, is_in_hand in zip(ids, in_hand, strict=True) if is_in_hand)
        found[f"{storage.name(path).removesuffix('.parquet')}-{number:05d}"] = of
    return found


@lru_cache(maxsize=_AT_ONCE)
def _entries(stem: str, _: storage.Stamp) -> journal.Entries:
    return journal.read(stem)
