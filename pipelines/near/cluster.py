"""`altalign score RUN --clusters 100`: sorts the images of a finished run into clusters, by k-means of embeddings.

    RUN/clusters/NNNNN.parquet   key, cluster: a row a sample, in the order of the shard
    RUN/clusters/clusters.json   what they were made of, and their sizes; written last

Images are the cases, whatever number of captions they have. The centroids are of the images with the smallest ids,
which are hashes: neither threads nor the sizes of shards change the result.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage, terminal
from altalign.data.schema import CLUSTER
from altalign.data.stages import damaged, own_files
from altalign.dedup import clusters, dot_products
from altalign.errors import UsageError
from altalign.filters import pixels
from altalign.machine.cores import cores
from altalign.machine.threads import in_threads
from altalign.pipelines.images import embedders
from altalign.pipelines.images.embedders import Embedder
from altalign.pipelines.near import learned
from altalign.pipelines.run.units import content
from altalign.settings.curate import DecontaminateSettings

Vector = npt.NDArray[np.int16]

_ANY_NUMBER = 2**62  # of pixels: curation's own limit was kept
_COLUMNS = ["key", "image_id", "tar_offset", "tar_bytes"]


@dataclass(frozen=True)
class ShardImage:
    """Where the bytes of an image are."""

    image_id: str
    tar: str
    offset: int
    size: int

    def read(self) -> bytes:
        """Its bytes."""
        return storage.read_range(self.tar, self.offset, self.size)


def cluster(folder: str, *, k: int, embedder: str) -> int:
    """Write the cluster of every sample of a run; returns the exit code.

    Raises:
        UsageError: the folder is no finished run, or the embedder cannot be loaded.
        DamagedError: a shard is not as it was written.
    """
    folder = folder.rstrip("/") or "/"
    chosen = DecontaminateSettings.from_values({"embedder": embedder}, where="--embedder")
    stems = stems_of(folder)
    manifest = sha256(storage.read_bytes(storage.join(folder, "manifest.json"))).hexdigest()
    vector_of = Vectors(_loaded(embedder))
    with own_files(folder), storage.locked(folder), terminal.stderr().status("looking at a sample") as status:
        storage.delete(storage.join(folder, "clusters"))
        wanted = clusters.SAMPLES_PER_CLUSTER * k
        first = first_images(folder, stems, 2 * wanted)  # some have no structure, and so no direction
        vector_of.learn(first)
        sample = {image.image_id: vector for image, vector in zip(first, vector_of.each(first), strict=True)}
        directions = [vector for vector in sample.values() if vector.any()]
        if not directions:
            raise UsageError(f"{folder}: {embedder} sees no structure in any of its images; give another --embedder")
        centroids = clusters.train(np.stack(directions[:wanted]), k)
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
    terminal.stdout().print(_said(folder, facts), soft_wrap=True)
    return 0


def _said(folder: str, facts: Mapping[str, Any]) -> str:
    """What was made, in a line or two."""
    made, k, pairs = facts["clusters"], facts["k"], facts["pairs"]
    fewer = f" instead of {k:,} (each needs {clusters.SAMPLES_PER_CLUSTER} images)" if made < k else ""
    flat = f"; {facts['flat_images']:,} images without structure are in the first" if facts["flat_images"] else ""
    return (
        f"{made:,} cluster{'s' * (made != 1)}{fewer} of {min(pairs):,} to {max(pairs):,} pairs in "
        f"{terminal.shown(storage.join(folder, 'clusters'))}{flat}"
    )


def stems_of(folder: str) -> list[str]:
    """Names of the shards of a finished run, without `.tar`.

    Raises:
        UsageError: it is none.
    """
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


def _loaded(name: str) -> Embedder:
    try:
        return embedders.load(name)
    except UsageError as error:
        raise UsageError(str(error).replace(f'[decontaminate] embedder = "{name}"', f"--embedder {name}")) from None


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


def first_images(folder: str, stems: list[str], at_most: int) -> list[ShardImage]:
    """The images with the smallest ids, in their order."""
    found: dict[str, ShardImage] = {}
    for stem in stems:
        found |= {image.image_id: image for image in rows_of(folder, stem)[1]}
        if len(found) > 2 * at_most:
            found = {name: found[name] for name in sorted(found)[:at_most]}
    return [found[name] for name in sorted(found)[:at_most]]


class Vectors:
    """What an embedder makes of images; zeros of one that is flat."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._mapped: Callable[[Vector], Vector] = lambda features: features
        self._dimensions = embedder.dimensions

    def learn(self, images: list[ShardImage]) -> None:
        """Learn the map of `dct` from the first images and copies of them, as decontamination does."""
        if not self._embedder.is_mapped:
            return
        views = in_threads(lambda image: learned.views(image.read()), images[: learned.TRAINING_IMAGES], cores())
        made = learned.map_of(views)
        self._mapped, self._dimensions = made.embed, made.dimensions

    def each(self, images: Sequence[Any]) -> list[Vector]:
        """Vectors, int16[dimensions] each, of images that have a `read`."""
        return in_threads(self._of, images, cores())

    def _of(self, image: Any) -> Vector:
        px = self._embedder.short_side_px
        found = pixels.decode(image.read(), pixels_at_most=_ANY_NUMBER, colour=self._embedder.colour, short_side_px=px)
        features = None if found.pixels is None else self._embedder.features(found.pixels)
        if features is None:
            return np.zeros(self._dimensions, np.int16)
        return self._mapped(features[np.newaxis])[0]


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
