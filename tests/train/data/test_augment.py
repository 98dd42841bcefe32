"""What a tower sees of an image: the pixels that curation saw, resized as Pillow would, cropped and flipped by seed,
epoch and key alone.
"""

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from altalign.filters import pixels
from altalign.train.data import augment
from altalign.train.data.augment import UndecodableError, chosen, decode, evaluation_pixels, resize
from altalign.train.settings.data import DataSettings
from tests.support.run_folders import picture

KEY = "0123456789abcdef0123456789abcdef"


def training_pixels(data: bytes, *, seed: int = 0, epoch: int = 0, key: str = KEY, **given: object) -> torch.Tensor:
    return augment.training_pixels(data, DataSettings(**given), seed=seed, epoch=epoch, key=key)


def encoded(image: Image.Image, image_format: str, **given: object) -> bytes:
    data = io.BytesIO()
    image.save(data, image_format, **given)
    return data.getvalue()


def image_of(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image_of(picture(1, (40, 24))), "JPEG", exif=exif)


def kinds() -> dict[str, bytes]:
    colour = image_of(picture(1, (60, 41), "PNG")).convert("RGB")
    fade = Image.linear_gradient("L").resize(colour.size)
    clear = colour.copy()
    clear.putalpha(fade)
    palette = colour.quantize(16)
    return {
        "jpeg": encoded(colour, "JPEG"),
        "jpeg_progressive": encoded(colour, "JPEG", progressive=True),
        "jpeg_420": encoded(colour, "JPEG", subsampling=2),
        "jpeg_gray": encoded(colour.convert("L"), "JPEG"),
        "jpeg_cmyk": encoded(colour.convert("CMYK"), "JPEG"),
        "png": encoded(colour, "PNG"),
        "png_clear": encoded(clear, "PNG"),
        "png_palette": encoded(palette, "PNG"),
        "png_palette_clear": encoded(palette, "PNG", transparency=3),
        "png_gray_clear": encoded(clear.convert("LA"), "PNG"),
        "png_bit": encoded(colour.convert("1"), "PNG"),
        "png_16": encoded(Image.fromarray(np.asarray(fade).astype(np.uint16) * 257), "PNG"),
        "webp": encoded(clear, "WEBP"),
        "gif": encoded(palette, "GIF", transparency=2),
        "gif_moving": encoded(palette, "GIF", save_all=True, append_images=[palette.rotate(180)]),
        "avif": encoded(colour, "AVIF"),
        "bmp": encoded(colour, "BMP"),
        "tiff": encoded(clear, "TIFF"),
        "tiff_float": encoded(Image.fromarray(np.linspace(-3, 7, 60 * 41, dtype=np.float32).reshape(41, 60)), "TIFF"),
        **{f"turned_{number}": turned(number) for number in range(1, 9)},
    }


KINDS = kinds()


@pytest.mark.parametrize("name", list(KINDS))
def test_pixels_are_those_that_curation_saw(name: str) -> None:
    seen = pixels.decode(KINDS[name], pixels_at_most=10**6, colour=True, short_side_px=10**4)
    assert seen.damage is None
    assert np.array_equal(
        decode(KINDS[name]), seen.pixels if seen.pixels.ndim == 3 else np.repeat(seen.pixels[..., None], 3, axis=2)
    )


@pytest.mark.parametrize("name", ["jpeg", "png"])
def test_what_does_not_decode_whole_is_said_in_one_line(name: str) -> None:
    sound = KINDS[name]
    for data, says in (
        (sound[: len(sound) * 3 // 4], "remature end|truncated"),
        (sound[:20], "(?i)truncated|index out of range"),
        (b"<html>", "^no known image format$"),
        (b"", "^no known"),
    ):
        with pytest.raises(UndecodableError, match=says) as error:
            decode(data)
        assert "\n" not in str(error.value)


@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 60), st.integers(0, 99))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_resized_as_pillow_resizes_but_for_one_level(width: int, height: int, side: int, seed: int) -> None:
    found = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(found).resize((side, side), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(resize(found, side).permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1


def test_a_crop_is_cut_where_chosen_and_flipped_where_chosen() -> None:
    data = KINDS["jpeg"]
    whole = resize(decode(data), 40)
    flips = set()
    for epoch in range(12):
        left, top, is_flipped = chosen(9, seed=5, epoch=epoch, key=KEY)
        expected = whole[:, top : top + 32, left : left + 32]
        given = {"resize_px": 40, "crop_px": 32, "seed": 5, "epoch": epoch, "key": KEY}
        assert training_pixels(data, flip=False, **given).equal(expected)
        assert training_pixels(data, flip=True, **given).equal(expected.flip(2) if is_flipped else expected)
        flips.add(is_flipped)
    assert flips == {True, False}


def test_evaluation_takes_the_middle() -> None:
    data = KINDS["jpeg"]
    assert evaluation_pixels(data, resize_px=346, crop_px=289).equal(resize(decode(data), 346)[:, 28:317, 28:317])
    assert evaluation_pixels(data, resize_px=32, crop_px=32).equal(resize(decode(data), 32))


def test_seed_epoch_and_key_alone_choose_and_each_of_them_does() -> None:
    first = chosen(10**6, seed=1, epoch=2, key=KEY)
    assert chosen(10**6, seed=1, epoch=2, key=KEY) == first
    others = [chosen(10**6, seed=2, epoch=2, key=KEY), chosen(10**6, seed=1, epoch=3, key=KEY)]
    others += [chosen(10**6, seed=1, epoch=2, key=key) for key in (KEY[:-1] + "e", "1" + KEY[1:])]
    assert len({first, *others}) == 5


def test_every_place_and_both_flips_are_as_likely() -> None:
    found = np.array([chosen(58, seed=0, epoch=epoch, key=f"{epoch % 7:032x}") for epoch in range(5800)])
    for edge in (0, 1):
        counts = np.bincount(found[:, edge], minlength=58)
        assert len(counts) == 58
        assert ((counts - 100) ** 2 / 100).sum() < 112  # chi-squared of 57 degrees of freedom: once in 50,000
    assert abs(found[:, 2].sum() - 2900) < 200  # 5 standard deviations
    assert abs(np.corrcoef(found.T)[np.triu_indices(3, 1)]).max() < 0.07  # 5 of 1 / sqrt(n)


def test_a_crop_by_area_is_torchvisions_and_seed_epoch_and_key_alone_choose_it() -> None:
    data = KINDS["jpeg"]
    given = {"resize_px": 40, "crop_px": 32, "flip": False, "crop_area_at_least": 0.6, "auto_augment": True}
    first = training_pixels(data, **given, seed=1, epoch=2, key=KEY)
    state = torch.get_rng_state()
    assert first.equal(training_pixels(data, **given, seed=1, epoch=2, key=KEY))
    assert torch.get_rng_state().equal(state)  # and nothing else is drawn from torch's own generator
    others = [
        training_pixels(data, **given, seed=seed, epoch=epoch, key=key)
        for seed, epoch, key in ((2, 2, KEY), (1, 3, KEY), (1, 2, KEY[:-1] + "e"))
    ]
    assert not any(first.equal(other) for other in others)
    assert (first.shape, first.dtype) == ((3, 32, 32), torch.uint8)


def test_a_crop_by_area_has_the_area_and_the_aspect_ratio_that_are_asked() -> None:
    """Of an image whose red is its column and whose green is its row."""
    rows, columns = np.mgrid[0:200, 0:200].astype(np.uint8)
    data = encoded(Image.fromarray(np.stack([columns, rows, rows * 0], axis=2)), "PNG")
    areas, ratios = [], []
    for epoch in range(40):
        found = training_pixels(
            data, resize_px=64, crop_px=64, flip=False, crop_area_at_least=0.6, seed=0, epoch=epoch, key=KEY
        ).float()
        width, height = ((found[axis].max() - found[axis].min()).item() for axis in (0, 1))
        areas.append(width * height / 200**2)
        ratios.append(width / height)
    assert 0.55 < min(areas) < 0.7
    assert 0.85 < max(areas) <= 1
    assert 0.7 < min(ratios) < 1 < max(ratios) < 1.4


def smooth_jpeg(width: int, height: int, *, orientation: int = 1) -> bytes:
    """A JPEG without detail: a crop by area begins at a whole pixel of the scaled image, half a pixel off at most."""
    coarse = np.random.default_rng(width).integers(0, 256, (height // 200, width // 200, 3), dtype=np.uint8)
    data, exif = io.BytesIO(), Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(data, "JPEG", quality=92, exif=exif)
    return data.getvalue()


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("area", [0.0, 0.3])
def test_pixels_that_were_scaled_in_the_dct_are_those_of_a_full_decode_but_for_some_levels(
    area: float, orientation: int
) -> None:
    """Two levels in the mean and 24 at most; the same crop, flip and policy are drawn."""
    data = smooth_jpeg(1200, 800, orientation=orientation)
    assert decode(data, short_side_px=96).shape != decode(data).shape
    for epoch in range(6):
        slow, fast = (
            training_pixels(
                data, resize_px=96, crop_px=80, crop_area_at_least=area, decoding=decoding, epoch=epoch
            ).int()
            for decoding in ("full", "scaled")
        )
        apart = (slow - fast).abs()
        assert apart.float().mean() < 2
        assert apart.max() <= 24
        others = training_pixels(data, resize_px=96, crop_px=80, crop_area_at_least=area, seed=1, epoch=epoch).int()
        assert (slow - others).abs().float().mean() > 8  # another crop is far from it


@pytest.mark.parametrize("area", [0.0, 0.3])
def test_what_need_not_be_scaled_has_the_same_pixels(area: float) -> None:
    """Small JPEGs, other formats, and a crop that needs all pixels that there are."""
    given = {"resize_px": 40, "crop_px": 40, "crop_area_at_least": area, "epoch": 1}
    for data in (KINDS["jpeg"], KINDS["png"]):
        whole, scaled = (training_pixels(data, decoding=decoding, **given) for decoding in ("full", "scaled"))
        assert whole.equal(scaled)
    large, data = {**given, "resize_px": 790, "crop_px": 790}, smooth_jpeg(1200, 800)
    whole, scaled = (training_pixels(data, decoding=decoding, **large) for decoding in ("full", "scaled"))
    assert whole.equal(scaled)


@pytest.mark.parametrize(("width", "height"), [(80, 41), (41, 80), (50, 50)])
def test_evaluation_may_keep_the_aspect_ratio(width: int, height: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    short, factor = 36, 36 / min(width, height)
    size = max(short, round(width * factor)), max(short, round(height * factor))
    left, top = (size[0] - 32) // 2, (size[1] - 32) // 2
    whole = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR)).astype(int)
    found = evaluation_pixels(
        encoded(Image.fromarray(image), "PNG"), resize_px=short, crop_px=32, keep_aspect_ratio=True
    )
    assert np.abs(found.permute(1, 2, 0).numpy() - whole[top : top + 32, left : left + 32]).max() <= 1
