"""The files of a parent that a new run has as they are: tables, dropped rows, and what the audit has."""

import re

import pyarrow as pa

from altalign import storage
from altalign.data import listing
from altalign.data.audit_tables import FAILED_ROWS, FUNNEL, SAMPLES
from altalign.data.schema import REMOVED
from altalign.data.stages import REMOVED_FILE
from altalign.errors import UnreadableError
from altalign.machine import interrupts
from altalign.pipelines.derive.parents import Parent
from altalign.pipelines.run.shard_tables import CarriedFacts, CarriedUnit
from altalign.pipelines.run.units import Run
from altalign.storage import parquet

FILES_PER_UNIT = 64
# made anew, of the new run
_NOT_CARRIED = ("counts.parquet", "summary.json", FAILED_ROWS.path, FUNNEL.path, SAMPLES.path)
_OF_SELECT = "dropped/select/"
_KINDS = ("broken-", "repeated-")  # begin names of dropped rows that readers tell from others
_OF_ANCESTOR = re.compile(r"[0-9a-f]{8}-")


def plan(parents: tuple[Parent, ...]) -> list[CarriedUnit]:
    """Units of files, parent by parent."""
    units = list[CarriedUnit]()
    are_several = len(parents) > 1
    for number, parent in enumerate(parents):
        listed = sorted(listing.read(parent.folder))
        files = [name for name in listed if (_is_of_several(name, number) if are_several else _is_carried(name))]
        for begin in range(0, len(files), FILES_PER_UNIT):
            name = f"{number:03d}-{begin // FILES_PER_UNIT:06d}"
            units.append(CarriedUnit(name=name, parent=number, files=files[begin : begin + FILES_PER_UNIT]))
    return units


def _is_carried(name: str) -> bool:
    return not name.startswith("shards/") and name not in _NOT_CARRIED


def _is_of_several(name: str, parent: int) -> bool:
    """Whether a run of several has a file of one of them: tables and distributions of one are none of all."""
    return name.startswith("dropped/") or (parent == 0 and name.endswith(".py"))


def carry(run: Run, parents: tuple[Parent, ...], unit: CarriedUnit) -> CarriedFacts:
    """Copy the files of a unit."""
    parent = parents[unit["parent"]]
    names = {name: _named(name, parent, parents) for name in unit["files"]}
    return CarriedFacts(sum(_copy(parent.path(name), run.path(to)) for name, to in names.items()))


def _named(name: str, parent: Parent, parents: tuple[Parent, ...]) -> str:
    """The path of a parent's file in the new run: rows that an earlier selection dropped are told from those of now.

    Of several parents all names say which one they are of.
    """
    if len(parents) > 1 and name.startswith("dropped/"):
        folder, _, file = name.rpartition("/")
        kind = next((kind for kind in _KINDS if file.startswith(kind)), "")
        return f"{folder}/{kind}{parent.digest[:8]}-{file.removeprefix(kind)}"
    file = name.removeprefix(_OF_SELECT)
    is_of_now = name.startswith(_OF_SELECT) and not _OF_ANCESTOR.match(file)
    return f"{_OF_SELECT}{parent.digest[:8]}-{file}" if is_of_now else name


def _copy(source: str, to: str) -> int:
    """Copy a file; returns its bytes.

    Raises:
        UnreadableError: it is not there.
    """
    try:
        pieces = storage.read_pieces(source)
    except FileNotFoundError:
        raise UnreadableError(f"{source}: it is not there") from None
    size = 0
    with storage.write(to) as copy:
        for data in pieces:
            interrupts.check()
            size += copy.write(data)
    return size


def write_removed(run: Run, parents: tuple[Parent, ...]) -> None:
    """Write what was removed from any of several parents."""
    paths = [path for parent in parents if storage.exists(path := parent.path(REMOVED_FILE))]
    if paths:
        rows = pa.concat_tables([parquet.read_table(path).cast(REMOVED) for path in paths])
        parquet.write(run.path(REMOVED_FILE), rows, REMOVED)
