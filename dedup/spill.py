"""The writing side of exact counting: scatters hashes to partitions by their top bits, in buffers of the thread.

A partition is the top bits of a hash, so partitions in order are one sorted table. A small cache counts hot n-grams,
the most frequent ones, before anything is stored. Which are hot changes what is written, never what the merge finds.
"""

from collections.abc import Callable

import numpy as np
from numba import njit

from altalign.filters.bits import Hashes, Longs

HOT_BITS = 14  # 16,384 hot n-grams took 40 % of synthetic and 42 to 74 % of real tokens; more leave the CPU's cache
BUFFER_BYTES = 2 << 20  # buffers of all partitions; more would leave the CPU's cache before it is written
SLICE_BYTES = 4 << 10  # buffer of one partition, at least

# Called with a partition and its data, in the order of partitions: uint64[n] of hashes, or uint64[n, 2] of pairs.
Flush = Callable[[int, Hashes], object]


def shift_of(partitions: int) -> int:
    """The right shift that leaves a hash's partition; ValueError unless partitions are a power of two to 65,536."""
    bits = partitions.bit_length() - 1
    if not 1 <= bits <= 16 or partitions != 1 << bits:
        raise ValueError(f"{partitions} partitions: not a power of two from 2 to 65,536")
    return 64 - bits


class NgramBuffers:
    """Counts n-grams of one unit after another: `add` their hashes, then `finish`; memory is fixed."""

    def __init__(self, partitions: int):
        self._shift = np.uint64(shift_of(partitions))
        self._buffers = np.empty((partitions, max(SLICE_BYTES, BUFFER_BYTES // partitions) // 8), np.uint64)
        self._ends = np.zeros(partitions, np.int64)
        self._hot = np.zeros(1 << HOT_BITS, np.uint64)
        self._hot_counts = np.zeros(1 << HOT_BITS, np.int64)
        self._is_chosen = False

    def add(self, ngrams: np.ndarray, flush: Flush) -> None:
        """Count hashes (uint64[m]); full buffers are flushed."""
        if not self._is_chosen and len(ngrams):  # the most frequent hash for each slot
            hashes, counts = np.unique(ngrams, return_counts=True)
            rising = hashes[np.argsort(counts, kind="stable")]
            self._hot[rising & np.uint64(len(self._hot) - 1)] = rising  # the last assignment, of the largest, stays
            self._is_chosen = True
        begin = 0
        while begin < len(ngrams):
            begin = _scatter(ngrams, begin, self._shift, self._hot, self._hot_counts, self._buffers, self._ends)
            if begin < len(ngrams):
                _drain(self._buffers, self._ends, flush)

    def finish(self, flush: Flush, flush_hot: Flush) -> None:
        """Flush what is left of the unit: hashes, and the hot ones as uint64[n, 2] of (hash, count)."""
        _drain(self._buffers, self._ends, flush)
        at = np.flatnonzero(self._hot_counts)
        at = at[np.argsort(self._hot[at])]
        entries = np.stack([self._hot[at], self._hot_counts[at].astype(np.uint64)], axis=1)
        begins = np.searchsorted(entries[:, 0] >> self._shift, np.arange(len(self._ends) + 1, dtype=np.uint64))
        for partition in np.flatnonzero(np.diff(begins)).tolist():
            flush_hot(partition, entries[begins[partition] : begins[partition + 1]])
        self._hot_counts[:] = 0


class PairBuffers:
    """Scatters (key, other) pairs of hashes by the partition of the key."""

    def __init__(self, partitions: int):
        self._shift = np.uint64(shift_of(partitions))
        self._buffers = np.empty((partitions, max(SLICE_BYTES, BUFFER_BYTES // partitions) // 16, 2), np.uint64)
        self._ends = np.zeros(partitions, np.int64)

    def add(self, keys: np.ndarray, others: np.ndarray, flush: Flush) -> None:
        """Take keys (uint64[n]) and what each was seen with (uint64[n]); full buffers are flushed."""
        begin = 0
        while begin < len(keys):
            begin = _scatter_pairs(keys, others, begin, self._shift, self._buffers, self._ends)
            if begin < len(keys):
                _drain(self._buffers, self._ends, flush)

    def finish(self, flush: Flush) -> None:
        """Flush what is left of the unit."""
        _drain(self._buffers, self._ends, flush)


def _drain(buffers: np.ndarray, ends: np.ndarray, flush: Flush) -> None:
    for partition in np.flatnonzero(ends).tolist():
        flush(partition, buffers[partition, : ends[partition]])
    ends[:] = 0


@njit(nogil=True, cache=True)
def _scatter(
    ngrams: Hashes, begin: int, shift: np.uint64, hot: Hashes, hot_counts: Longs, buffers: Hashes, ends: Longs
) -> int:
    """Scatter from `begin` on; returns where it had to stop because a buffer is full."""
    mask, room = np.uint64(len(hot) - 1), np.uint64(buffers.shape[1])
    for i in range(begin, len(ngrams)):
        h = ngrams[i]
        slot, p = h & mask, h >> shift
        end = ends[p]
        if np.uint64(end) == room:
            return i
        is_hot = hot[slot] == h  # a branch would be mispredicted, so both ways are computed
        hot_counts[slot] += is_hot
        buffers[p, np.uint64(end)] = h
        ends[p] = end + (1 - is_hot)
    return len(ngrams)


@njit(nogil=True, cache=True)
def _scatter_pairs(keys: Hashes, others: Hashes, begin: int, shift: np.uint64, buffers: Hashes, ends: Longs) -> int:
    room = buffers.shape[1]
    for i in range(begin, len(keys)):
        p = keys[i] >> shift
        end = ends[p]
        if end == room:
            return i
        buffers[p, end, 0] = keys[i]
        buffers[p, end, 1] = others[i]
        ends[p] = end + 1
    return len(keys)
