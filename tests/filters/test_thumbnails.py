"""Thumbnails against exact fractions, and what they are at any size."""

import hashlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from altalign.filters.pixels import gray
from altalign.filters.thumbnails import SIDE_PX, thumbnail
from tests.support.pictures import picture

derandomized = settings(derandomize=True, deadline=None, max_examples=15)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width), np.uint8)


def lengths(side: int) -> list[dict[int, int]]:
    """Of each of 32 parts of a side, how much of each pixel lies in it, in 1/32 of a pixel: a part is `side` long."""
    ends = [(part * side, (part + 1) * side) for part in range(32)]
    return [
        {i: common for i in range(side) if (common := min(end, 32 * i + 32) - max(begin, 32 * i)) > 0}
        for begin, end in ends
    ]


def by_area(pixels: np.ndarray) -> list[list[int]]:
    height, width = pixels.shape
    value = pixels.tolist()

    def mean(down: dict[int, int], across: dict[int, int]) -> int:
        total = sum(a * b * value[y][x] for y, a in down.items() for x, b in across.items())
        return int(Fraction(total, height * width) + Fraction(1, 2))

    return [[mean(down, across) for across in lengths(width)] for down in lengths(height)]


@given(st.integers(1, 70), st.integers(1, 70), st.integers(0, 9))
@derandomized
def test_a_thumbnail_is_the_mean_by_area_in_exact_fractions(height: int, width: int, seed: int) -> None:
    pixels = noise(height, width, seed)
    assert thumbnail(pixels).tolist() == by_area(pixels)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 9))
@derandomized
def test_mirrored_and_turned_images_have_mirrored_and_turned_thumbnails(height: int, width: int, seed: int) -> None:
    pixels = noise(height, width, seed)
    assert np.array_equal(thumbnail(pixels[:, ::-1]), thumbnail(pixels)[:, ::-1])
    assert np.array_equal(thumbnail(np.rot90(pixels)), np.rot90(thumbnail(pixels)))


@pytest.mark.parametrize("value", [0, 1, 127, 255])
@pytest.mark.parametrize("shape", [(1, 1), (31, 33), (32, 32), (1000, 7), (3, 65_500)])
def test_one_colour_stays_it(shape: tuple[int, int], value: int) -> None:
    assert (thumbnail(np.full(shape, value, np.uint8)) == value).all()


def test_halves_round_up() -> None:
    stripes = np.tile(np.array([[0, 1], [0, 1]], np.uint8), (32, 32))
    assert (thumbnail(stripes) == 1).all()


def test_it_is_the_box_filter_of_pillow_to_within_its_rounding() -> None:
    for size in ((320, 240), (171, 128), (1000, 301)):
        pixels = gray(np.asarray(picture(*size)))
        theirs = np.asarray(Image.fromarray(pixels).resize((SIDE_PX, SIDE_PX), Image.Resampling.BOX))
        assert np.abs(thumbnail(pixels).astype(int) - theirs).max() <= 2


def test_every_machine_has_these_bytes() -> None:
    y, x = np.mgrid[:211, :307]
    pixels = ((x * x * 7 + y * 13 + x * y) % 256).astype(np.uint8)
    assert hashlib.sha256(thumbnail(pixels).tobytes()).hexdigest()[:16] == "6531a48f75b78b5e"


@pytest.mark.parametrize(
    "wrong", [np.zeros((3, 3, 3), np.uint8), np.zeros((3, 3), np.int16), np.zeros((0, 3), np.uint8)]
)
def test_what_is_no_gray_image_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"uint8 of shape \(height, width\), this is"):
        thumbnail(wrong)
