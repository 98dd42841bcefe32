"""Images of a shard, made by one or several threads: the same, in order, never more at once than threads."""

import hashlib
import io
import itertools
import random
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
from PIL import Image

from altalign.errors import AltalignError, UnreadableError
from altalign.filters import pixels
from altalign.machine import interrupts, memory
from altalign.machine import threads as shared_threads
from altalign.pipelines.images import for_shards
from altalign.settings.curate import ShardsSettings
from altalign.storage.ranges import Range

WATCHDOG_S = 300.0  # ends a test that would hang
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "JPEG", "BMP", "TIFF")
SETTINGS = [
    ShardsSettings(),
    ShardsSettings(portable=False),
    ShardsSettings(resize_short_side_px=40),
    ShardsSettings(portable=False, resize_short_side_px=40),
]


def samples(count: int, *, seed: int = 1) -> list[for_shards.FetchedSample]:
    """Images of all formats and some sizes, some with several captions."""
    rng, found, offset = random.Random(seed), list[for_shards.FetchedSample](), 0
    for number in range(count):
        width, height = rng.choice([(30, 50), (64, 48), (200, 120)])
        file = io.BytesIO()
        Image.frombytes("RGB", (width, height), rng.randbytes(width * height * 3)).save(
            file, FORMATS[number % len(FORMATS)]
        )
        data, kind = file.getvalue(), FORMATS[number % len(FORMATS)].lower()
        row = {
            "image_url": f"http://a/{number}",
            "format": kind,
            "width": width,
            "height": height,
            "found_sha256": hashlib.sha256(data).hexdigest(),
        }
        captions = rng.choice([1, 1, 1, 4])
        found += [
            for_shards.FetchedSample(
                {**row, "caption": caption}, Range("a.images", offset, len(data)), None if caption else data
            )
            for caption in range(captions)
        ]
        offset += len(data)
    return found


def plain(found: Sequence[for_shards.FetchedSample], settings: ShardsSettings) -> list[tuple[Any, ...]]:
    """One after the other, without anything of ours but the encoder."""
    rows, data = [], b""
    for each in found:
        data = each.data or data
        image = pixels.to_stored(data, portable=settings.portable, resize_short_side_px=settings.resize_short_side_px)
        measured = {"width": image.width, "height": image.height, "format": image.format, "bytes": len(image.bytes)}
        rows.append((each.row, image.bytes, {**measured, "sha256": hashlib.sha256(image.bytes).hexdigest()}))
    return rows


def made(found: Sequence[for_shards.FetchedSample], settings: ShardsSettings, threads: int) -> list[tuple[Any, ...]]:
    return [(row, image.bytes, image.measured) for row, image in for_shards.images(found, settings, threads=threads)]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(("threads", "ahead_bytes"), [(1, 0), (2, 0), (2, 60_000), (4, for_shards.AHEAD_BYTES)])
def test_images_are_those_of_a_plain_loop_in_its_order(
    monkeypatch: pytest.MonkeyPatch, settings: ShardsSettings, threads: int, ahead_bytes: int
) -> None:
    monkeypatch.setattr(for_shards, "AHEAD_BYTES", ahead_bytes)
    found = samples(40)
    assert made(found, settings, threads) == plain(found, settings)
    assert made([], settings, threads) == []


@dataclass
class Counted:
    """Counts who encodes at the same time."""

    most: int = 0
    now: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, data: bytes, *, portable: bool, resize_short_side_px: int) -> pixels.Stored:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            return (
                pixels.Stored(data[:100], "jpeg", 1, 1)
                if portable
                else pixels.Stored(data, "png", resize_short_side_px, 1)
            )
        finally:
            with self.lock:
                self.now -= 1


def test_one_shard_alone_is_encoded_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    together, names = threading.Barrier(3), set[str]()

    def encode(data: bytes, **_: Any) -> pixels.Stored:
        together.wait(WATCHDOG_S)  # breaks if they come one after the other
        names.add(threading.current_thread().name)
        return pixels.Stored(data, "jpeg", 1, 1)

    monkeypatch.setattr(pixels, "to_stored", encode)
    found = [each for each in samples(40) if each.row["format"] == "png" and each.data]
    assert len(made(found[:3], ShardsSettings(), 3)) == 3
    assert len(names) == 3
    assert threading.current_thread().name not in names


def test_with_one_thread_all_is_done_in_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set[int]()
    monkeypatch.setattr(
        pixels, "to_stored", lambda data, **_: threads.add(threading.get_ident()) or pixels.Stored(data, "jpeg", 1, 1)
    )
    made(samples(20), ShardsSettings(), 1)
    assert threads == {threading.get_ident()}


def test_shards_that_are_written_together_encode_no_more_images_at_once_than_there_are_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counted()
    monkeypatch.setattr(pixels, "to_stored", counted)
    with ThreadPoolExecutor(6) as shards:
        list(shards.map(lambda seed: made(samples(30, seed=seed), ShardsSettings(), 2), range(6)))
    assert 1 <= counted.most <= 2


def test_shards_that_have_memory_for_one_image_alone_wait_for_one_another_and_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever waits for memory waits for one that decodes; what is decoded and not yet in its shard holds none."""
    found = samples(40)
    most = max(pixels.peak_bytes(each.data, colour=True) for each in found if each.data)
    shared = memory._Spare(most)
    monkeypatch.setattr(memory, "spare", lambda: shared)
    monkeypatch.setattr(memory, "SMALL_BYTES", 0)
    counted = Counted()
    monkeypatch.setattr(pixels, "to_stored", counted)
    results: list[int] = []

    def shard() -> None:
        results.append(len(made(found, ShardsSettings(), 4)))

    shards = [threading.Thread(target=shard, daemon=True) for _ in range(3)]
    for each in shards:
        each.start()
    for each in shards:
        each.join(WATCHDOG_S)
    assert results == [len(found)] * 3
    assert shared.left == most


def test_an_image_without_memory_is_an_error_that_names_it_and_those_before_it_come_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [each for each in samples(30) if each.row["format"] == "png" and each.data]
    largest = max(found, key=lambda each: each.row["width"])
    needed = pixels.peak_bytes(largest.data or b"", colour=True)
    shared = memory._Spare(needed - 1)
    monkeypatch.setattr(memory, "spare", lambda: shared)
    monkeypatch.setattr(memory, "SMALL_BYTES", 0)
    before = [each.row["image_url"] for each in found[: found.index(largest)]]
    for threads in (1, 3):
        came = []
        with pytest.raises(
            AltalignError, match=f"{largest.row['image_url']}: no memory to decode an image of 200 x 120 pixels"
        ):
            came.extend(row["image_url"] for row, _ in for_shards.images(found, ShardsSettings(), threads=threads))
        assert came == before
        assert shared.left == needed - 1


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_bytes_that_are_not_those_that_were_fetched_name_their_place(threads: int, kind: str) -> None:
    found = samples(20)
    at = next(number for number, each in enumerate(found) if each.data and number > 5 and each.row["format"] == kind)
    found[at] = found[at]._replace(data=(found[at].data or b"")[:-1] + b"?")
    with pytest.raises(UnreadableError) as error:
        made(found, ShardsSettings(), threads)
    assert str(error.value) == f"a.images: the image at byte {found[at].place.offset:,} is not the one that was fetched"


@pytest.mark.parametrize("threads", [1, 3])
def test_a_signal_ends_it_before_all_that_was_begun_is_done(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    done: list[bytes] = []

    def encode(data: bytes, **_: Any) -> pixels.Stored:
        done.append(data)
        interrupts._ASKED.append(signal.SIGTERM)
        return pixels.Stored(data, "jpeg", 1, 1)

    monkeypatch.setattr(interrupts, "_ASKED", [])
    monkeypatch.setattr(pixels, "to_stored", encode)
    found = [each for each in samples(60) if each.row["format"] == "png" and each.data]
    with pytest.raises(interrupts.Interrupted, match="SIGTERM"):
        made(found, ShardsSettings(), threads)
    assert len(done) <= threads


def test_a_shard_that_fails_leaves_no_thread_and_no_work_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    monkeypatch.setattr(pixels, "to_stored", lambda data, **_: pixels.Stored(data, "jpeg", 1, 1))
    with closing(for_shards.images(itertools.cycle(samples(10)), ShardsSettings(), threads=2)) as images:
        next(images)
        assert shared_threads.OF_PROCESS._pool is not None
    assert shared_threads.OF_PROCESS._pool is None
    assert set(threading.enumerate()) <= before
