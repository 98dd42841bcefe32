"""The journal of a fetch unit: how fetching each image ended so far, so that nothing in it is asked for a second time.

Two files grow at their ends: `NAME.images` has the bytes of the images, `NAME.journal` a line for each image that
ended, written after its bytes. What comes within a quarter of a second is written together, so a kill loses that much.
A line is the CRC-32 of the rest in eight hex digits, a space, and JSON; the first line
has the grounds of the others. To continue a unit, we read the lines up to the first that is not whole, check each image
in hand by its SHA-256, write a new journal, and cut off the bytes after the last image.
"""

import hashlib
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from altalign import storage
from altalign.data.reasons import DropReason
from altalign.machine import interrupts
from altalign.pipelines.images.measuring import Measured, Outcome
from altalign.storage import Growing

VERSION = 2
GATHERED_S, GATHERED_BYTES = 0.25, 1 << 20  # what is written together: what came within this time, or this much


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
        for (number, outcome), data in zip(in_hand.items(), data_of, strict=False):
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
