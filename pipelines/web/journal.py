"""The journal of a fetch unit: how fetching each image ended so far, so that nothing in it is asked for a second time.

Two files grow at their ends: `NAME.images` has bytes of images, what the shard will hold of those that stay, and with
`fetch.keep_found` all as they were found; `NAME.journal` has a line for each image that ended, written after its bytes.
What comes within a quarter of a second is written together, so a kill loses that much. A line is the CRC-32 of the rest
in eight hex digits, a space, and JSON; the first line has the grounds of the others. To continue a unit, we read the
lines up to the first that is not whole, check the bytes of each image by their SHA-256, write a new journal, and cut
off the bytes after the last image.

What a trial has fetched, the run before an addition, or this run before stages ran anew, begins the journals of the
units that want it.
"""

import hashlib
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.reasons import DropReason
from altalign.filters import identity
from altalign.filters.reservations import Listener, Said
from altalign.machine import interrupts
from altalign.pipelines.images.judging import Found, Judged, Outcome, StoredColumns, placed
from altalign.pipelines.images.measuring import Measured
from altalign.pipelines.run.image_places import Kind
from altalign.pipelines.run.image_tables import FETCHED, first_of_each_image
from altalign.pipelines.run.text_tables import GROUPED
from altalign.pipelines.run.units import Run, fetched_before
from altalign.storage import arrays, parquet

VERSION = 4
GATHERED_S, GATHERED_BYTES = 0.25, 1 << 20  # what is written together: what came within this time, or this much
UNITS_READ = 16  # units of a trial whose journals stay in memory


class JournalGrounds(NamedTuple):
    """What a journal is based on: digests of the requests and of the rules for images, and who listens to sites."""

    requests: str
    judged: str
    listener: Listener


class Entries(NamedTuple):
    """The content of the whole lines of a journal; no grounds if it has none or is of another version."""

    grounds: JournalGrounds | None
    outcomes: Mapping[int, Outcome]


_GroundsOf = Callable[[Sequence[str]], JournalGrounds]
_Judge = Callable[[Iterable[Found]], Iterator[Judged]]


class Journal:
    """The journal of a unit under way: `outcomes` by the number of the image.

    What comes is written together: for each write, a thread waits for its turn again.
    """

    def __init__(self, outcomes: dict[int, Outcome], images: storage.Growing, lines: storage.Growing):
        self.outcomes, self._images, self._lines = outcomes, images, lines
        self._waiting_images, self._waiting_lines, self._waiting_bytes = list[bytes](), list[bytes](), 0
        self._due_s = 0.0

    def came(self, judged: Judged, *, is_in_file: bool = False, keeps_found: bool = False) -> None:
        """Records an image, what is kept of its bytes (`placed`), and what was said of it."""
        end = self._images.bytes + self._waiting_bytes
        outcome, data = placed(judged, end, is_in_file=is_in_file, keeps_found=keeps_found)
        if data:
            self._waiting_images.append(data)
            self._waiting_bytes += len(data)
        self._add(judged.found.number, outcome)

    def failed(
        self, number: int, reason: DropReason, http_code: int | None, said: Sequence[Said] | None = None
    ) -> None:
        """Records that an image could not be fetched, or may not be used."""
        self._add(number, Outcome(reason, http_code, said=said))

    def _add(self, number: int, outcome: Outcome) -> None:
        self._waiting_lines.append(_entry(number, outcome))
        self.outcomes[number] = outcome
        if time.monotonic() >= self._due_s or self._waiting_bytes >= GATHERED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hands what was recorded to the system, bytes first, so that it outlives this process.

        Raises:
            FullDiskError: no space is left. No line of an image whose bytes are not there is ever written.
        """
        images, lines = self._waiting_images, self._waiting_lines
        self._waiting_images, self._waiting_lines, self._waiting_bytes = [], [], 0
        if images:
            self._images.write(b"".join(images))
        if lines:
            self._lines.write(b"".join(lines))
        self._due_s = time.monotonic() + GATHERED_S


@contextmanager
def opened(path: str, grounds: JournalGrounds, judge: _Judge) -> Iterator[Journal]:
    """Continues a unit or begins it; `path` is that of its files without their endings.

    What it does not know by these grounds is asked for again; of other images, what was kept as found is judged again
    where judging differs.
    """
    known = _as_they_came(path, _known(read(path), grounds))
    settled = {number: outcome for number, outcome in known.items() if outcome.is_judged}
    anew = {number: outcome for number, outcome in known.items() if not outcome.is_judged}
    ends = (offset + size for each in (*settled.values(), *anew.values()) for offset, size, _ in each.ranges)
    with storage.growing(f"{path}.images", keep=max(ends, default=0)) as images:
        data_of = _data(path, [(offset, size) for outcome in anew.values() for offset, size, _ in outcome.ranges])
        found = (
            Found(number, data, outcome.said) for (number, outcome), data in zip(anew.items(), data_of, strict=True)
        )
        for judged in judge(found):
            outcome, data = placed(judged, images.bytes, found_at=anew[judged.found.number].found_at)
            images.write(data)
            settled[judged.found.number] = outcome
        write(path, grounds, settled)
        with storage.growing(f"{path}.journal") as lines:
            kept = Journal(settled, images, lines)
            try:
                yield kept
            finally:
                kept.flush()


def _known(before: Entries, grounds: JournalGrounds) -> dict[int, Outcome]:
    """What a journal knows of images by other grounds: how each ended, or where its bytes are, to be judged anew.

    Of other requests it knows nothing. For another purpose, what was said decides, but for an image that was refused
    and would be wanted now.
    """
    known = dict[int, Outcome]()
    if before.grounds is None or before.grounds.requests != grounds.requests:
        return known
    for number, each in before.outcomes.items():
        outcome = each if before.grounds.listener == grounds.listener else each.heard(grounds.listener)
        if outcome.reason is None and before.grounds.judged != grounds.judged:
            outcome = outcome.as_found
        if outcome.is_judged or outcome.found_at is not None:
            known[number] = outcome
    return known


def _as_they_came(path: str, outcomes: Mapping[int, Outcome]) -> dict[int, Outcome]:
    """The outcomes all of whose bytes are there as they were written."""
    ranges = [(number, *of_image) for number, outcome in outcomes.items() for of_image in outcome.ranges]
    data_of, wrong = _data(path, [(offset, size) for _, offset, size, _ in ranges]), set[int]()
    for (number, *_, digest), data in zip(ranges, data_of, strict=True):
        interrupts.check()
        if hashlib.sha256(data).hexdigest() != digest:
            wrong.add(number)
    return {number: outcome for number, outcome in outcomes.items() if number not in wrong}


def _data(path: str, ranges: Sequence[tuple[int, int]]) -> Iterable[bytes]:
    """The bytes of each (offset, length) of a unit's blob; fewer where it has fewer."""
    has_bytes = bool(ranges) and storage.exists(f"{path}.images")
    return storage.read_ranges(f"{path}.images", ranges) if has_bytes else [b""] * len(ranges)


def read(path: str) -> Entries:
    """Reads a journal."""
    data = storage.read_bytes(f"{path}.journal") if storage.exists(f"{path}.journal") else b""
    lines = map(_value, data.split(b"\n"))
    head = next(lines)
    if not isinstance(head, dict) or head.get("version") != VERSION:
        return Entries(None, {})
    outcomes = {}
    with suppress(TypeError, ValueError):  # a line that is not whole, or not ours
        for number, reason, http_code, size, measured, failed, stored, coded, *places, said in lines:
            outcomes[number] = Outcome(
                DropReason(reason) if reason else None,
                http_code,
                size,
                Measured(*measured),
                tuple(failed),
                StoredColumns(*stored) if stored else None,
                *cast(Any, (None if each is None else b64decode(each) for each in coded)),
                *places,
                said=None if said is None else tuple(Said(*each) for each in said),
            )
    return Entries(JournalGrounds(head["asked"], head["judged"], Listener(*head["listener"])), outcomes)


def write(path: str, grounds: JournalGrounds, outcomes: Mapping[int, Outcome]) -> None:
    """Writes a whole journal, replacing the old one."""
    of_grounds = {"asked": grounds.requests, "judged": grounds.judged, "listener": list(grounds.listener)}
    head = _line({"version": VERSION, **of_grounds})
    storage.write_bytes(f"{path}.journal", head + b"".join(_entry(*entry) for entry in outcomes.items()))


def forget(path: str, numbers: Collection[int]) -> Mapping[int, Outcome]:
    """Removes images from a journal, so that they are asked for again; returns what is left."""
    before = read(path)
    left = {number: outcome for number, outcome in before.outcomes.items() if number not in numbers}
    if before.grounds is not None:
        write(path, before.grounds, left)
    return left


def names(folder: str) -> list[str]:
    """The names of the units of a folder that have a journal."""
    return [Path(name).stem for name in storage.names(folder, ".journal")]


def _entry(number: int, outcome: Outcome) -> bytes:
    reason, http_code, size, measured, failed, stored, picture, features, *places, said = outcome
    coded = [None if each is None else b64encode(each).decode() for each in (picture, features)]
    of_image = [[] if reason else list(measured), failed, stored and list(stored)]
    heard = None if said is None else [list(each) for each in said]
    return _line([number, reason, http_code, size, *of_image, coded, *places, heard])


def _line(value: object) -> bytes:
    text = orjson.dumps(value)
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _value(line: bytes) -> Any:
    """The value of a line; None if the line is not whole."""
    checksum, _, text = line.partition(b" ")
    return orjson.loads(text) if text and checksum == b"%08x" % zlib.crc32(text) else None


# What was fetched before ----------------------------------------------------------------------------------------------


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
    outcomes = dict[int, Outcome]()
    with storage.growing(f"{stem}.images", keep=0) as blob:
        for before, part in parts:
            taken = {number: outcome for number, outcome in part.items() if number not in outcomes}
            ranges = [(number, *of_image) for number, outcome in taken.items() for of_image in outcome.ranges]
            data_of, now_at = _data(before, [(offset, size) for _, offset, size, _ in ranges]), dict[Any, int]()
            for (number, offset, *_), data in zip(ranges, data_of, strict=True):
                now_at[number, offset] = blob.bytes
                blob.write(data)
            for number, outcome in taken.items():
                found_at, stored_at = (now_at.get((number, at)) for at in (outcome.found_at, outcome.stored_at))
                outcomes[number] = outcome._replace(found_at=found_at, stored_at=stored_at)
    if outcomes:
        write(stem, grounds(image_ids), outcomes)


def _fetched(
    run: Run, image_ids: Sequence[str], from_web: Collection[int], grounds: _GroundsOf
) -> Iterator[tuple[str, dict[int, Outcome]]]:
    """What units of before know of these images by these grounds: path without an ending, and outcomes.

    Numbers are those here. Only what was fetched by the same rules is taken, and no image that came from the input's
    files: these may have others by now.
    """
    number_of = {image_ids[number]: number for number in from_web}
    for folder in fetched_before(run):
        units, grouped = (storage.join(folder, "work", *each.step.split("/")) for each in (FETCHED, GROUPED))
        journals = {*names(units)} if folder != run.folder and storage.kind(units) == "folder" else set[str]()
        paths = [storage.join(grouped, name) for name in storage.names(grouped, ".parquet")] if journals else []
        for unit, ids, in_hand in (each for path in paths for each in _units(path, storage.stamp(path))):
            if unit not in journals or not ids or ids[0] > image_ids[-1] or image_ids[0] > ids[-1]:
                continue
            stem = storage.join(units, unit)
            known = _known(_entries(stem, storage.stamp(f"{stem}.journal")), grounds(ids))
            named = [(ids[number], outcome) for number, outcome in known.items()]
            yield stem, {number_of[i]: outcome for i, outcome in named if i in number_of and i not in in_hand}


@lru_cache(maxsize=4)
def _units(path: str, _: storage.Stamp) -> list[tuple[str, tuple[str, ...], frozenset[str]]]:
    """The fetch units of a partition: the name, the images in order, and which of these came from the input's files."""
    units = []
    for number in range(len(parquet.row_groups(path))):
        (batch,) = parquet.read_row_groups(path, number, number, ["image_id", "place_kind"], rows_at_once=1 << 31)
        rows = pa.Table.from_batches([batch])
        rows = rows.take(first_of_each_image(rows))
        ids = identity.hexed(arrays.ids_of(rows["image_id"]))
        is_in_hand: Any = pc.greater(rows["place_kind"], pa.scalar(int(Kind.RECORD)))  # null: none
        in_hand = frozenset(map(str, ids.filter(is_in_hand).to_pylist()))
        unit = f"{storage.name(path).removesuffix('.parquet')}-{number:05d}"
        units.append((unit, tuple(map(str, ids.to_pylist())), in_hand))
    return units


@lru_cache(maxsize=UNITS_READ)
def _entries(stem: str, _: storage.Stamp) -> Entries:
    return read(stem)
