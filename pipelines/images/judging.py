"""Decides an image where it is found: decodes it once, measures it, asks the image rules, and makes what a shard holds.

Of an image that stays the embedder makes features, and its bytes for the shard are made of the same decoded pixels. Of
one that is dropped nothing is left but a thumbnail, where galleries show it.
"""

import hashlib
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from altalign.data.preferences import STATEMENTS_AT_MOST
from altalign.data.reasons import OPT_OUTS, DropReason, Stage, ask, reasons_of
from altalign.filters import image, pixels, thumbnails
from altalign.filters.reservations import Listener, Said
from altalign.machine import interrupts
from altalign.pipelines.images import measuring
from altalign.pipelines.images.measuring import Measured, enough_memory
from altalign.pipelines.run.units import Run
from altalign.rules import own

# Rules are asked about so many images at once, or fewer with so many bytes of pixels: to be asked costs 0.4 ms, however
# many there are.
TOGETHER, TOGETHER_BYTES = 32, 16 << 20
BY_PURPOSE = frozenset(OPT_OUTS) - {DropReason.OPT_OUT_ROBOTS_TXT}  # that of the web decides access


class StoredColumns(NamedTuple):
    """Columns of `SAMPLE` that are of the stored image."""

    width: int
    height: int
    format: str
    bytes: int
    sha256: str


class Outcome(NamedTuple):
    """How fetching an image ended."""

    reason: DropReason | None  # why it did not come
    http_code: int | None = None
    found_bytes: int = 0
    measured: Measured = Measured()
    failed: tuple[str, ...] = ()  # the image rules that hold
    stored: StoredColumns | None = None  # of one that stays
    picture: bytes | None = None  # a thumbnail of one that is dropped, where galleries show it
    features: bytes | None = None  # what the embedder makes of one that stays, int16; None also where it is flat
    found_at: int | None = None  # where the unit's blob has the bytes as found
    stored_at: int | None = None  # where it has those of the shard; None of one that stays: its input file has them
    said: Sequence[Said] | None = None  # what was said of the image; None: nobody looked

    @property
    def is_judged(self) -> bool:
        """Whether it is known what becomes of it."""
        return self.reason is not None or bool(self.failed) or self.stored is not None

    @property
    def as_found(self) -> "Outcome":
        """The image before it is judged."""
        digest = Measured(found_sha256=self.measured.found_sha256)
        return Outcome(None, None, self.found_bytes, digest, found_at=self.found_at, said=self.said)

    def heard(self, listener: Listener) -> "Outcome":
        """The image for another purpose, by what was said of it; not judged where it would have to be asked for."""
        reasons, is_of_purpose = listener.reasons(self.said or ()), self.reason in BY_PURPOSE
        if reasons and (self.reason is None or is_of_purpose):
            return Outcome(reasons[0], self.http_code, said=self.said)
        may_lack = self.reason is None and len(self.said or ()) == STATEMENTS_AT_MOST  # more may have been said
        return Outcome(None) if is_of_purpose or may_lack else self

    @property
    def ranges(self) -> list[tuple[int, int, str | None]]:
        """What the unit's blob has of it: offset, bytes and SHA-256 of each range."""
        found = [(self.found_at, self.found_bytes, self.measured.found_sha256)] if self.found_at is not None else []
        if self.stored is None or self.stored_at in (None, self.found_at):
            return found
        return [*found, (self.stored_at, self.stored.bytes, self.stored.sha256)]


class Found(NamedTuple):
    """An image as it was found, and its number in its unit."""

    number: int
    data: bytes
    said: Sequence[Said] | None = None  # of it


class Judged(NamedTuple):
    """What became of an image: its outcome, without places, and what a shard holds of it; None where it is dropped."""

    found: Found
    outcome: Outcome
    stored: bytes | None


def placed(
    judged: Judged, at: int, *, is_in_file: bool = False, keeps_found: bool = False, found_at: int | None = None
) -> tuple[Outcome, bytes]:
    """The outcome of an image with its places in the unit's blob, and the bytes to add to that, which has `at` bytes.

    Nothing is added of an image that an input file has (`is_in_file`) and the shard will hold as it was found.
    `found_at`: where the blob has the bytes as found already; `keeps_found`: they are added, whatever becomes of it.
    """
    data, stored, stored_at, added = judged.found.data, judged.stored, None, b""
    if found_at is None and not is_in_file and (keeps_found or stored is data):
        found_at, added = at, data
    if stored is data:
        stored_at = found_at
    elif stored is not None:
        stored_at, added = at + len(added), added + stored
    return judged.outcome._replace(found_at=found_at, stored_at=stored_at), added


class Judge:
    """Judges the images of a unit, which have these URLs by their numbers.

    Of the dropped ones those get a thumbnail that are among the first `pictures` of their reason, of those that have
    come, in whatever order they come: so all that are among the first in the end have one. An image that a block list
    names has none: nobody is to see it, whatever else it was dropped for.
    """

    def __init__(self, run: Run, urls: Sequence[str | None], *, pictures: int):
        self._run, self._urls, self._most, self._pictured = run, urls, pictures, defaultdict[str, list[int]](list)
        self._hooks, self._rules = measuring.hooks_of(run.config), own.rules(Stage.IMAGE, run.config, run.modules)

    def __call__(self, images: Iterable[Found]) -> Iterator[Judged]:
        """Yields what becomes of each image, in order."""
        together, size = list[tuple[Found, Measured, pixels.Decoded]](), 0
        for found in images:
            interrupts.check()
            url = self._urls[found.number]
            measured, decoded = measuring.measure(found.data, url=url, config=self._run.config.image, hooks=self._hooks)
            together.append((found, measured, decoded))
            size += len(found.data) + _bytes_of(decoded)
            if len(together) == TOGETHER or size > TOGETHER_BYTES:
                yield from self._decided(together)
                together, size = [], 0
        yield from self._decided(together)

    def _decided(self, together: list[tuple[Found, Measured, pixels.Decoded]]) -> Iterator[Judged]:
        if not together:
            return
        columns = measuring.columns([measured for _, measured, _ in together])
        columns["url"] = pa.array([self._urls[found.number] for found, *_ in together], pa.string())
        columns["bytes"] = pa.array([len(found.data) for found, *_ in together], pa.int64())
        verdicts = ask(self._rules, columns, self._run.config, lambda row: f"the image {columns['url'][row].as_py()!r}")
        every_failed: Any = reasons_of(verdicts)[1]
        for (found, measured, decoded), failed in zip(together, every_failed.to_pylist(), strict=True):
            outcome = Outcome(None, None, len(found.data), measured, tuple(failed or ()), said=found.said)
            if failed:
                yield Judged(found, outcome._replace(picture=self._picture(found, failed)), None)
            else:
                yield self._kept(found, outcome, decoded)

    def _kept(self, found: Found, outcome: Outcome, decoded: pixels.Decoded) -> Judged:
        stored = self._stored(found, decoded)
        features = self._hooks.embedder.features(decoded.pixels) if decoded.pixels is not None else None
        is_as_found = stored.bytes is found.data
        digest = outcome.measured.found_sha256 if is_as_found else hashlib.sha256(stored.bytes).hexdigest()
        columns = StoredColumns(stored.width, stored.height, stored.format, len(stored.bytes), digest or "")
        of_features = None if features is None else features.tobytes()
        return Judged(found, outcome._replace(features=of_features, stored=columns), stored.bytes)

    def _stored(self, found: Found, decoded: pixels.Decoded) -> pixels.Stored:
        settings = self._run.config.shards.of_image
        kind, width, height = decoded.format or "", decoded.width or 0, decoded.height or 0
        if pixels.is_stored_as_found(found.data, kind, width, height, **settings):
            return pixels.Stored(found.data, kind, width, height)
        with enough_memory(self._urls[found.number], found.data, colour=True):
            return pixels.to_stored(found.data, decoded=decoded, **settings)

    def _picture(self, found: Found, failed: Sequence[str]) -> bytes | None:
        first = self._pictured[failed[0]]
        insort(first, found.number)
        is_one = found.number not in first[self._most :]
        del first[self._most :]
        if not is_one or image.image_blocked.name in failed:
            return None
        return picture(found.data, pixels_at_most=self._run.config.image.pixels_at_most)


def _bytes_of(decoded: pixels.Decoded) -> int:
    return (0 if decoded.pixels is None else decoded.pixels.nbytes) + 4 * (decoded.loaded is not None) * (
        (decoded.width or 0) * (decoded.height or 0)
    )


def stored_anew(run: Run, data: bytes, name: str) -> bytes:
    """What a shard holds of an image that was found sound, which `name` names in errors."""
    with enough_memory(name, data, colour=True):
        return pixels.to_stored(data, **run.config.shards.of_image).bytes


def picture(data: bytes, *, pixels_at_most: int) -> bytes | None:
    """As `thumbnails.picture`, once there is enough memory to decode the image."""
    side = thumbnails.WEBP_SIDE_PX
    with enough_memory("a thumbnail", data, colour=True, pixels_at_most=pixels_at_most, short_side_px=side):
        return thumbnails.picture(data, pixels_at_most=pixels_at_most)
