"""The journal of a fetch unit: how fetching each image ended so far, so that nothing in it is asked for a second time.

Two files grow at their ends: `NAME.images` has the bytes of the images, `NAME.journal` a line for each image that
ended, written after its bytes. What comes within a quarter of a second is written together, so a kill loses that much.
A line is the CRC-32 of the rest in eight hex digits, a space, and JSON; the first line has the grounds of the others.
To continue a unit, we read the lines up to the first that is not whole, check each image in hand by its SHA-256, write
a new journal, and cut off the bytes after the last image.

What a trial has fetched, the run before an addition, or this run before stages ran anew, begins the journals of the
units that want it.
"""

import hashlib
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.reasons import DropReason
from altalign.filters import identity
from altalign.machine import interrupts
from altalign.pipelines.images.measuring import Measured, Outcome
from altalign.pipelines.run.image_places import Kind
from altalign.pipelines.run.image_tables import FETCHED, first_of_each_image
from altalign.pipelines.run.text_tables import GROUPED
from altalign.pipelines.run.units import Run, fetched_before
from altalign.storage import Growing, arrays, parquet

VERSION = 2
GATHERED_S, GATHERED_BYTES = 0.25, 1 << 20  # what is written together: what came within this time, or this much
UNITS_READ = 16  # units of a trial whose journals stay in memory

_OTHER = "of another run"  # a digest that none is: what was measured is measured again
_GroundsOf = Callable[[Sequence[str]], "JournalGrounds"]


class Gathered:
    """A growing file that takes many small parts in one write: for each, a thread waits for its turn again.

    `bytes` is the length of the file once everything is written; `gathered_bytes` of it are not written yet.
    """

    def __init__(self, file: Growing):
        self._file, self._parts = file, list[bytes]()
        self.bytes, self.gathered_bytes = file.bytes, 0

    def write(self, data: bytes) -> None:
        """Adds bytes, which the next `flush` writes."""
        self._parts.append(data)
        self.bytes += len(data)
        self.gathered_bytes += len(data)

    def flush(self) -> None:
        """Writes what was added.

        Raises:
            FullDiskError: no space is left.
        """
        if parts := self.take():
            self._file.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def take(self) -> list[bytes]:
        """Forgets what was added since the last `flush`, and returns it."""
        parts, self._parts, self.gathered_bytes = self._parts, [], 0
        return parts


@dataclass(frozen=True)
class JournalGrounds:
    """What a journal is based on: digests of the requests and their limits, and of the settings of measuring."""

    requests: str
    measured: str


@dataclass(frozen=True)
class Entries:
    """The content of the whole lines of a journal; no grounds if it has none or is of another version."""

    grounds: JournalGrounds | None = None
    outcomes: Mapping[int, Outcome] = field(default_factory=dict)


class Journal:
    """The journal of a unit under way: `outcomes` by the number of the image."""

    def __init__(self, outcomes: dict[int, Outcome], images: storage.Growing, lines: storage.Growing):
        self.outcomes = outcomes
        self._images, self._lines = Gathered(images), Gathered(lines)
        self._due_s = 0.0

    def in_hand(self, number: int, data: bytes, measured: Measured) -> None:
        """Records an image and its bytes."""
        offset = self._images.bytes
        self._images.write(data)
        self._add(number, Outcome(None, None, offset, len(data), measured))

    def failed(self, number: int, reason: DropReason, http_code: int | None) -> None:
        """Records that an image could not be fetched."""
        self._add(number, Outcome(reason, http_code))

    def _add(self, number: int, outcome: Outcome) -> None:
        self._lines.write(_line(_entry(number, outcome)))
        self.outcomes[number] = outcome
        if time.monotonic() >= self._due_s or self._images.gathered_bytes >= GATHERED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hands what was recorded to the system, bytes first, so that it outlives this process.

        Raises:
            FullDiskError: no space is left. No line of an image whose bytes are not there is ever written.
        """
        try:
            self._images.flush()
        except BaseException:
            self._lines.take()
            raise
        self._lines.flush()
        self._due_s = time.monotonic() + GATHERED_S


@contextmanager
def opened(path: str, grounds: JournalGrounds, measure: Callable[[int, bytes], Measured]) -> Iterator[Journal]:
    """Continues a unit or begins it; `path` is that of its files without their endings.

    A journal of other requests is forgotten; if only measuring differs, the bytes in hand are measured again.

    Raises:
        FullDiskError: no space is left.
    """
    before, outcomes = read(path), dict[int, Outcome]()
    if before.grounds is not None and before.grounds.requests == grounds.requests:
        outcomes = {number: outcome for number, outcome in before.outcomes.items() if outcome.reason is not None}
        in_hand = {number: outcome for number, outcome in before.outcomes.items() if outcome.reason is None}
        ranges = [(outcome.offset, outcome.bytes) for outcome in in_hand.values()]
        has_bytes = bool(ranges) and storage.exists(f"{path}.images")
        data_of = storage.read_ranges(f"{path}.images", ranges) if has_bytes else ()
        for (number, outcome), data in zip(in_hand.items(), data_of, strict=has_bytes):
            interrupts.check()
            if hashlib.sha256(data).hexdigest() == outcome.measured.found_sha256:
                is_measured = before.grounds.measured == grounds.measured
                outcomes[number] = outcome if is_measured else outcome._replace(measured=measure(number, data))
    write(path, grounds, outcomes)
    end = max((outcome.offset + outcome.bytes for outcome in outcomes.values()), default=0)
    with storage.growing(f"{path}.images", keep=end) as images, storage.growing(f"{path}.journal") as lines:
        kept = Journal(outcomes, images, lines)
        try:
            yield kept
        finally:
            kept.flush()


def read(path: str) -> Entries:
    """Reads a journal."""
    if not storage.exists(f"{path}.journal"):
        return Entries()
    lines = (_value(line) for line in storage.read_bytes(f"{path}.journal").split(b"\n"))
    head = next(lines)
    if not isinstance(head, dict) or head.get("version") != VERSION:
        return Entries()
    outcomes = {}
    with suppress(TypeError, ValueError):  # a line that is not whole, or not ours
        for number, reason, http_code, offset, size, values in lines:
            measured = Measured(*values)
            if measured.features:
                measured = measured._replace(features=b64decode(measured.features))
            outcomes[number] = Outcome(DropReason(reason) if reason else None, http_code, offset, size, measured)
    return Entries(JournalGrounds(head["asked"], head["measured"]), outcomes)


def write(path: str, grounds: JournalGrounds, outcomes: Mapping[int, Outcome]) -> None:
    """Writes a whole journal, replacing the old one."""
    head = {"version": VERSION, "asked": grounds.requests, "measured": grounds.measured}
    lines = [_line(head), *(_line(_entry(number, outcome)) for number, outcome in outcomes.items())]
    storage.write_bytes(f"{path}.journal", b"".join(lines))


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


def _entry(number: int, outcome: Outcome) -> list[object]:
    reason, http_code, offset, size, measured = outcome
    features = measured.features and b64encode(measured.features).decode()
    values = [] if reason else list(measured._replace(features=features))  # type: ignore[arg-type]
    return [number, reason, http_code, offset, size, values]


def _line(value: object) -> bytes:
    text = orjson.dumps(value)
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _value(line: bytes) -> Any:
    """The value of a line; None if the line is not whole."""
    checksum, _, text = line.partition(b" ")
    return orjson.loads(text) if text and checksum == b"%08x" % zlib.crc32(text) else None


# What was fetched before ----------------------------------------------------------------------------------------------


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
        write(stem, own if is_measured else JournalGrounds(own.requests, _OTHER), outcomes)


def known(run: Run, stem: str, image_ids: Sequence[str], from_web: Collection[int], grounds: _GroundsOf) -> set[int]:
    """The numbers of the images of a unit that nobody will be asked for; arguments as of `adopt`."""
    own = read(stem)
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
    journals = frozenset(names(units)) if storage.kind(units) == "folder" else frozenset[str]()
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


@lru_cache(maxsize=UNITS_READ)
def _entries(stem: str, _: storage.Stamp) -> Entries:
    return read(stem)
