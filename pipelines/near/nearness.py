"""Which images of a run are near to some of its images: by the same descriptors and cosines as decontamination."""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from altalign import storage
from altalign.data.audit_tables import GALLERY, SAMPLES
from altalign.dedup.near_duplicates import TestSide, find_pairs
from altalign.machine import interrupts
from altalign.pipelines.images import embedders
from altalign.pipelines.near import cluster, learned
from altalign.pipelines.near.cluster import ShardImage, Vectors
from altalign.storage import parquet

_IMAGES_AT_ONCE = 4_096

Test = tuple[str, str]  # a test image: its set, and its name there


class _Shown(NamedTuple):
    """A picture of the galleries: all that is left of an image that was dropped."""

    image_id: str | Test
    data: bytes

    def read(self) -> bytes:
        return self.data


def near(
    run_folder: str, image_ids: frozenset[str], *, embedder: str, above: float
) -> tuple[frozenset[str], frozenset[Test]]:
    """The images whose cosine with one of these is above a threshold, and the test images.

    All images in the shards are decoded, and all pictures in the galleries. An image without structure has no
    direction, and is near to none.
    """
    stems = cluster.stems_of(run_folder)
    vector_of = Vectors(embedders.load(embedder))
    vector_of.learn(cluster.first_images(run_folder, stems, learned.TRAINING_IMAGES))
    shown = list(_shown(run_folder))
    there = chain([shown], _images(run_folder, stems))
    given = [image for images in there for image in images if image.image_id in image_ids]
    if not given:
        return frozenset(), frozenset()
    side = TestSide.build(np.stack(vector_of.each(given)), above=above)
    found = set[str | Test]()
    for images in chain([shown] if shown else [], _images(run_folder, stems)):
        interrupts.check()
        pairs = find_pairs(np.stack(vector_of.each(images)), side, above=above)
        found |= {images[row].image_id for row in np.unique(pairs.rows).tolist()}
    tests = frozenset(name for name in found if not isinstance(name, str))
    return frozenset(name for name in found if isinstance(name, str)), tests


def _shown(run_folder: str) -> Iterator[_Shown]:
    for table, columns in ((SAMPLES, ("picture",)), (GALLERY, ("image", "test"))):
        if storage.exists(path := storage.join(run_folder, *table.path.split("/"))):
            for row in parquet.read_table(path).to_pylist():
                for column in filter(row.get, columns):
                    is_test = column == "test"
                    yield _Shown((row["test_set"], row["test_image"]) if is_test else row["image_id"], row[column])


def groups(run_folder: str, *, embedder: str, above: float) -> dict[str, str]:
    """Images that are near to another one or have its bytes, each with the smallest image_id that it is connected to.

    Every image is compared with every other: the cost grows with the square of their number.
    """
    stems = cluster.stems_of(run_folder)
    vector_of = Vectors(embedders.load(embedder))
    vector_of.learn(cluster.first_images(run_folder, stems, learned.TRAINING_IMAGES))
    images = list({image.image_id: image for some in _images(run_folder, stems) for image in some}.values())
    if not images:
        return {}
    vectors = np.stack(vector_of.each(images))
    pairs = find_pairs(vectors, TestSide.build(vectors, above=above), above=above)
    first = list(range(len(images)))

    def root(place: int) -> int:
        while first[place] != place:
            first[place] = place = first[first[place]]
        return place

    numbers = {image.image_id: place for place, image in enumerate(images)}
    copies = ((numbers[one], numbers[other]) for one, other in _copies(run_folder, stems))
    for pair in (*zip(pairs.rows.tolist(), pairs.tests.tolist(), strict=True), *copies):
        smaller, larger = sorted(map(root, pair), key=lambda place: images[place].image_id)
        first[larger] = smaller
    return {image.image_id: images[root(place)].image_id for place, image in enumerate(images) if root(place) != place}


def _copies(run_folder: str, stems: list[str]) -> Iterator[tuple[str, str]]:
    """Yields images of the same bytes, each with the first of them."""
    first: dict[str, str] = {}
    for stem in stems:
        rows = parquet.read_table(storage.join(run_folder, "shards", f"{stem}.parquet"), ["image_id", "sha256"])
        for image, digest in zip(parquet.values(rows, "image_id"), parquet.values(rows, "sha256"), strict=True):
            yield image, first.setdefault(digest, image)


def _images(run_folder: str, stems: list[str]) -> Iterator[list[ShardImage]]:
    """The distinct images of the shards, some thousands at a time."""
    waiting: dict[str, ShardImage] = {}
    for stem in stems:
        waiting |= {image.image_id: image for image in cluster.rows_of(run_folder, stem)[1]}
        if len(waiting) >= _IMAGES_AT_ONCE:
            yield list(waiting.values())
            waiting = {}
    if waiting:
        yield list(waiting.values())
