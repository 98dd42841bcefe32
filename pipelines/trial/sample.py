"""Which images a trial fetches: some of every class of hosts by size, by a hash of image_id.

A larger sample has all of a smaller one of the same seed. Two passes over the survivors of `judge`: the first counts
the images of hosts, the second takes the images that are drawn.
"""

from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.filters import identity
from altalign.filters.one_url import host_of
from altalign.machine import interrupts
from altalign.pipelines.run.image_tables import first_of_each_image
from altalign.pipelines.run.text_tables import GROUPED, GROUPED_SURVIVORS, PLACED_SURVIVOR, GroupFacts, RowGroup
from altalign.pipelines.run.units import Run, Sampled, Unit, map_unit
from altalign.storage import arrays, parquet

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

ONLY = "00000"  # the partition of a sample
_IMAGES_PER_UNIT, _UNIT_BYTES = 2_048, 32 << 20
_SHARED_EVENLY = 4  # one image in so many goes to classes of hosts in equal parts, the others by their images
_PARTS_WAITING = 1_000  # hosts of so many fetch units are added up at a time
_ORIGIN = r"^(?P<origin>[A-Za-z][A-Za-z0-9+.-]*://[^/\\?#\s]+)"


class Hosts(NamedTuple):
    """The h hosts of a pool: hashes of their names, which rise (uint64[h]); images and pairs of each (int64[h])."""

    names: npt.NDArray[np.uint64]
    images: Numbers
    pairs: Numbers


class Sample(NamedTuple):
    """n images: place of each one's host in the pool, and its pairs (int64[n]); the rate of each host (float64[h])."""

    hosts: Numbers
    pairs: Numbers
    rates: Floats


def size_class(images: Numbers) -> Numbers:
    """The class of a host by its size: 0 of 1 to 3 images, 1 of 4 to 15, 2 of 16 to 63 and so on."""
    return (np.frexp(images.astype(np.float64))[1] - 1).astype(np.int64) // 2


def rates(pool: Hosts, images: int) -> Floats:
    """The rate for each of h hosts, float64[h], so that about so many images are drawn; 1 where there are no more.

    A quarter goes to classes of hosts in equal parts, so that the rare ones are seen too.
    """
    classes = size_class(pool.images)
    available = np.bincount(classes, weights=pool.images)
    evenly = np.minimum(available, images / (_SHARED_EVENLY * max(1, np.count_nonzero(available))))
    left = available - evenly
    more = min(1.0, (images - evenly.sum()) / left.sum()) if left.any() else 0.0
    by_class = np.divide(evenly + more * left, available, out=np.zeros_like(available), where=available > 0)
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


def hosts_of(urls: Any) -> npt.NDArray[np.uint64]:
    """A hash of the host of each of n URLs, uint64[n]; all images without one have the same."""
    matches: Any = pc.extract_regex(urls.cast(pa.string()), pattern=_ORIGIN)
    origins: Any = pc.fill_null(pc.struct_field(matches, "origin"), pa.scalar(""))
    encoded = (origins.combine_chunks() if isinstance(origins, pa.ChunkedArray) else origins).dictionary_encode()
    names = (host_of(origin or "").encode() for origin in encoded.dictionary.to_pylist())
    hashes = [int.from_bytes(blake2b(name, digest_size=8).digest(), "big") for name in names]
    return np.array(hashes, np.uint64)[encoded.indices.to_numpy(zero_copy_only=False)]


def count_hosts(run: Run) -> Hosts:
    """The hosts of all images that passed `judge`."""
    waiting = [Hosts(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for rows in _survivors(run, ["image_id", "image_url"]):
        hosts, pairs, _ = _images_of(rows)
        waiting.append(Hosts(hosts, np.ones(len(hosts), np.int64), pairs))
        if len(waiting) > _PARTS_WAITING:
            waiting = [added(waiting)]
    return added(waiting)


def added(parts: list[Hosts]) -> Hosts:
    """Entries added up by name."""
    names, images, pairs = (np.concatenate(column) for column in zip(*parts, strict=True))
    distinct, place = np.unique(names, return_inverse=True)
    sums = [np.bincount(place, weights=column, minlength=len(distinct)).astype(np.int64) for column in (images, pairs)]
    return Hosts(distinct, *sums)


def _survivors(run: Run, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """The survivors of `judge`, a fetch unit at a time, in the order of image_id."""
    for name, facts in run.all_facts(GROUPED):
        for group in range(len(facts.row_groups)):
            interrupts.check()
            batches = parquet.read_row_groups(GROUPED_SURVIVORS.path(run, name), group, group, columns)
            yield pa.Table.from_batches(batches).combine_chunks()


def _images_of(rows: pa.Table) -> tuple[npt.NDArray[np.uint64], Numbers, Numbers]:
    """The host, the number of pairs and the first row of each image."""
    first = first_of_each_image(rows)
    return hosts_of(rows["image_url"].take(first)), np.diff(np.r_[first, len(rows)]), first


def draw(sample: Sampled, pool: Hosts, images: int, seed: int) -> None:
    """Draw a sample of the images of a run, whose `judge` is done, and leave it as `judge` leaves survivors."""

    def work(_: Run, unit: Unit) -> GroupFacts:
        assert sample.whole
        at, groups, waiting, count = rates(pool, images), list[RowGroup](), [PLACED_SURVIVOR.empty_table()], 0
        with parquet.writing(GROUPED_SURVIVORS.path(sample, unit["name"]), PLACED_SURVIVOR) as file:
            for rows in chain(_survivors(sample.whole), [None]):
                if rows is not None:
                    hosts, pairs, first = _images_of(rows)
                    ids = arrays.ids_of(rows["image_id"])[first]
                    is_in = is_drawn(ids, at[np.searchsorted(pool.names, hosts)], seed)
                    waiting.append(rows.filter(pa.array(np.repeat(is_in, pairs))))
                    count += int(is_in.sum())
                is_full = count >= _IMAGES_PER_UNIT or sum(part.nbytes for part in waiting) >= _UNIT_BYTES
                if count and (is_full or rows is None):
                    group = pa.concat_tables(waiting).combine_chunks()
                    file.write_row_group(group)
                    groups.append({"rows": len(group), "images": count})
                    waiting, count = [PLACED_SURVIVOR.empty_table()], 0
        return GroupFacts(groups, [], [])

    map_unit(sample, GROUPED, Unit(name=ONLY), work)


def drawn(sample: Sampled, pool: Hosts, images: int) -> tuple[list[str], Sample]:
    """The image_ids of a sample in their order, and what is known of each image before it is fetched."""
    ids, hosts, pairs = list[str](), [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for rows in _survivors(sample, ["image_id", "image_url"]):
        of_images, many, first = _images_of(rows)
        ids += map(str, identity.hexed(arrays.ids_of(rows["image_id"])[first]).to_pylist())
        hosts.append(of_images)
        pairs.append(many)
    places = np.searchsorted(pool.names, np.concatenate(hosts))
    return ids, Sample(places, np.concatenate(pairs), rates(pool, images))
