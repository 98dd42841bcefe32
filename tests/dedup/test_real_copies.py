"""Pixels to vectors on real images: copies that must be found, pairs that people labelled, and what this descriptor is
known to miss.
"""

from collections.abc import Iterable

import imagehash
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.dedup.copies import TRANSFORMS, copies_of
from altalign.dedup.embed import Map, dct_coefficients, learn_map, mirrored
from altalign.dedup.thresholds import recall_by_transform
from altalign.filters.pixels import decode, gray
from altalign.filters.thumbnails import thumbnail
from tests.shared_data import SHARED, needs_shared

pytestmark = needs_shared

LEARNED, COPIED, COMPARED = 40, 30, 400
RECODED = [
    "jpeg 75",
    "jpeg 30",
    "half the size",
    "64 px",
    "width x 0.85",
    "brightness -20 %",
    "contrast x 0.7",
    "grey",
    "saturation x 1.6",
    "blur",
    "noise",
]


def pixels_of(data: bytes) -> npt.NDArray[np.uint8] | None:
    return decode(data, pixels_at_most=10**8, colour=True, short_side_px=256).pixels


def clothes() -> list[npt.NDArray[np.uint8]]:
    files = pq.read_table(SHARED / "clothing.parquet", columns=["image_bytes"])["image_bytes"].to_pylist()
    return [pixels for data in files[:: len(files) // COMPARED][:COMPARED] if (pixels := pixels_of(data)) is not None]


def coefficients_of(images: Iterable[npt.NDArray[np.uint8]]) -> npt.NDArray[np.int16]:
    coefficients, is_flat = dct_coefficients(np.stack([thumbnail(gray(pixels)) for pixels in images]))
    assert not is_flat.any()
    return coefficients


def cosines(a: npt.NDArray[np.int16], b: npt.NDArray[np.int16]) -> npt.NDArray[np.float64]:
    wide, other = a.astype(np.float64), b.astype(np.float64)
    return (wide * other).sum(axis=-1) / np.sqrt((wide**2).sum(axis=-1) * (other**2).sum(axis=-1))


@pytest.fixture(scope="module")
def photographs() -> list[npt.NDArray[np.uint8]]:
    return clothes()


@pytest.fixture(scope="module")
def learned(photographs: list[npt.NDArray[np.uint8]]) -> Map:
    copies = coefficients_of(copy for pixels in photographs[:LEARNED] for _, copy in copies_of(pixels))
    return learn_map(coefficients_of(photographs[:LEARNED]), copies, np.repeat(np.arange(LEARNED), len(TRANSFORMS)))


def test_copies_are_found_that_should_be_and_crops_are_known_to_be_lost(
    photographs: list[npt.NDArray[np.uint8]], learned: Map
) -> None:
    unseen = photographs[LEARNED : LEARNED + COPIED]
    made = [copy for pixels in unseen for copy in copies_of(pixels)]
    originals = np.repeat(learned.embed(coefficients_of(unseen)), len(TRANSFORMS), axis=0)
    found = recall_by_transform(
        [name for name, _ in made],
        cosines(learned.embed(coefficients_of(copy for _, copy in made)), originals),
        similarity_above=0.975,
    )
    assert all(found[name].value >= 0.95 for name in RECODED)
    assert found["crop 20 %"].hits == found["letterbox 10 %"].hits == 0


def test_it_finds_more_than_phash_where_neither_is_wrong(
    photographs: list[npt.NDArray[np.uint8]], learned: Map
) -> None:
    """At the threshold above which no two photographs are taken for one."""
    others = photographs[LEARNED:]
    made = [copy for pixels in others[:COPIED] for _, copy in copies_of(pixels)]
    bits = [
        np.stack([imagehash.phash(Image.fromarray(gray(pixels))).hash.ravel() for pixels in images]) * 2.0 - 1
        for images in (others, made)
    ]
    recall = []
    for vectors, copies in (
        (learned.embed(coefficients_of(others)), learned.embed(coefficients_of(made))),
        (bits[0], bits[1]),
    ):
        lengths = np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=1))
        unrelated = (vectors.astype(np.float64) @ vectors.T.astype(np.float64)) / np.outer(lengths, lengths)
        above = unrelated[np.triu_indices(len(vectors), 1)].max() + 1e-9
        recall.append((cosines(copies, np.repeat(vectors[:COPIED], len(TRANSFORMS), axis=0)) > above).mean())
    assert recall[0] > recall[1] + 0.05
    assert recall[0] > 0.6


def test_labelled_pairs_are_told_apart(learned: Map) -> None:
    files = pq.read_table(SHARED / "near_duplicates_images.parquet").to_pydict()
    decoded = {name: pixels_of(data) for name, data in zip(files["image"], files["image_bytes"], strict=True)}
    names = [name for name, pixels in decoded.items() if pixels is not None]
    coefficients = coefficients_of(pixels for pixels in decoded.values() if pixels is not None)
    vectors = dict(zip(names, learned.embed(coefficients), strict=True))
    in_a_mirror = dict(zip(names, learned.embed(mirrored(coefficients)), strict=True))
    pairs = pq.read_table(SHARED / "near_duplicates_pairs.parquet").to_pylist()
    broken = [pair for pair in pairs if pair["image_a"] not in vectors or pair["image_b"] not in vectors]
    assert all("_corrupt" in pair["image_a"] + pair["image_b"] for pair in broken)
    assert len(broken) == 2
    sound = [pair for pair in pairs if pair not in broken]
    plain = np.array([cosines(vectors[pair["image_a"]], vectors[pair["image_b"]]) for pair in sound])
    mirror = np.array([cosines(vectors[pair["image_a"]], in_a_mirror[pair["image_b"]]) for pair in sound])
    is_turned = np.array(["flip" in pair["how"] or "rotat" in pair["how"] for pair in sound])
    is_related = np.array([pair["relation"] == "related" for pair in sound])
    assert (~is_turned & ~is_related).sum() == 27
    assert ((plain > 0.975)[~is_turned] == ~is_related[~is_turned]).all()
    assert plain[is_related].max() < 0.6
    assert (plain[is_turned] < 0.975).all()
    is_flipped = np.array(["flip" in pair["how"] for pair in sound])
    assert is_flipped.sum() == 2
    assert mirror[is_flipped].min() > 0.99
