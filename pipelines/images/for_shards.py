"""Makes images as a shard stores them, in order. Several threads make JPEGs, a little ahead of the tar."""

import hashlib
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from typing import NamedTuple, TypedDict

from altalign.errors import UnreadableError
from altalign.filters import pixels
from altalign.machine import interrupts
from altalign.machine.threads import AHEAD_BYTES, OF_PROCESS, done, in_order
from altalign.pipelines.images.measuring import enough_memory
from altalign.settings.curate import ShardsSettings
from altalign.storage.ranges import Range

_ROW_BYTES = 1 << 10  # about what is known of a sample


class Row(TypedDict):
    """What is read here of a row of `FETCHED_ROW`; it is handed on whole."""

    image_url: str | None
    width: int
    height: int
    format: str
    found_sha256: str


class FetchedSample(NamedTuple):
    """A sample: its row, the place of its image, and the image as found; None if it is the one before."""

    row: Row
    place: Range
    data: bytes | None


class StoredColumns(TypedDict):
    """Columns of `SAMPLE` that are of the stored image."""

    width: int
    height: int
    format: str
    bytes: int
    sha256: str


class StoredImage(NamedTuple):
    """An image as it is stored: its bytes, and what the side-car says of them."""

    bytes: bytes
    measured: StoredColumns


def images(
    samples: Iterable[FetchedSample], settings: ShardsSettings, *, threads: int
) -> Generator[tuple[Row, StoredImage]]:
    """The row of each sample and its image as it is stored; with one thread, all is made in the calling thread."""
    with nullcontext() if threads == 1 else OF_PROCESS.shared(threads) as pool:

        def begun() -> Iterator[tuple[Row, Future[StoredImage], int]]:
            """One image for all its samples; of bytes what it has and, about, what a JPEG of its pixels has at most."""
            image = None
            for each in samples:
                row, data, size = each.row, each.data or b"", _ROW_BYTES
                if each.data is not None or image is None:
                    size += len(data) + row["width"] * row["height"]
                    anew = None if _is_stored_as_found(row, data, settings) else settings
                    image = done(_made(each, anew)) if pool is None or anew is None else pool.submit(_made, each, anew)
                yield row, image, size

        yield from in_order(begun(), bytes_at_most=0 if pool is None else AHEAD_BYTES)


def _is_stored_as_found(row: Row, data: bytes, settings: ShardsSettings) -> bool:
    size, side = (row["width"], row["height"]), settings.resize_short_side_px
    return pixels.is_stored_as_found(data, row["format"], *size, portable=settings.portable, resize_short_side_px=side)


def _made(sample: FetchedSample, anew: ShardsSettings | None) -> StoredImage:
    interrupts.check()
    row, place, data = sample
    assert data is not None
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 != row["found_sha256"]:
        raise UnreadableError(f"{place.path}: the image at byte {place.offset:,} is not the one that was fetched")
    stored = pixels.Stored(data, row["format"], row["width"], row["height"])
    if anew is not None:
        with enough_memory(row["image_url"], data, colour=True):
            stored = pixels.to_stored(data, portable=anew.portable, resize_short_side_px=anew.resize_short_side_px)
        sha256 = hashlib.sha256(stored.bytes).hexdigest()
    size, kind = {"width": stored.width, "height": stored.height}, stored.format
    return StoredImage(stored.bytes, StoredColumns(**size, format=kind, bytes=len(stored.bytes), sha256=sha256))
