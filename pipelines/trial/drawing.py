"""Which images a trial fetches: of every class of hosts by size some, by a hash of image_id.

A larger sample has all of a smaller one of the same seed. Two passes over the survivors of `judge`: the first counts
the images of hosts, the second takes what is drawn.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.filters import identity
from altalign.machine import interrupts
from altalign.pipelines.files import arrays, parquet
from altalign.pipelines.run.artefacts.fetched import first_of_each_image
from altalign.pipelines.run.artefacts.judged import GROUPED, PLACED_SURVIVOR, GroupedPartition, GroupFacts, RowGroup
from altalign.pipelines.run.sampled import Sampled
from altalign.pipelines.run.units import Run, Unit, map_unit
from altalign.pipelines.trial.estimates import Drawn, Hosts, size_class
from altalign.pipelines.web.kept.log import host_of

ONLY = "00000"  # the partition of a sample
_IMAGES_PER_UNIT, _UNIT_BYTES = 2_048, 32 << 20
_SHARED_EVENLY = 4  # one image in so many goes to classes of hosts in equal parts, the others by their images
_HOSTS_WAITING = 1 << 22  # entries of partitions that are added up at a time
_ORIGIN = r"^(?P<origin>[A-Za-z][A-Za-z0-9+.-]*://[^/\\?#\s]+)"
_HOSTS = pa.schema([("name", pa.uint64()), ("images", pa.int64()), ("pairs", pa.int64())])

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


# Which images --------------------------------------------------------------------------------------------------------


def rates(pool: Hosts, wanted: int) -> Floats:
    """The rate for each of h hosts, float64[h], so that about `wanted` images are drawn; 1 where there are no more.

    A quarter goes to classes of hosts in equal parts, so that the rare ones are seen too.
    """
    classes = size_class(pool.images)
    there = np.bincount(classes, weights=pool.images)
    evenly = np.minimum(there, wanted / (_SHARED_EVENLY * max(1, np.count_nonzero(there))))
    left = there - evenly
    more = min(1.0, (wanted - evenly.sum()) / left.sum()) if left.any() else 0.0
    by_class = np.divide(evenly + more * left, there, out=np.zeros_like(there), where=there > 0)
    return by_class[classes]


def is_drawn(image_ids: npt.NDArray[np.uint8], at: Floats, seed: int) -> npt.NDArray[np.bool_]:
    """Which of n images (uint8[n, 16]) are drawn at these rates (float64[n]): bool[n].

    By the second half of the hash, from which nothing else is decided, after the finaliser of SplitMix64.
    """
    mixed = np.ascontiguousarray(image_ids[:, 8:]).view(">u8")[:, 0].astype(np.uint64)
    with np.errstate(over="ignore"):
        mixed += np.uint64(0x9E3779B97F4A7C15 * (seed + 1) % (1 << 64))
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) < at * 2.0**53


# Hosts ---------------------------------------------------------------------------------------------------------------


def hosts_of(urls: Any) -> Hashes:
    """A hash of the host of each of n URLs, uint64[n]; all images without one have the same."""
    found: Any = pc.extract_regex(urls.cast(pa.string()), pattern=_ORIGIN)
    origins: Any = pc.fill_null(pc.struct_field(found, "origin"), pa.scalar(""))
    encoded = (origins.combine_chunks() if isinstance(origins, pa.ChunkedArray) else origins).dictionary_encode()
    names = (host_of(origin).encode() for origin in encoded.dictionary.to_pylist())
    hashes = [int.from_bytes(blake2b(name, digest_size=8).digest(), "big") for name in names]
    return np.array(hashes, np.uint64)[encoded.indices.to_numpy(zero_copy_only=False)]


def count_hosts(run: Run) -> Hosts:
    """The hosts of all images that passed `judge`."""
    waiting, entries = list[Hosts](), 0
    for rows in _survivors(run, ["image_id", "image_url"]):
        first = first_of_each_image(rows)
        pairs = np.diff(np.r_[first, len(rows)])
        waiting.append(added(hosts_of(rows["image_url"].take(first)), np.ones(len(first), np.int64), pairs))
        entries += len(waiting[-1].names)
        if entries > _HOSTS_WAITING:
            waiting = [_together(waiting)]
            entries = 0
    return _together(waiting)


def _together(parts: list[Hosts]) -> Hosts:
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else []
    return added(*columns) if columns else Hosts(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64))


def added(names: Hashes, images: Numbers, pairs: Numbers) -> Hosts:
    """N entries added up by name."""
    found, place = np.unique(names, return_inverse=True)
    sums = [np.bincount(place, weights=of, minlength=len(found)).astype(np.int64) for of in (images, pairs)]
    return Hosts(found, *sums)


def _survivors(run: Run, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """The survivors of `judge`, a fetch unit at a time, in the order of image_id."""
    for name, facts in run.all_facts(GROUPED):
        for group in range(len(facts.row_groups)):
            interrupts.check()
            yield pa.Table.from_batches(
                parquet.read_row_groups(GroupedPartition(run, name).rows, group, group, columns)
            ).combine_chunks()


# The sample ----------------------------------------------------------------------------------------------------------


def draw(sample: Sampled, wanted: int, seed: int) -> None:
    """Draw a sample of the images of a run, whose `judge` is done, and leave it as `judge` leaves survivors."""

    def work(_: Run, unit: Unit) -> GroupFacts:
        assert sample.of
        pool = count_hosts(sample.of)
        columns = dict(zip(_HOSTS.names, pool, strict=True))
        parquet.write(_hosts_path(sample), pa.table(columns, schema=_HOSTS), _HOSTS)
        return _write(sample, unit["name"], pool, rates(pool, wanted), seed)

    map_unit(sample, GROUPED, Unit(name=ONLY), work)


def _write(sample: Sampled, name: str, pool: Hosts, at: Floats, seed: int) -> GroupFacts:
    assert sample.of
    groups, waiting = list[RowGroup](), [PLACED_SURVIVOR.empty_table()]
    images = 0
    with parquet.writing(GroupedPartition(sample, name).rows, PLACED_SURVIVOR) as file:
        for rows in _survivors(sample.of):
            first = first_of_each_image(rows)
            of = hosts_of(rows["image_url"].take(first))
            is_in = is_drawn(arrays.ids_of(rows["image_id"])[first], at[np.searchsorted(pool.names, of)], seed)
            waiting.append(rows.filter(pa.array(np.repeat(is_in, np.diff(np.r_[first, len(rows)])))))
            images += int(is_in.sum())
            if images >= _IMAGES_PER_UNIT or sum(part.nbytes for part in waiting) >= _UNIT_BYTES:
                groups.append(_flush(file, waiting, images))
                waiting, images = [PLACED_SURVIVOR.empty_table()], 0
        if images:
            groups.append(_flush(file, waiting, images))
    return GroupFacts(groups, [], [])


def _flush(file: Any, waiting: list[pa.Table], images: int) -> RowGroup:
    rows = pa.concat_tables(waiting).combine_chunks()
    file.write_row_group(rows)
    return {"rows": len(rows), "images": images}


def hosts(sample: Sampled) -> Hosts:
    """The hosts of the pool that a sample was drawn from."""
    rows = parquet.read_table(_hosts_path(sample))
    return Hosts(*(rows[name].to_numpy() for name in _HOSTS.names))


def _hosts_path(sample: Sampled) -> str:
    return sample.path("hosts.parquet")


def drawn(sample: Sampled, wanted: int) -> tuple[list[str], Drawn]:
    """The image_ids of a sample in their order, and what is known of each image."""
    pool = hosts(sample)
    at, ids, of, pairs = rates(pool, wanted), list[str](), [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for rows in _survivors(sample, ["image_id", "image_url"]):
        first = first_of_each_image(rows)
        ids += map(str, identity.hexed(arrays.ids_of(rows["image_id"])[first]).to_pylist())
        of.append(hosts_of(rows["image_url"].take(first)))
        pairs.append(np.diff(np.r_[first, len(rows)]))
    hosts_drawn = np.concatenate(of)
    return ids, Drawn(hosts_drawn, at[np.searchsorted(pool.names, hosts_drawn)], np.concatenate(pairs))
