"""Near-duplicates within the pool: in each group of similar images, the one with the smallest image_id stays.

This is not in ALIGN, and off unless `[dedup] within_pool` asks for it. Vectors are grouped by cell, never the bytes of
images. Joining a cell finds pairs, and the pairs of all cells make the groups (`dedup.image_groups`). Exact copies are
found by their bytes, flat ones too. An image that goes because of a test image is compared with no other, for an image
that replaces others has to stay itself.
"""

from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.pvalue import PCollection

from altalign import storage
from altalign.dedup import clusters, image_groups
from altalign.dedup.clusters import nearest_clusters
from altalign.machine import interrupts
from altalign.pipelines.engine.map_units import pooled
from altalign.pipelines.engine.spilled_groups import Element, Groups, MergePartitions, Spilled, SpillWriter, elements
from altalign.pipelines.near.index import calibration_of
from altalign.pipelines.run import image_tables as tables
from altalign.pipelines.run.units import Run, Unit, map_unit
from altalign.storage import arrays

# There are at least so many units where each has at most so many fetch units: slices of cells are short, and larger
# units make fewer of them.
UNITS, FETCH_UNITS_AT_MOST = 256, 64
OWN, VISITORS, BYTES = range(3)  # kinds of slices

# An image's number rises with its image_id: the place of its fetch unit in their order, then its own place in the unit.
_PLACE_BITS = 32
_IMAGE = [("number", "<i8"), ("key", "u1", 16)]  # key: that of the image's first pair
_DIGEST = np.dtype([*_IMAGE, ("sha256", "u1", 32)])

Numbers = npt.NDArray[np.int64]  # int64[n]
Rows = npt.NDArray[np.void]  # n rows of one of the dtypes above

# the numbers of the images in a fetch unit, given by its name, that go because of a test image
Gone = Callable[[Run, str], Numbers]


def is_searched(run: Run) -> bool:
    """Whether near-duplicates are looked for within the pool."""
    return run.config.dedup.within_pool != "off"


def make_cells(run: Run, _: Unit) -> tables.CellFacts:
    """Find the centroids of cells from a sample of the images that are not flat."""
    names, calibration = run.finished(tables.FETCHED.step), calibration_of(run)
    images = sum(len(tables.FEATURES.array(run, name, mapped=True)) for name in names)
    cells = max(1, round(images / image_groups.IMAGES_PER_CELL))
    # those of the first images in the order of image_id, a hash
    left, sample = clusters.SAMPLES_PER_CLUSTER * cells, [np.zeros((0, calibration.dimensions), np.int16)]
    for name in names:
        interrupts.check()
        vectors = calibration.vectors_or_zeros(tables.FEATURES.array(run, name))
        sample.append(vectors[vectors.any(axis=1)][:left])
        left -= len(sample[-1])
        if not left:
            break
    vectors = np.concatenate(sample)
    centroids = np.eye(1, vectors.shape[1], dtype=np.int16)
    if len(vectors):
        centroids = image_groups.train_cells(vectors, cells)
    tables.CENTROIDS_OF_CELLS.save(run, centroids)
    return tables.CellFacts(len(centroids))


def groups_of(run: Run) -> Groups:
    """The buckets of a spill file. A partition is a cell, and an equal share of all digests of bytes."""
    cells = run.facts_of(tables.CELLS, tables.ONLY).cells
    return Groups(1 << (cells - 1).bit_length(), kinds=3)


def plan(run: Run) -> list[tables.PoolImagesUnit]:
    """Units of several fetch units in a row."""
    names = run.finished(tables.FETCHED.step) if is_searched(run) else []
    size = max(1, min(FETCH_UNITS_AT_MOST, len(names) // UNITS))
    return [
        tables.PoolImagesUnit(name=f"{order:05d}", order=order, first=i, fetch_units=names[i : i + size])
        for order, i in enumerate(range(0, len(names), size))
    ]


class Compare(beam.PTransform[Any, Any]):
    """Units of images in, numbers of joined partitions out."""

    def __init__(self, run: Run, gone: Gone):
        super().__init__()
        self._run, self._gone, self._groups = run, gone, groups_of(run)

    def expand(self, input_or_inputs: PCollection[Any]) -> PCollection[Any]:
        """Scatter every unit to cells, join every cell."""
        scattered = pooled(self._run, self._scatter).with_output_types(tuple[int, bytes])
        spilled = input_or_inputs | "ScatterUnits" >> scattered
        return (spilled,) | "JoinCells" >> MergePartitions(self._run, tables.JOINED, self._groups, join)

    def _scatter(self, unit: tables.PoolImagesUnit) -> Iterator[Element]:
        facts = map_unit(self._run, tables.COMPARED, unit, lambda run, unit: scatter(run, unit, self._gone))
        path = tables.SPILLED_VECTORS.path(self._run, unit["name"])
        yield from elements(path, unit["order"], path, facts.spilled)


def scatter(run: Run, unit: tables.PoolImagesUnit, gone: Gone) -> tables.CompareFacts:
    """Scatter the images of a unit to their nearest cells and, as visitors, to the second nearest.

    Of images with equal bytes or vectors only the first is scattered; the others are noted as its pairs.
    """
    calibration, groups = calibration_of(run), groups_of(run)
    parts, vectors = [np.empty(0, _DIGEST)], [np.empty((0, calibration.dimensions), np.int16)]
    for place, name in enumerate(unit["fetch_units"], start=unit["first"]):
        interrupts.check()
        features = tables.FEATURES.array(run, name)
        numbers = np.setdiff1d(np.arange(len(features)), gone(run, name))
        kept = tables.kept_images(run, name).take(numbers)
        part = np.empty(len(numbers), _DIGEST)
        part["number"] = (place << _PLACE_BITS) + numbers
        part["key"], part["sha256"] = _unhexed(kept["key"], 16), _unhexed(kept["found_sha256"], 32)
        parts.append(part)
        vectors.append(calibration.vectors_or_zeros(features[numbers]))
    images, of_images = np.concatenate(parts), np.concatenate(vectors)
    by_bytes, same_bytes = _copies(images, images["sha256"])
    rows = by_bytes[of_images[by_bytes].any(axis=1)] if calibration.similarity_above < 1 else by_bytes[:0]
    by_vector, same_vector = _copies(images[rows], of_images[rows])
    rows = rows[by_vector]
    entries = np.empty(len(rows), _vector_dtype(calibration.dimensions))
    entries["number"], entries["key"] = images["number"][rows], images["key"][rows]
    entries["vector"] = of_images[rows]
    nearest = nearest_clusters(entries["vector"], tables.CENTROIDS_OF_CELLS.array(run), 2)
    shares = images["sha256"][by_bytes, :4].copy().view(">u4")[:, 0].astype(np.int64) * groups.partitions >> 32
    scattered = [(kind, cells, entries) for kind, cells in zip((OWN, VISITORS), nearest.T, strict=False)]
    with storage.write(tables.SPILLED_VECTORS.path(run, unit["name"])) as file:
        spill = SpillWriter(file, groups)
        for kind, partitions, to_spill in [*scattered, (BYTES, shares, images[by_bytes])]:
            order = np.argsort(partitions, kind="stable")
            for some in np.split(order, np.flatnonzero(np.diff(partitions[order])) + 1):
                if len(some):
                    spill.add(groups.bucket(int(partitions[some[0]]), kind), to_spill[some].tobytes())
        spilled = spill.finish()
    tables.PAIRS_OF_UNIT.save(run, np.concatenate([same_bytes, same_vector]), unit["name"])
    return tables.CompareFacts(spilled, len(images), len(same_bytes))


def _unhexed(column: "pa.ChunkedArray[Any]", size: int) -> npt.NDArray[np.uint8]:
    digits: list[Any] = column.to_pylist()
    return np.frombuffer(bytes.fromhex("".join(digits)), np.uint8).reshape(-1, size)


def _copies(images: Rows, rows: npt.NDArray[Any]) -> tuple[Numbers, Rows]:
    """The places of the images whose rows are the first of their kind, and a pair with that image for each other."""
    distinct, first = image_groups.originals(rows)
    copies = np.flatnonzero(first != np.arange(len(rows)))
    return distinct, _pairs(images, first[copies], copies, np.ones(len(copies)))


def _pairs(images: Rows, one: Numbers, other: Numbers, cosines: npt.NDArray[np.float64]) -> Rows:
    """The pairs (PAIR) of images at these places; the left one has the smaller number."""
    numbers, pairs = images["number"], np.empty(len(one), tables.PAIR)
    left, right = np.where(numbers[one] < numbers[other], (one, other), (other, one))
    pairs["left"], pairs["right"] = numbers[left], numbers[right]
    pairs["cosine"], pairs["key"] = cosines, images["key"][left]
    return pairs


def _vector_dtype(dimensions: int) -> "np.dtype[Any]":
    return np.dtype([*_IMAGE, ("vector", "<i2", dimensions)])


def join(run: Run, partition: int, spilled: Spilled) -> tables.JoinFacts:
    """Find the pairs of a cell and, by their bytes, those in a share of all digests."""
    calibration, groups = calibration_of(run), groups_of(run)
    with_vectors = _vector_dtype(calibration.dimensions)
    own, visitors = spilled.arrays([groups.bucket(partition, kind) for kind in (OWN, VISITORS)], with_vectors)
    near = image_groups.join(own["vector"], visitors["vector"], above=calibration.similarity_above)
    near = _pairs(np.concatenate([own, visitors]), *near)
    [digests] = spilled.arrays([groups.bucket(partition, BYTES)], _DIGEST)
    _, same_bytes = _copies(digests, digests["sha256"])
    tables.PAIRS_OF_CELL.save(run, np.concatenate([near, same_bytes]), f"{partition:05d}")
    return tables.JoinFacts(len(same_bytes), len(own))


def replace(run: Run, _: Unit) -> tables.ReplaceFacts:
    """Find the image that stays in each group, its first.

    This is the only step that has all pairs in memory, at most 180 bytes each.
    """
    files = [tables.PAIRS_OF_UNIT.path(run, name) for name in run.finished(tables.COMPARED.step)]
    files += [tables.PAIRS_OF_CELL.path(run, name) for name in run.finished(tables.JOINED.step)]
    left, right, cosines = (
        np.concatenate([np.zeros(0, tables.PAIR[name]), *(arrays.mapped(file)[name] for file in files)])
        for name in ("left", "right", "cosine")
    )
    goes, stays = image_groups.replaced(left, right)
    kept = np.empty(len(goes), tables.REPLACEMENT)
    numbers = np.unique(stays)
    keys = np.empty((len(numbers), 16), np.uint8)
    for pairs in map(arrays.read, files):  # an image that stays is the left one of all its pairs, which have its key
        places = np.minimum(np.searchsorted(numbers, pairs["left"]), len(numbers) - 1)
        is_of = numbers[places] == pairs["left"]
        keys[places[is_of]] = pairs["key"][is_of]
    kept["key"] = keys[np.searchsorted(numbers, stays)]
    # NaN where only other images connect the two
    kept["cosine"] = image_groups.cosines_with_staying(goes, stays, left, right, cosines)
    tables.REPLACED_IMAGES.save(run, goes)
    tables.REPLACED_BY.save(run, kept)
    return tables.ReplaceFacts(len(goes), len(np.unique(kept["key"], axis=0)))


def replaced_in(run: Run, place: int) -> tuple[Numbers, Rows]:
    """The rising numbers of the images in a fetch unit for which another stays, and `REPLACEMENT` for each.

    `place` is the place of the fetch unit in their order.
    """
    if not is_searched(run):
        return np.zeros(0, np.int64), np.zeros(0, tables.REPLACEMENT)
    goes, kept = (table.array(run, mapped=True) for table in (tables.REPLACED_IMAGES, tables.REPLACED_BY))
    begin, end = np.searchsorted(goes, [place << _PLACE_BITS, (place + 1) << _PLACE_BITS])
    return goes[begin:end] - (place << _PLACE_BITS), kept[begin:end]


def facts_of(run: Run) -> dict[str, int]:
    """Numbers on what was compared and found, for `found.json`."""
    compared = [facts for _, facts in run.all_facts(tables.COMPARED)]
    joined = [facts for _, facts in run.all_facts(tables.JOINED)]
    return {
        "cells": run.facts_of(tables.CELLS, tables.ONLY).cells,
        "largest_cell": max((facts.largest_cell for facts in joined), default=0),
        "images_compared": sum(facts.images for facts in compared),
        **run.facts_of(tables.REPLACED, tables.ONLY)._asdict(),
        "images_that_go_by_their_bytes": sum(facts.same_bytes for facts in [*compared, *joined]),
    }
