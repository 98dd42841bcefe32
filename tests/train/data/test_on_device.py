"""JPEGs that the training device decodes: the pixels that workers make, by another decoder and by products."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from altalign.errors import UsageError
from altalign.train.data import augment, on_device
from altalign.train.data.batches import Batch
from altalign.train.data.loader import batches
from altalign.train.data.on_device import Decoder, Part, Undecoded, resized, undecoded
from altalign.train.data.order import Order, Sampler
from altalign.train.data.samples import Samples
from altalign.train.data.tokenizer import train
from altalign.train.settings.training import DataSettings, TokenizerSettings
from tests.support.run_folders import Pair, picture, write_run
from tests.train.data.test_augment import encoded, image_of, kinds, turned

KEY = "0123456789abcdef0123456789abcdef"
CPU = torch.device("cpu")
HERE = ["jpeg", "jpeg_progressive", "jpeg_420", "jpeg_gray", "turned_1"]  # what it decodes of `kinds`
CROP = {"resize_px": 40, "crop_px": 32}


def drawn(data: bytes, **given: object) -> Undecoded | None:
    chosen = DataSettings(**{**CROP, "decoding": "device", **given})
    return undecoded(data, chosen, seed=1, epoch=2, key=KEY)


def by_a_worker(data: bytes, **given: object) -> torch.Tensor:
    return augment.training_pixels(data, DataSettings(**{**CROP, **given}), seed=1, epoch=2, key=KEY)


sides = st.integers(1, 60)


@settings(deadline=None, max_examples=60)
@given(
    images=st.lists(
        st.tuples(sides, sides, st.integers(0, 20), st.integers(0, 20), st.booleans()), min_size=1, max_size=4
    ),
    side=st.integers(8, 40),
    numbers=st.integers(0, 1 << 20),
)
def test_products_resize_crop_and_flip_as_torch_does(
    images: list[tuple[int, int, int, int, bool]], side: int, numbers: int
) -> None:
    noise = torch.Generator().manual_seed(numbers)
    whole, parts, expected = [], [], []
    for height, width, top, left, is_flipped in images:
        image = torch.randint(0, 256, (3, height + top, width + left), dtype=torch.uint8, generator=noise)
        down, right = (int(torch.randint(0, side - 7, (), generator=noise)) for _ in range(2))
        whole.append(image)
        parts.append(Part(top, left, height, width, side, down, right, is_flipped))
        square = torch.nn.functional.interpolate(
            image[None, :, top:, left:].double(), size=(side, side), mode="bilinear", antialias=True
        )[0]
        crop = square[:, down : down + 8, right : right + 8]
        expected.append(crop.flip(2) if is_flipped else crop)
    found = resized(whole, parts, 8)
    assert found.dtype == torch.uint8
    # half a level of rounding, and what float32 has lost
    assert (found.double() - torch.stack(expected)).abs().max() <= 0.5 + 1e-3


@pytest.mark.parametrize("given", [{}, {"crop_area_at_least": 0.3}, {"flip": False}])
@pytest.mark.parametrize("kind", HERE)
def test_it_sees_what_a_worker_would_have_made(kind: str, given: Mapping[str, Any]) -> None:
    data = kinds()[kind]
    found = drawn(data, **given)
    assert found is not None
    (seen,) = Decoder(CPU, 32).pixels([found])
    expected = by_a_worker(data, **given)
    assert (seen.int() - expected.int()).abs().float().mean() < 1  # of 255: two decoders, two ways to resize


@pytest.mark.parametrize("kind", sorted({*kinds()}.difference(HERE)))
def test_what_it_may_decode_in_another_way_is_left_to_workers(kind: str) -> None:
    assert drawn(kinds()[kind]) is None


def test_turned_and_huge_images_are_left_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(turned(1)) is not None
    assert drawn(turned(6)) is None
    monkeypatch.setattr(on_device, "_PIXELS_AT_MOST", 40 * 24 - 1)
    assert drawn(turned(1)) is None


def test_jpegs_that_hold_rgb_are_left_to_workers() -> None:
    data = encoded(image_of(picture(1)), "JPEG", keep_rgb=True)
    assert image_of(data).info["adobe_transform"] == 0
    assert drawn(data) is None
    begin = data.index(b"Adobe") - 4  # without the mark the names of its components tell it
    unmarked: Any = data[:begin] + data[begin + 16 :]
    assert [layer[0] for layer in cast(Any, image_of(unmarked)).layer] == [*b"RGB"]
    assert drawn(unmarked) is None


@pytest.mark.parametrize("kind", [1, 2, 3, 4, 5, 7, 99])
@pytest.mark.parametrize("value", [1, 6])
def test_an_orientation_of_any_type_turns_nothing(kind: int, value: int) -> None:
    data = turned(1)
    begin = data.index(b"\x01\x12")  # tag, type, count, value
    kinds_and_value = kind.to_bytes(2, "big") + data[begin + 4 : begin + 8] + bytes([0, value])
    data = data[: begin + 2] + kinds_and_value + data[begin + 10 :]
    found = drawn(data)
    assert found is None or (kind, value) == (3, 1)
    if found is not None:
        (seen,) = Decoder(CPU, 32).pixels([found])
        expected = by_a_worker(data)
        assert (seen.int() - expected.int()).abs().max() <= 1


def test_an_image_that_has_not_the_sides_of_its_header_is_decoded_as_workers_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = drawn(picture(1, (50, 30)))
    assert found is not None
    decoder = Decoder(CPU, 32)
    decode = decoder._decode_jpeg
    monkeypatch.setattr(decoder, "_decode_jpeg", lambda *given, **how: [one.mT for one in decode(*given, **how)])
    (seen,) = decoder.pixels([found])
    expected = by_a_worker(found.data)
    assert (seen.int() - expected.int()).abs().max() <= 1


def test_long_thin_images_share_no_tensor_that_is_too_large() -> None:
    thin = encoded(Image.new("RGB", (60_000, 1)), "JPEG")
    images = [one for _ in range(3) if (one := drawn(thin)) is not None]
    assert [len(places) for places in on_device._alike(images, 32)] == [3]
    assert [len(places) for places in on_device._alike(images, 200)] == [1, 1, 1]
    assert drawn(thin, resize_px=300, crop_px=289) is None


def test_a_device_that_torchcodec_cannot_use_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("nvjpeg is not there\nCall stack: …")

    monkeypatch.setattr("torchcodec.decoders.decode_jpeg", fails)
    with pytest.raises(UsageError, match=r'decoding = "device": torchcodec cannot use cpu: nvjpeg is not there$'):
        Decoder(CPU, 32)


def test_groups_of_one_size_or_another_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [(30, 50), (64, 20), (40, 40), (25, 90)]
    images = [one for number, size in enumerate(sizes) if (one := drawn(picture(number, size))) is not None]
    whole = Decoder(CPU, 32).pixels(images)
    monkeypatch.setattr(on_device, "_PIXELS_AT_MOST", 3000)
    assert len(list(on_device._alike(images, 32))) > 1
    assert Decoder(CPU, 32).pixels(images).equal(whole)


def test_where_a_call_fails_each_image_is_decoded_as_workers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("nvjpegDecode failed: 5")

    images = [one for number in range(3) if (one := drawn(picture(number))) is not None]
    decoder = Decoder(CPU, 32)
    monkeypatch.setattr(decoder, "_decode_jpeg", fails)
    alone = decoder.pixels(images)
    for one, image in zip(alone, images, strict=True):
        expected = by_a_worker(image.data)
        assert (one.int() - expected.int()).abs().max() <= 1
    images[1] = images[1]._replace(data=images[1].data[:200])
    with pytest.raises(augment.UndecodableError):
        decoder.pixels(images)


def loaded(folder: Path, of: list[Pair], decoding: str, **given: Any) -> list[Batch]:
    run = folder / "run"
    samples = Samples.open(str(folder / "index"), [str(run) if run.exists() else write_run(run, of)])
    words = train(samples.captions, TokenizerSettings(vocabulary_size=100))
    chosen = DataSettings(**CROP, workers=given.pop("workers", 0), decoding=decoding)
    sampler = Sampler(Order(samples.sources, {}, 3), 12)
    given = {"undecodable": [].append, **given}
    return list(batches(samples, sampler, words, chosen, seed=3, first_batch=0, after_batch=4, **given))


def of_both_kinds() -> list[Pair]:
    """Every third is a PNG."""
    return [
        Pair(picture(number, (50, 36), "JPEG" if number % 3 else "PNG"), f"kite {number}", f"https://a.org/{number}")
        for number in range(30)
    ]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.trained)])
def test_batches_are_those_of_workers_but_for_some_levels(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("altalign.train.data.loader._PIECE", 5)
    of = of_both_kinds()
    pngs = {pair.key for pair in of[::3]}
    expected = loaded(tmp_path, of, "full")
    found = loaded(tmp_path, of, "device", workers=workers)
    for one, other in zip(found, expected, strict=True):
        assert (one.keys, one.sources, one.epochs) == (other.keys, other.sources, other.epochs)
        assert one.tokens.equal(other.tokens)
        assert one.mask.equal(other.mask)
        assert one.images.is_contiguous(memory_format=torch.channels_last)
        for key, seen, made in zip(one.keys, one.images, other.images, strict=True):
            assert seen.equal(made) if key in pngs else (seen.int() - made.int()).abs().float().mean() < 1


def test_spares_stand_for_what_does_not_decode_whoever_decodes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = of_both_kinds()
    cut = [Pair(harmed(pair.image, n), pair.caption, pair.url) for n, pair in enumerate(of)]
    expected, found = [], []
    as_workers = loaded(tmp_path, cut, "full", undecodable=expected.append)
    monkeypatch.setattr("torchcodec.decoders.decode_jpeg", strict_jpeg)
    seen = loaded(tmp_path, cut, "device", undecodable=found.append)
    assert {one.key for one in found} == {pair.key for pair in of[:3]}
    assert found == expected
    assert [one.keys for one in seen] == [one.keys for one in as_workers]


def harmed(image: bytes, number: int) -> bytes:
    """A PNG that is cut off, a JPEG likewise, and a JPEG that misses a piece before its end; others as they are."""
    return [image[:100], image[:-40], image[:-60] + image[-2:], image][min(number, 3)]


def strict_jpeg(data: Sequence[bytes], **_: object) -> list[torch.Tensor]:
    """A decoder that refuses what is damaged inside, without saying which image it was; libjpeg fills it up."""
    try:
        return [torch.from_numpy(augment.decode(one).copy()).permute(2, 0, 1) for one in data]
    except augment.UndecodableError:
        raise RuntimeError("nvjpegDecode failed: 5") from None


def test_without_the_package_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = DataSettings(decoding="device")
    on_device.check_installed(chosen)
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)  # as where it is not installed
    with pytest.raises(UsageError, match=r'decoding = "device" needs torchcodec for this torch.*EXTRAS=torchcodec'):
        on_device.check_installed(chosen)
    on_device.check_installed(DataSettings())
