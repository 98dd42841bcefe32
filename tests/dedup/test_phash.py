"""Hashes against the package imagehash, bit by bit."""

import imagehash
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from altalign.dedup.phash import lanczos_thumbnail, phash
from altalign.filters.pixels import decode, gray
from tests.filters.pictures import picture
from tests.shared_data import SHARED, needs_shared

derandomized = settings(derandomize=True, deadline=None, max_examples=60)


def ours(pixels: np.ndarray) -> np.ndarray:
    return phash(lanczos_thumbnail(pixels)[np.newaxis])[0]


def theirs(pixels: np.ndarray) -> np.ndarray:
    return imagehash.phash(Image.fromarray(pixels)).hash.ravel()


def noise(height: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width), np.uint8)


@given(st.integers(2, 200), st.integers(2, 200), st.integers(0, 99))
@derandomized
def test_bits_are_those_of_imagehash_at_any_size(height: int, width: int, seed: int) -> None:
    # Not of one row or column: most of its frequencies are 0, and imagehash's bits rounding errors.
    pixels = noise(height, width, seed)
    assert np.array_equal(ours(pixels) > 0, theirs(pixels))


@pytest.mark.parametrize("size", [(320, 240), (32, 32), (33, 700), (1000, 300), (640, 480)])
def test_bits_of_smooth_pictures_are_those_of_imagehash(size: tuple[int, int]) -> None:
    pixels = gray(np.asarray(picture(*size)))
    assert np.array_equal(ours(pixels) > 0, theirs(pixels))


@needs_shared
@pytest.mark.parametrize("name", ["clothing", "openclipart"])
def test_bits_of_real_images_are_those_of_imagehash(name: str) -> None:
    compared = 0
    for data in pq.read_table(SHARED / f"{name}.parquet", columns=["image_bytes"])["image_bytes"].to_pylist()[::40]:
        pixels = decode(data, pixels_at_most=10**8, colour=False).pixels
        assert pixels is not None
        if lanczos_thumbnail(pixels).std() >= 10:
            assert np.array_equal(ours(pixels) > 0, theirs(pixels))
            compared += 1
    assert compared >= 90


def test_a_batch_has_the_rows_of_its_images_and_cosines_tell_the_distance() -> None:
    images = [noise(60, 50, 1), noise(60, 50, 2), gray(np.asarray(picture()))]
    hashes = phash(np.stack([lanczos_thumbnail(pixels) for pixels in images]))
    assert hashes.dtype == np.int16
    assert [row.tolist() for row in hashes] == [ours(pixels).tolist() for pixels in images]
    assert set(np.unique(hashes)) == {-1, 1}
    distance = imagehash.phash(Image.fromarray(images[0])) - imagehash.phash(Image.fromarray(images[1]))
    assert hashes[0] @ hashes[1] / 64 == 1 - distance / 32
    assert phash(np.zeros((0, 32, 32), np.uint8)).shape == (0, 64)


def in_floats(luma: np.ndarray) -> np.ndarray:
    x = np.arange(32)
    cosines = np.cos((2 * x + 1) * np.arange(8)[:, np.newaxis] * np.pi / 64)
    return (cosines @ luma.astype(np.float64) @ cosines.T).reshape(64)


@given(st.integers(0, 10_000), st.integers(1, 255))
@derandomized
def test_bits_are_those_above_the_median_in_floats(seed: int, levels: int) -> None:
    luma = np.random.default_rng(seed).integers(0, levels, (32, 32), np.uint8, endpoint=True)
    frequencies = in_floats(luma)
    is_clear = np.abs(frequencies - np.median(frequencies)) > 1e-3
    assert np.array_equal((phash(luma[np.newaxis])[0] > 0)[is_clear], (frequencies > np.median(frequencies))[is_clear])
    assert is_clear.sum() >= 62


def test_equal_frequencies_are_decided_by_whole_numbers() -> None:
    """A picture like its mirror image: half of its frequencies are 0, and so is the median or beside it."""
    half = noise(32, 16, 3)
    bits = phash(np.hstack([half, half[:, ::-1]])[np.newaxis])[0].reshape(8, 8)
    assert len(set(bits[:, 1::2].ravel().tolist())) == 1
    assert (phash(np.zeros((1, 32, 32), np.uint8)) == -1).all()
    only_the_mean = np.full((8, 8), -1)
    only_the_mean[0, 0] = 1
    assert np.array_equal(phash(np.full((1, 32, 32), 200, np.uint8))[0].reshape(8, 8), only_the_mean)


@pytest.mark.parametrize(
    "wrong", [np.zeros((2, 31, 32), np.uint8), np.zeros((32, 32), np.uint8), np.zeros((2, 32, 32), np.int16)]
)
def test_what_are_no_thumbnails_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"uint8 of shape \(n, 32, 32\), these are"):
        phash(wrong)
