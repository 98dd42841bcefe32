"""Descriptors of the images in the shards of a finished run: clusters of them, and which are near to which.

`altalign score RUN --clusters 100` sorts the images into clusters, by k-means of embeddings:

    RUN/clusters/NNNNN.parquet   key, cluster: a row a sample, in the order of the shard
    RUN/clusters/clusters.json   what they were made of, and their sizes; written last

Images are the cases, whatever number of captions they have. The centroids are of the images with the smallest ids,
which are hashes: neither threads nor the sizes of shards change the result.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage, terminal
from altalign.data.audit_tables import GALLERY, SAMPLES
from altalign.data.schema import CLUSTER
from altalign.data.stages import own_files
from altalign.dedup import clusters, dot_products, image_groups
from altalign.dedup.near_duplicates import Pairs, TestSide, find_pairs
from altalign.errors import UsageError
from altalign.filters import pixels
from altalign.machine import interrupts
from altalign.machine.cores import cores
from altalign.machine.threads import in_threads
from altalign.pipelines.images import embedders
from altalign.pipelines.images.calibration_files import Calibration
from altalign.pipelines.images.embedders import Embedder
from altalign.pipelines.near import index
from altalign.pipelines.run.units import content
from altalign.settings.curate import DecontaminateSettings
from altalign.storage import parquet

Vectors = npt.NDArray[np.int16]  # int16[n, d]
Test = tuple[str, str]  # a test image: its set, and its name there

_COMPARED_AT_A_TIME = 10_000  # images with all others
_ANY_NUMBER = 2**62  # of pixels: curation's own limit was kept
_COLUMNS = ["key", "image_id", "tar_offset", "tar_bytes"]


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
    with own_files(folder):
        manifest = storage.read_json(storage.join(folder, "manifest.json")) if storage.kind(folder) == "folder" else {}
    if not manifest:
        raise UsageError(f"{folder}: no finished run (it has no manifest.json); give the [run] folder of a curation")
    return [str(shard["name"]).removesuffix(".tar") for shard in manifest["shards"]]


def rows_of(folder: str, stem: str) -> tuple[list[str], list[ShardImage]]:
    """Keys and images of the samples of a shard, in their order."""
    tar, path = (storage.join(folder, "shards", f"{stem}.{suffix}") for suffix in ("tar", "parquet"))
    rows: list[dict[str, Any]] = parquet.read_table(path, _COLUMNS).to_pylist()
    images = [ShardImage(row["image_id"], tar, row["tar_offset"], row["tar_bytes"]) for row in rows]
    return [row["key"] for row in rows], images


def _images(folder: str, stems: list[str]) -> Iterator[list[ShardImage]]:
    """The distinct images of each shard that has some."""
    for stem in stems:
        if images := {image.image_id: image for image in rows_of(folder, stem)[1]}:
            yield list(images.values())


def _first_images(folder: str, stems: list[str], at_most: int) -> list[ShardImage]:
    """The images with the smallest ids, in their order."""
    first: dict[str, ShardImage] = {}
    for images in _images(folder, stems):
        first |= {image.image_id: image for image in images}
        first = {name: first[name] for name in sorted(first)[:at_most]}
    return list(first.values())


def vectors_by(embedder: Embedder, first: Sequence[ShardImage]) -> Callable[..., Vectors]:
    """A function from images to what an embedder makes of them; zeros of one that is flat.

    The map of `dct` is learned from the first images and copies of them, as decontamination does.
    """
    mapped = None
    if embedder.is_mapped:
        training = first[: index.TRAINING_IMAGES]
        bar = ("learning from", "images")
        mapped = index.map_of(in_threads(lambda image: index.views(image.read()), training, cores(), bar=bar))
    dimensions = mapped.dimensions if mapped else embedder.dimensions
    calibration = Calibration(embedder.name, 1.0, mapped, np.eye(1, dimensions, dtype=np.int16))

    def features_of(image: ShardImage) -> Vectors:
        px, colour = embedder.short_side_px, embedder.colour
        decoded = pixels.decode(image.read(), pixels_at_most=_ANY_NUMBER, colour=colour, short_side_px=px)
        features = None if decoded.pixels is None else embedder.features(decoded.pixels)
        return np.zeros(embedder.dimensions, np.int16) if features is None else features

    def vectors_of(images: Sequence[ShardImage], bar: tuple[str, str] | None = None) -> Vectors:
        features = np.array(in_threads(features_of, images, cores(), bar=bar), np.int16)
        return calibration.vectors_or_zeros(features.reshape(-1, embedder.dimensions))

    return vectors_of


def cluster(folder: str, *, k: int, embedder: str) -> int:
    """Write the cluster of every sample of a run; returns the exit code."""
    folder = folder.rstrip("/") or "/"
    out = storage.join(folder, "clusters")
    chosen = DecontaminateSettings.from_values({"embedder": embedder}, where="--embedder")
    stems, manifest = stems_of(folder), content(storage.join(folder, "manifest.json"))
    loaded = embedders.load(embedder)
    with own_files(folder), storage.locked(folder):
        storage.delete(out)
        count = clusters.SAMPLES_PER_CLUSTER * k
        first = _first_images(folder, stems, 2 * count)  # some have no structure, and so no direction
        vectors_of = vectors_by(loaded, first)
        sample = vectors_of(first, bar=("sampling", "images"))
        directions = sample[sample.any(axis=1)][:count]
        if not len(directions):
            raise UsageError(f"{folder}: {embedder} sees no structure in any of its images; give another --embedder")
        centroids = clusters.train(directions, k)
        sizes, flat = np.zeros(len(centroids), np.int64), 0
        for stem in terminal.followed(stems, "sorting", "shards"):
            keys, images = rows_of(folder, stem)
            distinct = {image.image_id: image for image in images}
            vectors = vectors_of([*distinct.values()])
            nearest = dot_products.largest(vectors, centroids, 1)[0][:, 0]
            place = dict(zip(distinct, nearest.tolist(), strict=True))
            places = np.array([place[image.image_id] for image in images], np.int32)
            with storage.write(storage.join(out, f"{stem}.parquet")) as file:
                pq.write_table(pa.table([keys, places], schema=CLUSTER), file, compression="zstd")
            sizes += np.bincount(places, minlength=len(centroids))
            flat += int((~vectors.any(axis=1)).sum())
        facts = {
            "manifest_sha256": manifest,
            "embedder": embedder,
            "embedder_files": {path: content(path) for path in chosen.embedder_files},
            "k": k,
            "clusters": len(centroids),
            "pairs": sizes.tolist(),
            "flat_images": flat,
        }
        storage.write_json(storage.join(out, "clusters.json"), facts)
    fewer = f" instead of {k:,} (each needs {clusters.SAMPLES_PER_CLUSTER} images)" if len(centroids) < k else ""
    made = f"{terminal.many(len(centroids), 'cluster')}{fewer} of {sizes.min():,} to {sizes.max():,} pairs"
    terminal.stdout().print(f"{made} in {terminal.shown(out)}", soft_wrap=True)
    return 0


def near(
    folder: str, image_ids: frozenset[str], *, embedder: str, above: float
) -> tuple[frozenset[str], frozenset[Test]]:
    """The images whose cosine with one of these is above a threshold, and the test images.

    All images in the shards are decoded, and all pictures in the galleries. An image without structure has no
    direction, and is near to none.
    """
    stems = stems_of(folder)
    vectors_of = vectors_by(embedders.load(embedder), _first_images(folder, stems, index.TRAINING_IMAGES))
    shown = list(_shown(folder))
    every = chain([shown], _images(folder, stems))
    given = [image for images in every for image in images if image.image_id in image_ids]
    if not given:
        return frozenset(), frozenset()
    side, names = TestSide.build(vectors_of(given), above=above), set[str | Test]()
    with terminal.progress_bar("comparing", len(stems) + 1, "shards") as advance:
        for images in chain([shown], _images(folder, stems)):
            interrupts.check()
            pairs = find_pairs(vectors_of(images), side, above=above)
            names |= {images[row].image_id for row in np.unique(pairs.rows).tolist()}
            advance()
    tests = frozenset(name for name in names if not isinstance(name, str))
    return frozenset(name for name in names if isinstance(name, str)), tests


def _shown(folder: str) -> Iterator[ShardImage]:
    """The pictures of galleries."""
    for table, columns in ((SAMPLES, ("picture",)), (GALLERY, ("image", "test"))):
        if storage.exists(path := storage.join(folder, *table.path.split("/"))):
            for row in parquet.read_table(path).to_pylist():
                for column in filter(row.get, columns):
                    name = (row["test_set"], row["test_image"]) if column == "test" else row["image_id"]
                    yield ShardImage(name, shown=row[column])


def groups(folder: str, *, embedder: str, above: float) -> dict[str, str]:
    """Images that are near to another one or have its bytes, each with the smallest image_id that it is connected to.

    Every image is compared with every other: the cost grows with the square of their number.
    """
    stems = stems_of(folder)
    images = {image.image_id: image for some in _images(folder, stems) for image in some}
    if not images:
        return {}
    first = [images[name] for name in sorted(images)[: index.TRAINING_IMAGES]]
    vectors = vectors_by(embedders.load(embedder), first)([*images.values()], bar=("describing", "images"))
    side, begins = TestSide.build(vectors, above=above), range(0, len(vectors), _COMPARED_AT_A_TIME)

    def near_of(begin: int) -> Pairs:
        found = find_pairs(vectors[begin : begin + _COMPARED_AT_A_TIME], side, above=above)
        return found._replace(rows=begin + found.rows)

    every = in_threads(near_of, begins, 1, bar=("comparing", "blocks"))
    near_pairs = Pairs(*map(np.concatenate, zip(*every, strict=True)))
    ids, same_bytes, same = np.array(list(images)), dict[str, str](), list[tuple[str, str]]()
    for stem in stems:
        rows = parquet.read_table(storage.join(folder, "shards", f"{stem}.parquet"), ["image_id", "sha256"])
        for image, digest in zip(parquet.values(rows, "image_id"), parquet.values(rows, "sha256"), strict=True):
            same.append((image, same_bytes.setdefault(digest, image)))
    one, other = np.array(same).T
    left, right = np.concatenate([ids[near_pairs.rows], one]), np.concatenate([ids[near_pairs.tests], other])
    goes, stays = image_groups.replaced(left, right)
    return dict(zip(goes.tolist(), stays.tolist(), strict=True))
