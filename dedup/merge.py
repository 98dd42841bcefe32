"""The merging side of exact counting, one partition at a time, and the histogram that gives a threshold.

A partition is scattered to buckets that stay in the CPU's cache, and each bucket is counted in a hash table. Sorting
takes up to four times as long, depending on the CPU.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from altalign.filters.bits import Hashes, Longs

_PER_BUCKET = 1_024  # entries; their table, about twice as large, stays in the second cache of a core
_BUCKET_BITS_AT_MOST = 13
_DENSE = 4_096  # counts below this are tallied in an array, larger ones (few) one by one


@dataclass
class CountHistogram:
    """How many keys have each count; exact, additive."""

    keys_of: Mapping[int, int] = field(default_factory=Counter[int])  # by count

    @classmethod
    def from_counts(cls, counts: npt.NDArray[np.int64], tally: npt.NDArray[np.int64] | None = None) -> "CountHistogram":
        """The histogram of counts, int64[n]; those below 4,096 are in a tally, int64[m], if it is given.

        Entry i of the tally is the number of keys with count i.
        """
        tally = np.bincount(counts[counts < _DENSE]) if tally is None else tally
        values, keys = np.unique(counts[counts >= _DENSE], return_counts=True)
        large = dict(zip(values.tolist(), keys.tolist(), strict=True))
        return cls({int(count): int(tally[count]) for count in np.flatnonzero(tally)} | large)

    @classmethod
    def total(cls, parts: "Iterable[CountHistogram]") -> "CountHistogram":
        """The sum of many."""
        keys: Counter[int] = Counter()
        for part in parts:
            keys.update(part.keys_of)
        return cls(keys)

    @property
    def keys(self) -> int:
        """The number of all keys."""
        return sum(self.keys_of.values())

    def threshold(self, k: int) -> int:
        """The k-th largest count; 1 if there are fewer than k keys."""
        left = k
        for count in sorted(self.keys_of, reverse=True):
            left -= self.keys_of[count]
            if left <= 0:
                return count
        return 1

    def at_least(self, count: int) -> int:
        """The number of keys with this count or a larger one."""
        return sum(keys for c, keys in self.keys_of.items() if c >= count)

    def to_json(self) -> list[list[int]]:
        """[count, keys], by count."""
        return [[count, self.keys_of[count]] for count in sorted(self.keys_of)]

    @classmethod
    def from_json(cls, entries: Sequence[Sequence[int]]) -> "CountHistogram":
        """The inverse of `to_json`."""
        return cls({entry[0]: entry[1] for entry in entries})


class _Buckets(NamedTuple):
    """Entries scattered to buckets by the bits of a key that follow the bits which all keys share."""

    entries: np.ndarray  # uint64[n] or [n, 2], bucket after bucket
    ends: np.ndarray  # int64, of each bucket
    shared: np.uint64  # leading bits that all keys share
    bits: np.uint64  # that number the buckets

    @classmethod
    def of_keys(cls, entries: np.ndarray, keys: np.ndarray, more_keys: np.ndarray) -> "_Buckets":
        """Scatter entries by their keys; `more_keys` are others that must have a bucket."""
        first = next((some[0] for some in (keys, more_keys) if len(some)), np.uint64(0))
        differing = (int(_differing(keys, first)) | int(_differing(more_keys, first))).bit_length()
        bits = min(_BUCKET_BITS_AT_MOST, max(1, (len(keys) // _PER_BUCKET).bit_length()))
        shared = min(64 - differing, 63 - bits)
        scattered, ends = np.empty_like(entries), np.zeros(1 << bits, np.int64)
        _scatter(entries, keys, np.uint64(shared), np.uint64(bits), scattered, ends)
        return cls(scattered, ends, np.uint64(shared), np.uint64(bits))

    @property
    def slots(self) -> int:
        """The slots of a table that is large enough for any bucket."""
        return 1 << _slot_bits(int(np.diff(self.ends, prepend=0).max()))


Entries = tuple[np.ndarray, np.ndarray, CountHistogram]  # keys, sorted; their counts; the histogram of all counts


def merge_ngrams(hashes: np.ndarray, hot: np.ndarray) -> Entries:
    """Count the n-grams of one partition: uint64[n], one entry per occurrence, and hot ones with counts, uint64[m, 2].

    Returns the hashes seen twice or more, sorted; their counts (int64); and the histogram of all counts, including 1.
    """
    hot = hot[np.argsort(hot[:, 0])]
    buckets = _Buckets.of_keys(hashes, hashes, hot[:, 0])
    room = len(hashes) // 2 + len(hot) + 1
    keys, counts, tally = np.empty(room, np.uint64), np.empty(room, np.int64), np.zeros(_DENSE + 1, np.int64)
    slots = 1 << _slot_bits(buckets.slots + len(hot))
    often = _count(buckets, hot, np.empty(slots, np.uint64), np.empty(slots, np.int64), keys, counts, tally)
    return keys[:often], counts[:often], CountHistogram.from_counts(counts[:often], tally[:_DENSE])


def merge_pairs(pairs: np.ndarray, *, limit: int) -> Entries:
    """Count, for each key of one partition, the distinct others that it was seen with: uint64[n, 2] of (key, other).

    Returns the keys seen with more than `limit`, sorted; how many distinct others each has (int64); and the histogram
    of all keys.
    """
    buckets = _Buckets.of_keys(pairs, pairs[:, 0], pairs[:0, 0])
    slots = buckets.slots
    keys, distinct = np.empty(len(pairs), np.uint64), np.empty(len(pairs), np.int64)
    table = np.empty(slots, np.uint64), np.empty(slots, np.uint64), np.empty(slots, np.int64)
    number = _count_distinct(
        buckets, *table, np.empty((slots, 2), np.uint64), np.empty(slots, np.bool_), keys, distinct
    )
    keys, distinct = keys[:number], distinct[:number]
    over = np.flatnonzero(distinct > limit)
    over = over[np.argsort(keys[over])]
    return keys[over], distinct[over], CountHistogram.from_counts(distinct)


# Kernels. Places are unsigned: numba would check whether a signed one counts from the end. ----------------------------


@njit(nogil=True, cache=True)
def _slot_bits(entries: int) -> int:
    """Bits of a slot's number, in a table that is at most three quarters full with this many entries."""
    bits = 1
    while 3 << bits < 4 * entries:
        bits += 1
    return bits


@njit(nogil=True, cache=True)
def _differing(keys: np.ndarray, first: np.uint64) -> np.uint64:
    differing = np.uint64(0)
    for key in keys:
        differing |= key ^ first
    return differing


@njit(nogil=True, cache=True)
def _scatter(entries: Hashes, keys: Hashes, shared: np.uint64, bits: np.uint64, scattered: Hashes, ends: Longs) -> None:
    down = np.uint64(64) - bits
    for i in range(len(keys)):
        ends[(keys[i] << shared) >> down] += 1
    begin = 0
    for bucket in range(len(ends)):
        begin, ends[bucket] = begin + ends[bucket], begin
    for i in range(len(keys)):
        bucket = (keys[i] << shared) >> down
        scattered[np.uint64(ends[bucket])] = entries[i]
        ends[bucket] += 1


@njit(nogil=True, cache=True)
def _count(
    buckets: _Buckets, hot: Hashes, slot_keys: Hashes, slot_counts: Longs, keys: Hashes, counts: Longs, tally: Longs
) -> int:
    """Count hashes and sorted hot ones, bucket by bucket.

    Fills `keys` and `counts` with the hashes seen twice or more, sorted, and returns their number. Tallies all counts;
    _DENSE stands for itself and all larger ones. The number of a slot is the bits of a hash that follow the bucket's,
    so a table is nearly sorted in the order of its slots.
    """
    hashes, ends, shared, bits = buckets
    up, down = shared + bits, np.uint64(64) - bits
    often, begin, hot_begin = 0, 0, 0
    for bucket in range(len(ends)):
        hot_end = hot_begin
        while hot_end < len(hot) and (hot[hot_end, 0] << shared) >> down == np.uint64(bucket):
            hot_end += 1
        slot_bits = np.uint64(_slot_bits(ends[bucket] - begin + hot_end - hot_begin))
        slot_counts[: 1 << slot_bits] = 0
        for i in range(begin, ends[bucket]):
            slot_counts[_slot(hashes[np.uint64(i)], up, slot_bits, slot_keys, slot_counts)] += 1
        for i in range(hot_begin, hot_end):
            slot_counts[_slot(hot[i, 0], up, slot_bits, slot_keys, slot_counts)] += np.int64(hot[i, 1])
        first = often
        # A branch would be mispredicted: what was seen once is written too, and then overwritten.
        for slot in range(1 << slot_bits):
            count = slot_counts[slot]
            tally[np.uint64(min(count, _DENSE))] += 1
            keys[np.uint64(often)], counts[np.uint64(often)] = slot_keys[slot], count
            often += count > 1
        _insertion_sort(keys[first:often], counts[first:often])
        begin, hot_begin = ends[bucket], hot_end
    tally[0] = 0  # empty slots
    return often


@njit(nogil=True)
def _slot(key: np.uint64, up: np.uint64, slot_bits: np.uint64, slot_keys: Hashes, slot_counts: Longs) -> np.uint64:
    """The slot of a key, where the key is put if it is new; a slot with a count of 0 is empty."""
    mask, slot = (np.uint64(1) << slot_bits) - np.uint64(1), (key << up) >> (np.uint64(64) - slot_bits)
    while slot_counts[slot] != 0 and slot_keys[slot] != key:
        slot = (slot + np.uint64(1)) & mask
    slot_keys[slot] = key
    return slot


@njit(nogil=True)
def _insertion_sort(keys: np.ndarray, counts: np.ndarray) -> None:
    for i in range(1, len(keys)):
        key, count, place = keys[i], counts[i], i
        while place > 0 and keys[place - 1] > key:
            keys[place], counts[place] = keys[place - 1], counts[place - 1]
            place -= 1
        keys[place], counts[place] = key, count


@njit(nogil=True, cache=True)
def _count_distinct(
    buckets: _Buckets,
    slot_keys: Hashes,
    slot_firsts: Hashes,
    slot_counts: Longs,
    slot_pairs: Hashes,
    slot_taken: np.ndarray,
    keys: Hashes,
    distinct: Longs,
) -> int:
    """Fill `keys` and `distinct` (the number of each key's others), bucket by bucket; returns the number of keys.

    The first other of a key is stored beside it, since most keys have only one. Further pairs are in their own table.
    """
    pairs, ends, shared, bits = buckets
    up, number, begin = shared + bits, 0, 0
    for bucket in range(len(ends)):
        slot_bits = np.uint64(_slot_bits(ends[bucket] - begin))
        mask, down = (np.uint64(1) << slot_bits) - np.uint64(1), np.uint64(64) - slot_bits
        slot_counts[: 1 << slot_bits] = 0
        slot_taken[: 1 << slot_bits] = False
        for i in range(begin, ends[bucket]):
            key, other = pairs[np.uint64(i), 0], pairs[np.uint64(i), 1]
            of_key = _slot(key, up, slot_bits, slot_keys, slot_counts)
            if slot_counts[of_key] == 0:
                slot_counts[of_key], slot_firsts[of_key] = 1, other
            elif slot_firsts[of_key] != other:
                # The slot depends on both, since a key may have any number of others.
                slot = ((key << up) ^ (other * np.uint64(0x9E3779B97F4A7C15))) >> down
                while slot_taken[slot] and (slot_pairs[slot, 0] != key or slot_pairs[slot, 1] != other):
                    slot = (slot + np.uint64(1)) & mask
                slot_counts[of_key] += not slot_taken[slot]
                slot_taken[slot], slot_pairs[slot, 0], slot_pairs[slot, 1] = True, key, other
        for slot in range(1 << slot_bits):
            if slot_counts[slot]:
                keys[number], distinct[number] = slot_keys[slot], slot_counts[slot]
                number += 1
        begin = ends[bucket]
    return number
