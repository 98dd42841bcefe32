"""Images that are judged where they are found: what a plain loop would keep of each, decoded once."""

import hashlib
import io
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from altalign.errors import AltalignError
from altalign.filters import pixels, thumbnails
from altalign.machine import interrupts, memory
from altalign.pipelines.images import judging, measuring
from altalign.pipelines.images.judging import Found, Judge, Judged, placed
from altalign.settings.curate import ShardsSettings
from tests.support.runs import run_of

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "JPEG", "BMP", "TIFF")
SETTINGS = [
    ShardsSettings(),
    ShardsSettings(portable=False),
    ShardsSettings(resize_short_side_px=210),
    ShardsSettings(portable=False, resize_short_side_px=210),
]


def images(count: int, *, seed: int = 1) -> list[Found]:
    """Images of all formats and some sizes, every fifth of them too small, every ninth turned, every tenth cut."""
    rng, found = random.Random(seed), list[Found]()
    for number in range(count):
        width, height = (64, 48) if number % 5 == 4 else rng.choice([(230, 250), (301, 220), (240, 400)])
        source = Image.frombytes("RGB", (20, 15), rng.randbytes(900)).resize((width, height))
        file, exif = io.BytesIO(), Image.Exif()
        exif[0x0112] = 6 if number % 9 == 8 else 1
        kind = FORMATS[number % len(FORMATS)]
        source.save(file, kind, **({"exif": exif} if kind in ("JPEG", "PNG", "TIFF") else {}))
        data = file.getvalue()
        found.append(Found(number, data[: len(data) // 2] if number % 10 == 7 else data))
    return found


def judge_of(folder: Path, settings: ShardsSettings | None = None, *, pictures: int = 2, count: int = 100) -> Judge:
    run = run_of(folder)
    config = run.config.model_copy(update={"shards": settings or ShardsSettings()})
    changed = type(run)(run.folder, config, run.files)
    return Judge(changed, [f"http://a/{number}" for number in range(count)], pictures=pictures)


def failed_of(data: bytes) -> list[str]:
    """The rules that hold, by plain words."""
    decoded = pixels.decode(data, pixels_at_most=10**9, colour=False)
    is_small = decoded.width is not None and min(decoded.width, decoded.height or 0) <= 200
    return ["image_damaged"] * (decoded.damage is not None) + ["image_too_small"] * is_small


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("together", [1, 7, judging.TOGETHER])
def test_what_stays_is_stored_as_a_second_decoding_would_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: ShardsSettings, together: int
) -> None:
    monkeypatch.setattr(judging, "TOGETHER", together)
    found = images(40)
    every = list(judge_of(tmp_path, settings)(found))
    assert [each.found for each in every] == found
    hooks = measuring.hooks_of(run_of(tmp_path).config)
    for each in every:
        data, outcome = each.found.data, each.outcome
        assert list(outcome.failed) == failed_of(data)
        assert outcome.measured.found_sha256 == hashlib.sha256(data).hexdigest()
        assert (each.stored is None) == bool(outcome.failed)
        if each.stored is not None:
            expected = pixels.to_stored(data, **settings.of_image)
            assert each.stored == expected.bytes
            digest = hashlib.sha256(expected.bytes).hexdigest()
            columns = (expected.width, expected.height, expected.format, len(expected.bytes), digest)
            assert outcome.stored == columns
            decoded = pixels.decode(data, pixels_at_most=10**9, colour=False, short_side_px=hooks.short_side_px)
            assert decoded.pixels is not None
            features = hooks.embedder.features(decoded.pixels)
            assert features is not None
            assert np.array_equal(np.frombuffer(outcome.features or b"", np.int16), features)


@pytest.mark.parametrize("seed", range(4))
def test_the_first_dropped_images_of_each_reason_have_a_thumbnail_in_whatever_order_they_come(
    tmp_path: Path, seed: int
) -> None:
    found = images(60)
    shuffled = random.Random(seed).sample(found, len(found))
    outcomes = {each.found.number: each for each in judge_of(tmp_path, pictures=3)(shuffled)}
    reasons = {number: each.outcome.failed[0] for number, each in outcomes.items() if each.outcome.failed}
    for reason in ("image_too_small", "image_damaged"):
        first = sorted(number for number, of_image in reasons.items() if of_image == reason)[:3]
        assert len(first) == 3
        for number in first:
            expected = thumbnails.picture(found[number].data, pixels_at_most=10**9)
            assert outcomes[number].outcome.picture == expected
    assert all(each.outcome.picture is None for each in outcomes.values() if not each.outcome.failed)


def test_an_image_that_a_list_names_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, real = images(5), measuring.measure

    def blocked(data: bytes, **more: Any) -> tuple[measuring.Measured, pixels.Decoded]:
        measured, decoded = real(data, **more)
        return measured._replace(is_blocked=True), decoded

    monkeypatch.setattr(measuring, "measure", blocked)
    every = list(judge_of(tmp_path, pictures=10)(found))
    assert [each.outcome.picture for each in every] == [None] * 5
    assert every[4].outcome.failed == ("image_too_small", "image_blocked")


def test_only_what_no_input_file_has_so_is_added_to_the_blob(tmp_path: Path) -> None:
    png, jpeg, *_, small = judge_of(tmp_path)(images(5))
    assert placed(jpeg, 7, is_in_file=True)[1] == b""
    outcome, added = placed(jpeg, 7)
    assert (outcome.found_at, outcome.stored_at, added) == (7, 7, jpeg.found.data)
    for keeps_found in (False, True):
        outcome, added = placed(png, 7, keeps_found=keeps_found)
        assert added == png.found.data * keeps_found + (png.stored or b"")
        assert outcome.stored_at == 7 + keeps_found * len(png.found.data)
        assert outcome.found_at == (7 if keeps_found else None)
        outcome, added = placed(small, 7, keeps_found=keeps_found)
        assert (outcome.found_at, outcome.stored_at) == (7 if keeps_found else None, None)
        assert added == small.found.data * keeps_found
    outcome, added = placed(png, 7, is_in_file=True)
    assert (outcome.found_at, outcome.stored_at, added) == (None, 7, png.stored)


def test_an_image_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, real = list[str](), pixels._first_frame

    def counted(image: Any) -> Image.Image:
        loaded.append(image.format)
        return real(image)

    monkeypatch.setattr(pixels, "_first_frame", counted)
    found = [each for each in images(40) if not failed_of(each.data)]
    loaded.clear()
    every = list(judge_of(tmp_path)(found))
    assert all(each.stored for each in every)
    assert loaded == [each.outcome.measured.format.upper() for each in every if each.outcome.measured.format != "jpeg"]  # type: ignore[union-attr]


def test_an_image_without_memory_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = images(1)
    needed = pixels.peak_bytes(found[0].data, colour=True)
    shared = memory._Spare(needed - 1)
    monkeypatch.setattr(memory, "spare", lambda: shared)
    monkeypatch.setattr(memory, "SMALL_BYTES", 0)
    with pytest.raises(AltalignError, match=r"http://a/0: no memory to decode an image of \d+ x \d+ pixels"):
        list(judge_of(tmp_path)(found))
    assert shared.left == needed - 1


def test_a_signal_ends_it_before_the_next_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_ASKED", [])
    taken = list[int]()

    def asked() -> Iterator[Found]:
        for found in images(60):
            taken.append(found.number)
            if found.number == 3:
                interrupts._ASKED.append(signal.SIGTERM)
            yield found

    with pytest.raises(interrupts.Interrupted, match="SIGTERM"):
        list[Judged](judge_of(tmp_path)(asked()))
    assert taken == [0, 1, 2, 3]
