"""What a trial, or the run before an addition, has fetched begins the journals of the units that want it.

Nobody is asked for it again.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from altalign import storage
from altalign.filters import identity
from altalign.pipelines.files import arrays, parquet
from altalign.pipelines.images.measuring import Outcome
from altalign.pipelines.run.artefacts.fetched import Fetched, first_of_each_image
from altalign.pipelines.run.artefacts.judged import GROUPED
from altalign.pipelines.run.sampled import fetched_before
from altalign.pipelines.run.units import Run
from altalign.pipelines.web.kept import journal
from altalign.pipelines.web.kept.journal import JournalGrounds

_OTHER = "of another run"  # a digest that none is: what was measured is measured again
_AT_ONCE = 16  # units of a trial whose journals stay in memory


class _Unit(NamedTuple):
    """A fetch unit of a trial: the path of its files without an ending, and its images in order."""

    stem: str
    image_ids: tuple[str, ...]


def adopt(run: Run, stem: str, image_ids: Sequence[str], grounds: Callable[[Sequence[str]], JournalGrounds]) -> int:
    """Begin the journal of a unit with what `fetched_before` of the run has; returns of how many images.

    A unit that has a journal keeps it. Only what was fetched by the same rules is taken.

    Args:
        run: the run of the unit.
        stem: the path of its files without an ending.
        image_ids: of its images, which rise; at least one.
        grounds: what a journal of these images rests on.
    """
    units = [each for folder in fetched_before(run) if folder != run.folder for each in _units_of(folder)]
    wanted = [each for each in units if each.image_ids[0] <= image_ids[-1] and image_ids[0] <= each.image_ids[-1]]
    if not wanted or storage.exists(f"{stem}.journal"):
        return 0
    number_of = {image_id: number for number, image_id in enumerate(image_ids)}
    own, outcomes, is_measured = grounds(image_ids), dict[int, Outcome](), True
    with storage.growing(f"{stem}.images", keep=0) as blob:
        for unit in wanted:
            there = _entries(unit.stem, storage.stamp(f"{unit.stem}.journal"))
            if there.grounds is None or there.grounds.asked != grounds(unit.image_ids).asked:
                continue
            found = {
                number_of[unit.image_ids[number]]: outcome
                for number, outcome in there.outcomes.items()
                if unit.image_ids[number] in number_of
            }
            found = {number: outcome for number, outcome in found.items() if number not in outcomes}
            in_hand = [number for number, outcome in found.items() if outcome.reason is None]
            ranges = [(found[number].offset, found[number].bytes) for number in in_hand]
            for number, data in zip(in_hand, storage.read_ranges(f"{unit.stem}.images", ranges), strict=True):
                found[number] = found[number]._replace(offset=blob.bytes)
                blob.write(data)
            outcomes |= found
            is_measured = is_measured and there.grounds.measured == own.measured
    if outcomes:
        journal.write(stem, own if is_measured else JournalGrounds(own.asked, _OTHER), outcomes)
    return len(outcomes)


def _units_of(folder: str) -> Sequence[_Unit]:
    """The units of a trial that have a journal."""
    units = storage.join(folder, "work", *Fetched.step.split("/"))
    journals = frozenset(journal.names(units)) if storage.kind(units) == "folder" else frozenset[str]()
    grouped = storage.join(folder, "work", *GROUPED.step.split("/"))
    parts = [name for name in storage.names(grouped, ".parquet") if journals]
    paths = [storage.join(grouped, name) for name in parts]
    every = [each for path in paths for each in _image_ids(path, storage.stamp(path)).items()]
    return [_Unit(storage.join(units, name), ids) for name, ids in every if name in journals and ids]


@lru_cache(maxsize=4)
def _image_ids(path: str, _: storage.Stamp) -> Mapping[str, tuple[str, ...]]:
    """The images of each fetch unit of a partition, by the name of the unit."""
    found = dict[str, tuple[str, ...]]()
    for number in range(len(parquet.row_groups(path))):
        (batch,) = parquet.read_row_groups(path, number, number, ["image_id"], rows_at_once=1 << 31)
        rows = pa.Table.from_batches([batch])
        ids = identity.hexed(arrays.ids_of(rows["image_id"].take(first_of_each_image(rows))))
        found[f"{storage.name(path).removesuffix('.parquet')}-{number:05d}"] = tuple(map(str, ids.to_pylist()))
    return found


@lru_cache(maxsize=_AT_ONCE)
def _entries(stem: str, _: storage.Stamp) -> journal.Entries:
    return journal.read(stem)
