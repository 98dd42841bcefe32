"""HEIC with the extra `heif`, and without."""

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageCms

from altalign.filters import pixels
from altalign.filters.image_headers import HAS_HEIF
from tests.support.pictures import encoded, picture

needs_heif = pytest.mark.skipif(not HAS_HEIF, reason="the extra heif is not installed")
FIRST_BYTES = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"


def decoded(data: bytes) -> pixels.Decoded:
    return pixels.decode(data, pixels_at_most=10**7, colour=True, short_side_px=pixels.FULL_SIZE_PX)


def stored(data: bytes, *, portable: bool = True) -> tuple[pixels.Stored, np.ndarray]:
    made = pixels.to_stored(data, portable=portable, resize_short_side_px=0)
    return made, np.asarray(Image.open(io.BytesIO(made.bytes))).astype(int)


@needs_heif
@pytest.mark.parametrize("orientation", range(1, 9))
def test_its_boxes_turn_it_once_and_exif_does_not(orientation: int) -> None:
    source = picture(160, 96)
    source.getexif()[0x0112] = orientation
    data = encoded(source, "heic")  # the plug-in writes boxes beside EXIF
    wanted = pixels._turned(np.asarray(source), orientation)
    found, (made, colours) = decoded(data), stored(data, portable=orientation % 2 == 0)
    assert (found.width, found.height, found.orientation) == (wanted.shape[1], wanted.shape[0], 1)
    assert (made.format, made.width, made.height) == ("jpeg", found.width, found.height)
    assert found.pixels is not None
    for each in (found.pixels, colours):
        assert np.abs(each.astype(int) - wanted).mean() < 4
    only_exif = Image.Exif()
    only_exif[0x0112] = orientation
    found = decoded(encoded(picture(160, 96), "heic", exif=only_exif))
    assert (found.width, found.height, found.orientation) == (160, 96, 1)


@needs_heif
def test_more_pixels_than_the_header_says_are_damage() -> None:
    bomb = encoded(Image.new("RGB", (8192, 8192)), "heic", quality=10)
    at = bomb.index(b"ispe") + 8
    assert pixels.peak_bytes(bomb, colour=True) > 8192 * 8192 * 8
    assert (decoded(bomb).width, decoded(bomb).damage, decoded(bomb).pixels) == (8192, None, None)
    found = decoded(bomb[:at] + (100).to_bytes(4, "big") * 2 + bomb[at + 8 :])
    assert (found.width, found.pixels) == (100, None)
    assert "8192" in (found.damage or "")


@needs_heif
def test_its_profile_counts_where_it_is_written_anew() -> None:
    source = Image.new("RGB", (64, 64), (60, 160, 60))
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    plain = stored(encoded(source, "heic", quality=-1, chroma=444))[1]
    assert np.abs(plain - (60, 160, 60)).max() <= 3
    assert np.array_equal(stored(encoded(source, "heic", quality=-1, chroma=444, icc_profile=profile))[1], plain)


def test_without_the_extra_it_is_named_with_what_reads_it() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'pillow_heif' else find(name, *rest)\n"
        "from altalign.filters import pixels\n"
        f"print(pixels.decode({FIRST_BYTES!r}, pixels_at_most=9, colour=True).damage)\n"
    )
    told = subprocess.run([sys.executable, "-c", program, "."], capture_output=True, text=True, check=True).stdout
    assert told.startswith("HEIC, which is not read; convert it to JPEG or PNG with pillow-heif or heif-convert, or")


@needs_heif
def test_what_only_begins_as_one_is_damaged() -> None:
    found = decoded(FIRST_BYTES)
    assert (found.format, found.width, found.pixels) == ("heic", None, None)
    assert found.damage
