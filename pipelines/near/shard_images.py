"""Descriptors of the images in the shards of a finished run: clusters of them, and which are near to which.

`altalign score RUN --clusters 100` sorts the images into clusters, by k-means of embeddings:

    RUN/clusters/NNNNN.parquet   key, cluster: a row a sample, in the order of the shard
    RUN/clusters/clusters.json   what they were made of, and their sizes; written last

Images are the cases, whatever number of captions they have. The centroids are of the images with the smallest ids,
which are hashes: neither threads nor the sizes of shards change the result.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage, terminal
from altalign.data.audit_tables import GALLERY, SAMPLES
from altalign.data.schema import CLUSTER
from altalign.data.stages import damaged, own_files
from altalign.dedup import clusters, dot_products, image_groups
from altalign.dedup.near_duplicates import TestSide, find_pairs
from altalign.errors import UsageError
from altalign.filters import pixels
from altalign.machine import interrupts
from altalign.machine.cores import cores
from altalign.machine.threads import in_threads
from altalign.pipelines.images import embedders
from altalign.pipelines.images.embedders import Embedder
from altalign.pipelines.near import index
from altalign.pipelines.run.units import content
from altalign.settings.curate import DecontaminateSettings
from altalign.storage import parquet

Vector = npt.NDArray[np.int16]
Test = tuple[str, str]  # a test image: its set, and its name there

_ANY_NUMBER = 2**62  # of pixels: curation's own limit was kept
_COLUMNS = ["key", "image_id", "tar_offset", "tar_bytes"]
_IMAGES_AT_ONCE = 4_096


class ShardImage(NamedTuple):
    """An image in a shard, or a picture that galleries show: all that is left of what was dropped, or a test image."""

    image_id: Any  # a string; a `Test` of a test image
    tar: str = ""
    offset: int = 0
    size: int = 0
    shown: bytes = b""

    def read(self) -> bytes:
        """Its bytes."""
        return self.shown or storage.read_range(self.tar, self.offset, self.size)


def stems_of(folder: str) -> list[str]:
    """Names of the shards of a finished run, without `.tar`; a UsageError where it is none."""
    storage.check(folder)
    path = storage.join(folder, "manifest.json")
    with own_files(folder):
        manifest = storage.read_json(path) if storage.kind(folder) == "folder" else {}
    if not manifest:
        raise UsageError(f"{folder}: no finished run (it has no manifest.json); give the [run] folder of a curation")
    try:
        return [str(shard["name"]).removesuffix(".tar") for shard in manifest["shards"]]
    except (KeyError, TypeError) as error:
        raise damaged(folder, path, f"no manifest of shards: {type(error).__name__} {error}") from None


def rows_of(folder: str, stem: str) -> tuple[list[str], list[ShardImage]]:
    """Keys and images of the samples of a shard, in their order."""
    tar, path = (storage.join(folder, "shards", f"{stem}.{suffix}") for suffix in ("tar", "parquet"))
    try:
        table = pq.read_table(pa.BufferReader(storage.read_bytes(path)), columns=_COLUMNS)
    except pa.ArrowException as error:
        raise damaged(folder, path, f"cannot be read as Parquet ({error})") from None
    rows = cast(list[dict[str, Any]], table.to_pylist())
    images = [ShardImage(row["image_id"], tar, row["tar_offset"], row["tar_bytes"]) for row in rows]
    return [row["key"] for row in rows], images


class Vectors:
    """What an embedder makes of the images of a run: int16[dimensions] each; zeros of one that is flat.

    The map of `dct` is learned from the first images and copies of them, as decontamination does.
    """

    def __init__(self, embedder: Embedder, images: Sequence[ShardImage]) -> None:
        self._embedder = embedder
        self._mapped: Callable[[Vector], Vector] = lambda features: features
        self._dimensions = embedder.dimensions
        if embedder.is_mapped:
            training = images[: index.TRAINING_IMAGES]
            learned = index.map_of(in_threads(lambda image: index.views(image.read()), training, cores()))
            self._mapped, self._dimensions = learned.embed, learned.dimensions

    def each(self, images: Sequence[ShardImage]) -> list[Vector]:
        """Vectors of images."""
        return in_threads(self._vector, images, cores())

    def _vector(self, image: ShardImage) -> Vector:
        px, colour = self._embedder.short_side_px, self._embedder.colour
        decoded = pixels.decode(image.read(), pixels_at_most=_ANY_NUMBER, colour=colour, short_side_px=px)
        features = None if decoded.pixels is None else self._embedder.features(decoded.pixels)
        if features is None:
            return np.zeros(self._dimensions, np.int16)
        return self._mapped(features[np.newaxis])[0]


def first_images(folder: str, stems: list[str], at_most: int) -> list[ShardImage]:
    """The images with the smallest ids, in their order."""
    first: dict[str, ShardImage] = {}
    for stem in stems:
        first |= {image.image_id: image for image in rows_of(folder, stem)[1]}
        if len(first) > 2 * at_most:
            first = {name: first[name] for name in sorted(first)[:at_most]}
    return [first[name] for name in sorted(first)[:at_most]]


# Clusters -------------------------------------------------------------------------------------------------------------


def cluster(folder: str, *, k: int, embedder: str) -> int:
    """Write the cluster of every sample of a run; returns the exit code."""
    folder = folder.rstrip("/") or "/"
    chosen = DecontaminateSettings.from_values({"embedder": embedder}, where="--embedder")
    stems = stems_of(folder)
    manifest = sha256(storage.read_bytes(storage.join(folder, "manifest.json"))).hexdigest()
    try:
        loaded = embedders.load(embedder)
    except UsageError as error:
        named = f'[decontaminate] embedder = "{embedder}"'
        raise UsageError(str(error).replace(named, f"--embedder {embedder}")) from None
    with own_files(folder), storage.locked(folder), terminal.stderr().status("looking at a sample") as status:
        storage.delete(storage.join(folder, "clusters"))
        count = clusters.SAMPLES_PER_CLUSTER * k
        first = first_images(folder, stems, 2 * count)  # some have no structure, and so no direction
        vector_of = Vectors(loaded, first)
        sample = {image.image_id: vector for image, vector in zip(first, vector_of.each(first), strict=True)}
        directions = [vector for vector in sample.values() if vector.any()]
        if not directions:
            raise UsageError(f"{folder}: {embedder} sees no structure in any of its images; give another --embedder")
        centroids = clusters.train(np.stack(directions[:count]), k)
        sizes, flat = np.zeros(len(centroids), np.int64), 0
        for number, stem in enumerate(stems):
            status.update(f"{number:,} of {len(stems):,} shards are sorted")
            places, flat_images = _write(folder, stem, centroids, vector_of, sample)
            sizes += np.bincount(places, minlength=len(centroids))
            flat += flat_images
        facts = {
            "manifest_sha256": manifest,
            "embedder": embedder,
            "embedder_files": {path: content(path) for path in chosen.embedder_files},
            "k": k,
            "clusters": len(centroids),
            "pairs": sizes.tolist(),
            "flat_images": flat,
        }
        storage.write_json(storage.join(folder, "clusters", "clusters.json"), facts)
    made = terminal.many(len(centroids), "cluster")
    fewer = f" instead of {k:,} (each needs {clusters.SAMPLES_PER_CLUSTER} images)" if len(centroids) < k else ""
    without = f"; {flat:,} images without structure are in the first" if flat else ""
    where = terminal.shown(storage.join(folder, "clusters"))
    line = f"{made}{fewer} of {sizes.min():,} to {sizes.max():,} pairs in {where}{without}"
    terminal.stdout().print(line, soft_wrap=True)
    return 0


def _write(
    folder: str, stem: str, centroids: Vector, vector_of: Vectors, known: Mapping[str, Vector]
) -> tuple[npt.NDArray[np.int32], int]:
    """Write the clusters of a shard's samples, int32[n]; returns them, and how many images have no direction."""
    keys, images = rows_of(folder, stem)
    distinct = list({image.image_id: image for image in images}.values())
    missing = [image for image in distinct if image.image_id not in known]
    made = {image.image_id: vector for image, vector in zip(missing, vector_of.each(missing), strict=True)}
    vectors = np.stack([known[i.image_id] if i.image_id in known else made[i.image_id] for i in distinct])
    nearest = dot_products.largest(vectors, centroids, 1)[0][:, 0]
    place = {image.image_id: number for image, number in zip(distinct, nearest, strict=True)}
    places = np.array([place[image.image_id] for image in images], np.int32)
    with storage.write(storage.join(folder, "clusters", f"{stem}.parquet")) as file:
        pq.write_table(pa.table([keys, places], schema=CLUSTER), file, compression="zstd")
    return places, int((~vectors.any(axis=1)).sum())


# Images near to others, by the same descriptors and cosines as decontamination ---------------------------------------


def near(
    run_folder: str, image_ids: frozenset[str], *, embedder: str, above: float
) -> tuple[frozenset[str], frozenset[Test]]:
    """The images whose cosine with one of these is above a threshold, and the test images.

    All images in the shards are decoded, and all pictures in the galleries. An image without structure has no
    direction, and is near to none.
    """
    stems = stems_of(run_folder)
    vector_of = Vectors(embedders.load(embedder), first_images(run_folder, stems, index.TRAINING_IMAGES))
    shown = list(_shown(run_folder))
    every = chain([shown], _images(run_folder, stems))
    given = [image for images in every for image in images if image.image_id in image_ids]
    if not given:
        return frozenset(), frozenset()
    side = TestSide.build(np.stack(vector_of.each(given)), above=above)
    names = set[str | Test]()
    for images in chain([shown] if shown else [], _images(run_folder, stems)):
        interrupts.check()
        pairs = find_pairs(np.stack(vector_of.each(images)), side, above=above)
        names |= {images[row].image_id for row in np.unique(pairs.rows).tolist()}
    tests = frozenset(name for name in names if not isinstance(name, str))
    return frozenset(name for name in names if isinstance(name, str)), tests


def _shown(run_folder: str) -> Iterator[ShardImage]:
    for table, columns in ((SAMPLES, ("picture",)), (GALLERY, ("image", "test"))):
        if storage.exists(path := storage.join(run_folder, *table.path.split("/"))):
            for row in parquet.read_table(path).to_pylist():
                for column in filter(row.get, columns):
                    name = (row["test_set"], row["test_image"]) if column == "test" else row["image_id"]
                    yield ShardImage(name, shown=row[column])


def groups(run_folder: str, *, embedder: str, above: float) -> dict[str, str]:
    """Images that are near to another one or have its bytes, each with the smallest image_id that it is connected to.

    Every image is compared with every other: the cost grows with the square of their number.
    """
    stems = stems_of(run_folder)
    images = {image.image_id: image for some in _images(run_folder, stems) for image in some}
    if not images:
        return {}
    vector_of = Vectors(embedders.load(embedder), first_images(run_folder, stems, index.TRAINING_IMAGES))
    vectors = np.stack(vector_of.each(list(images.values())))
    near_pairs = find_pairs(vectors, TestSide.build(vectors, above=above), above=above)
    ids, first, same = np.array(list(images)), dict[str, str](), list[tuple[str, str]]()
    for stem in stems:
        rows = parquet.read_table(storage.join(run_folder, "shards", f"{stem}.parquet"), ["image_id", "sha256"])
        for image, digest in zip(parquet.values(rows, "image_id"), parquet.values(rows, "sha256"), strict=True):
            same.append((image, first.setdefault(digest, image)))
    one, other = np.array(same).T
    left, right = np.concatenate([ids[near_pairs.rows], one]), np.concatenate([ids[near_pairs.tests], other])
    goes, stays = image_groups.replaced(left, right)
    return dict(zip(goes.tolist(), stays.tolist(), strict=True))


def _images(run_folder: str, stems: list[str]) -> Iterator[list[ShardImage]]:
    """The distinct images of the shards, some thousands at a time."""
    waiting: dict[str, ShardImage] = {}
    for stem in stems:
        waiting |= {image.image_id: image for image in rows_of(run_folder, stem)[1]}
        if len(waiting) >= _IMAGES_AT_ONCE:
            yield list(waiting.values())
            waiting = {}
    if waiting:
        yield list(waiting.values())
