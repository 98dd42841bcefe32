"""Copies: the same for the same image, of the sizes they should have, and near enough to be looked for."""

import numpy as np
import pytest
from PIL import Image

from altalign.dedup.copies import TRANSFORMS, copies_of
from altalign.dedup.embed import dct_coefficients
from altalign.filters.pixels import gray
from altalign.filters.thumbnails import thumbnail
from tests.support.pictures import picture

SIZES = {  # width and height of the copies of an image of 200 x 100; those not named have its own
    "half the size": (100, 50),
    "64 px": (64, 32),
    "crop 2 %": (196, 98),
    "crop 5 %": (190, 95),
    "crop 10 %": (180, 90),
    "crop 20 %": (160, 80),
    "width x 0.85": (170, 100),
    "width x 1.2": (240, 100),
    "white border 5 %": (220, 110),
    "black border 5 %": (220, 110),
    "letterbox 10 %": (200, 120),
    "mix": (136, 68),
}


def pixels_of(seed: int, width: int = 200, height: int = 100) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.asarray(
        Image.fromarray(random.integers(0, 256, (9, 9, 3), np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    )


def luma_of(pixels: np.ndarray) -> np.ndarray:
    return thumbnail(gray(pixels))


def test_there_are_28_with_names_of_their_own_and_the_sizes_they_should_have() -> None:
    made = list(copies_of(pixels_of(1)))
    assert [name for name, _ in made] == list(TRANSFORMS)
    assert len(made) == 28
    for name, copy in made:
        assert copy.dtype == np.uint8
        width, height = SIZES.get(name, (200, 100))
        assert copy.shape == (height, width, 3), name


def test_an_image_has_the_same_copies_every_time_and_another_one_others() -> None:
    first, again, other = (dict(copies_of(pixels_of(seed))) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in TRANSFORMS)
    assert not any(np.array_equal(first[name], other[name]) for name in TRANSFORMS)


def test_what_is_drawn_differs_from_image_to_image_and_from_transform_to_transform() -> None:
    """Crops are told by where they begin: by the pixels at their corner."""
    x = np.mgrid[:120, :250][1].astype(np.uint8)
    begins = []
    for seed in range(12):
        pixels = np.stack([x, x, np.full_like(x, seed)], axis=2)
        crops = {name: copy for name, copy in copies_of(pixels) if name.startswith("crop")}
        begins.append(tuple(int(copy[0, 0, 0]) for copy in crops.values()))
    assert len(set(begins)) > 8
    assert max(begin[3] for begin in begins) > 30 > 20 > min(begin[3] for begin in begins)
    assert all(begin[0] <= 5 and begin[3] <= 50 for begin in begins)


def test_every_transform_changes_a_coloured_image_and_leaves_it_a_likeness() -> None:
    original = np.asarray(picture(256, 192))
    luma = luma_of(original)
    for name, copy in copies_of(original):
        assert not np.array_equal(copy, original), name
        alike = np.corrcoef(luma.ravel(), luma_of(copy).ravel())[0, 1]
        assert alike > 0.9 or any(kind in name for kind in ("crop", "border", "letterbox", "turn", "mix", "caption")), (
            name
        )
        assert not dct_coefficients(luma_of(copy)[np.newaxis])[1][0]


def test_gray_copies_have_no_colour_and_the_luma_of_the_original() -> None:
    original = np.asarray(picture(256, 192))
    copy = dict(copies_of(original))["grey"]
    assert (copy[:, :, 0] == copy[:, :, 1]).all()
    assert (copy[:, :, 1] == copy[:, :, 2]).all()
    assert np.abs(luma_of(copy).astype(int) - luma_of(original)).max() <= 1


def test_borders_stand_around_the_unchanged_image() -> None:
    original = pixels_of(4)
    made = dict(copies_of(original))
    for name, colour in (("white border 5 %", 255), ("black border 5 %", 0)):
        assert np.array_equal(made[name][5:105, 10:210], original)
        assert (made[name][:5] == colour).all()
        assert (made[name][:, :10] == colour).all()
    assert np.array_equal(made["letterbox 10 %"][10:110], original)
    assert not made["letterbox 10 %"][110:].any()


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (2, 3), (7, 500)])
def test_the_smallest_images_have_copies_too(shape: tuple[int, int]) -> None:
    copies = [copy for _, copy in copies_of(np.full((*shape, 3), 90, np.uint8))]
    assert len(copies) == 28
    assert all(copy.size and copy.shape[2] == 3 for copy in copies)
