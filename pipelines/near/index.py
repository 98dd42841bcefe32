"""The index of test images: written once, and mapped into the memory of every worker. The pool is never shuffled."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.dedup.buckets import NEAREST, nearest_clusters
from altalign.dedup.near_duplicates import TestSide
from altalign.pipelines.images import calibration_files, measuring
from altalign.pipelines.images.calibration_files import Calibration
from altalign.pipelines.near import learned, test_images
from altalign.pipelines.near.test_images import features_of
from altalign.pipelines.run import outputs
from altalign.pipelines.run.image_tables import INDEX, INDEX_ARRAYS, ONLY, TEST_NAMES, IndexFacts
from altalign.pipelines.run.units import Run, Unit
from altalign.storage import arrays


def plan(run: Run) -> list[Unit]:
    """One unit where there are test sets, or none."""
    return [Unit(name=ONLY)] if run.config.decontaminate.test_sets else []


def build(run: Run, _: Unit) -> IndexFacts:
    """Embed the test images and write the index that the pool is searched for."""
    calibration, table = learned.calibration_of(run), test_images.table(run)
    of_test, vectors = _test_vectors(table, calibration, measuring.hooks_of(run.config).embedder.dimensions)
    side = TestSide.build(vectors, above=calibration.similarity_above)
    written = {
        **side.arrays(),
        "clusters": nearest_clusters(vectors, calibration.centroids, NEAREST),
        "test_of": of_test,
        "digests": np.array(
            sorted(zip(table["sha256"].to_pylist(), range(len(table)), strict=True)),
            dtype=[("sha256", "S64"), ("test", "<i4")],
        ),
    }
    for name, array in written.items():
        INDEX_ARRAYS.save(run, array, name)
    TEST_NAMES.write(run, table)
    return IndexFacts(len(table), table["features"].null_count)


def _test_vectors(
    table: pa.Table, calibration: Calibration, dimensions: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int16]]:
    """The image's number (int32[v]) and the vector (int16[v, d]) of every view of a test image that is not flat."""
    numbers, views = [], []
    for name in ("features", "mirrored"):
        has = table[name].is_valid().combine_chunks().to_numpy(zero_copy_only=False)
        numbers.append(np.flatnonzero(has))
        views.append(features_of(table[name].drop_null()) if has.any() else np.zeros((0, dimensions), np.int16))
    return np.concatenate(numbers).astype(np.int32), calibration.vectors(np.concatenate(views))


def names(run: Run) -> pa.Table:
    """Test set and name of every test image, of `TEST_NAME`."""
    return TEST_NAMES.read(run)


@dataclass(frozen=True, eq=False)
class Index:
    """What the pool is searched for, mapped into memory; one in a process.

    Attributes:
        calibration: what makes vectors, and which cosine is a near-duplicate's.
        side: a vector a view of a test image.
        clusters: int32[views, k], the nearest clusters of each.
        test_of: int32[views], the number of its test image.
        digests: SHA-256 (hex) of every test image and its number, sorted.
    """

    calibration: Calibration
    side: TestSide
    clusters: npt.NDArray[np.int32]
    test_of: npt.NDArray[np.int32]
    digests: npt.NDArray[np.void]

    @classmethod
    def of(cls, run: Run) -> "Index":
        """The index of a run."""
        folder = storage.absolute(run.work(INDEX.step))
        of_calibration = storage.absolute(outputs.near_duplicates(run))
        return _index(folder, of_calibration, storage.stamp(storage.join(folder, f"{ONLY}.json")))


@lru_cache(maxsize=1)
def _index(folder: str, of_calibration: str, _changed: storage.Stamp) -> Index:
    def mapped(name: str) -> npt.NDArray[Any]:
        return arrays.mapped(storage.join(folder, f"{name}.npy"))

    side = TestSide(*(mapped(name) for name in ("vectors", "norms", "rotation", "strips", "second")))
    return Index(calibration_files.load(of_calibration), side, mapped("clusters"), mapped("test_of"), mapped("digests"))
