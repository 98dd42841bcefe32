"""What an addition need not read: images of archives, tables and folders that the run before it has read there.

Their bytes are in blobs of that run, which are borrowed: linked under numbers of their own. What was measured of them
lies beside the blobs, those that were dropped or too large included. An image is known where its place in the input is
what it was: a file that has changed is no input of an addition.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.data import listing
from altalign.data.reasons import DropReason
from altalign.errors import UnreadableError
from altalign.filters import identity
from altalign.pipelines.images.measuring import Measured, Outcome
from altalign.pipelines.run import marks as vouched
from altalign.pipelines.run.tables.fetched import (
    BLOB,
    BORROWED,
    BORROWED_IMAGES,
    BORROWED_INDEX,
    BORROWED_KNOWN,
    FETCHED,
    IMAGES,
    KNOWN,
    KNOWN_IMAGES,
    KNOWN_OF,
    BorrowFacts,
    borrowed_name,
)
from altalign.pipelines.run.units import Run
from altalign.storage import arrays, parquet

Numbers = npt.NDArray[np.int64]

_PLACE = [name for name in KNOWN.names if name == "image_id" or name.startswith("place_")]
_WHERE = [*_PLACE, "reason", "blob_offset"]
_UNITS_AT_MOST = 8  # what was known of their images stays in memory

# Borrowing ------------------------------------------------------------------------------------------------------------


def borrow(before: Run, run: Run) -> None:
    """Link the blobs of a smaller run, unless images would be read or measured otherwise now.

    A blob that is gone, or of another size than it was, is not borrowed: its images are read again.
    """
    every = borrowed_name()
    if run.config.fetch.source != "archive" or storage.exists(run.mark(BORROWED.step, every)):
        return
    of_before, units = _said(before.mark(BORROWED.step, every)), _said(before.mark("fetch", "done")).get("units")
    if _reads(run.folder) != _reads(before.folder) or not units or units.get(BORROWED.step, 0) != bool(of_before):
        return  # without the mark nobody knows which numbers are taken
    links = {path: (path, of) for path, of in vouched.named(of_before).items() if path.endswith(".images")}
    names, blobs, known_of = before.finished(FETCHED.step), of_before.get("blobs", 0), list[tuple[int, str, str]]()
    marks = storage.each(lambda name: _said(before.mark(FETCHED.step, name)), names, of=before.folder)
    for name, said in zip(names, marks, strict=True):
        if of_unit := said.get("known"):
            blobs += 1
            known_of.append((blobs, *of_unit))
            here, files = borrowed_name(blobs), vouched.named(said)
            for source, borrowed in ((IMAGES, BORROWED_IMAGES), (KNOWN_IMAGES, BORROWED_KNOWN)):
                inside = _inside(before, source.path(before, name))
                if 0 < files[inside].bytes < BLOB:
                    links[_inside(run, borrowed.path(run, here))] = inside, files[inside]
    wrong = listing.differences(before.folder, dict(links.values()), sizes_alone=True)
    links = {name: link for name, link in links.items() if link[0] not in wrong}
    known_of = [each for each in known_of if _inside(run, BORROWED_KNOWN.path(run, borrowed_name(each[0]))) in links]
    if not known_of:
        return

    def link(name: str) -> None:
        storage.link(before.path(*links[name][0].split("/")), run.path(*name.split("/")))

    for _ in storage.each(link, list(links), of=run.folder):
        pass
    with storage.noted(run.work()) as block:
        BORROWED_INDEX.save(run, np.array(known_of, KNOWN_OF), every)
    block.files.update({run.path(*name.split("/")): of for name, (_, of) in links.items()})
    run.write_mark(BORROWED.step, every, {"unit": every, **BorrowFacts(blobs).to_json()}, block)


def _said(mark: str) -> Mapping[str, Any]:
    """The content of a mark; none of one that is damaged or not there."""
    with suppress(UnreadableError):
        return storage.read_sealed(mark)
    return {}


def _reads(folder: str) -> object:
    """What fetching rests on in a run, and the layout of its `work/`."""
    stages = storage.read_json(storage.join(folder, "run.json")).get("stages", {})
    extract, fetch = (stages.get(stage, {}).get("reads", {}) for stage in ("extract", "fetch"))
    return fetch, extract.get("work_version")


def _inside(run: Run, path: str) -> str:
    return storage.relative(path, run.folder) or path


# What is known --------------------------------------------------------------------------------------------------------


def outcomes(run: Run, rows: pa.Table) -> dict[int, Outcome]:
    """By their numbers, the outcomes of those of n images (`PLACED_SURVIVOR`, sorted by image_id) that are known."""
    numbers, known = _known(run, rows, KNOWN.names)
    measured = zip(*(parquet.values(known, name) for name in Measured._fields), strict=True)
    places = zip(*(parquet.values(known, name) for name in ("reason", "blob_offset", "blob_bytes")), strict=True)
    return {
        number: Outcome(reason and DropReason(reason), None, offset, size, Measured(*of))
        for number, (reason, offset, size), of in zip(numbers.tolist(), places, measured, strict=True)
    }


def ends(rows: pa.Table) -> tuple[str, str]:
    """The first and the last image_id of rows, of which there are some."""
    first, last = identity.hexed(arrays.ids_of(rows["image_id"].take([0, len(rows) - 1]))).to_pylist()
    return str(first), str(last)


def are_known(run: Run, rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Whether the image of each of n rows with a place (sorted by image_id) is known, bool[n]."""
    found = np.zeros(len(rows), bool)
    found[_known(run, rows, _WHERE)[0]] = True
    return found


def _known(run: Run, rows: pa.Table, columns: Sequence[str]) -> tuple[Numbers, pa.Table]:
    """The numbers of rows whose images are known, and what is known of these: columns of `KNOWN`."""
    parts = [KNOWN.empty_table().select(list(columns))]
    if len(rows) and storage.exists(run.mark(BORROWED.step, borrowed_name())):
        first, last = (end.encode() for end in ends(rows))
        every = _known_of(path := BORROWED_INDEX.path(run, borrowed_name()), storage.stamp(path))
        for number in every["number"][(every["first"] <= last) & (first <= every["last"])].tolist():
            path = BORROWED_KNOWN.path(run, borrowed_name(number))
            parts.append(_of_unit(path, storage.stamp(path), number, tuple(columns)))
    there = pa.concat_tables(parts).combine_chunks()
    here, numbers = parquet.same_rows(rows.select(_PLACE), there.select(_PLACE), by="image_id")
    there = there.take(numbers)
    blobs = -(there["blob_offset"].to_numpy() // BLOB)
    gone = [
        number
        for number in np.unique(blobs).tolist()
        if not storage.exists(BORROWED_IMAGES.path(run, borrowed_name(number)))
    ]
    is_there = ~np.isin(blobs, gone) | there["reason"].is_valid().to_numpy()
    return here[is_there], there.filter(pa.array(is_there))


@lru_cache(maxsize=1)
def _known_of(path: str, _: storage.Stamp) -> npt.NDArray[np.void]:
    return np.frombuffer(storage.read_bytes(path), KNOWN_OF)


@lru_cache(maxsize=_UNITS_AT_MOST)
def _of_unit(path: str, _: storage.Stamp, number: int, columns: tuple[str, ...]) -> pa.Table:
    """What the unit of a borrowed blob knew; where its bytes are in the blob, they are below zero now."""
    known = parquet.read_table(path, columns)
    offsets = known["blob_offset"].to_numpy()
    here = pa.array(np.where(offsets < 0, offsets, offsets - number * BLOB))
    return known.set_column(known.column_names.index("blob_offset"), KNOWN.field("blob_offset"), here)
