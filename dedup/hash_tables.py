"""A finished table of hashes: sorted, memory-mapped, asked by the million."""

from functools import cache

import numpy as np
from numba import njit


_PER_BUCKET = 4  # entries, on average: most buckets are one cache line at most
_WINDOW = 8  # entries that a probe always compares, for where it ends inside a bucket cannot be foreseen


class HashTable:
    """Sorted uint64 hashes, with a count each where the caller has them.

    An index over the top bits leads to a bucket of a few entries.
    """

    def __init__(self, hashes: np.ndarray, counts: np.ndarray | None = None):
        self.hashes, self.counts = hashes, counts
        bits = max(1, (len(hashes) // _PER_BUCKET).bit_length())
        self._shift = np.uint64(64 - bits)
        self._index = np.empty((1 << bits) + 1, np.uint32 if len(hashes) < 2**32 else np.uint64)
        _fill_index(hashes, self._shift, self._index)

    def __len__(self) -> int:
        return len(self.hashes)

    def measure_rows(self, hashes: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How many of each row's hashes are not in the table (int32[n]), and the smallest count of its hashes (uint8[n]).

        Rows end at `ends` (int64[n]) of `hashes` (uint64[m]). The smallest count is 0 where a hash is missing and 255, the most
        that 8 bits hold, where a row has none.

        Raises:
            ValueError: the table's counts are not in 8 bits.
        """
        if self.counts is None or self.counts.dtype != np.uint8:
            raise ValueError("the counts of this table are not in 8 bits")
        missing, smallest = np.empty(len(ends), np.int32), np.empty(len(ends), np.uint8)
        _measure_rows(hashes, ends, self.hashes, self.counts, self._index, self._shift, missing, smallest)
        return missing, smallest

    def find(self, hashes: np.ndarray) -> np.ndarray:
        """Place of each hash in the table, -1 where it is not: int64[m]."""
        places = np.empty(len(hashes), np.int64)
        _find(hashes, self.hashes, self._index, self._shift, places)
        return places

    def lookup(self, hashes: np.ndarray) -> np.ndarray:
        """Count of each hash, 0 where it is not in the table: int64[m]."""
        places = self.find(hashes)
        if self.counts is None:
            raise ValueError("this table has no counts")
        found = np.zeros(len(hashes), np.int64)
        found[places >= 0] = self.counts[places[places >= 0]]
        return found


@njit(nogil=True, cache=True)
def _fill_index(table: np.ndarray, shift: int, index: np.ndarray) -> None:
    """Where the entries of each bucket begin; behind the last bucket, how many there are."""
    place = 0
    for bucket in range(len(index) - 1):
        while place < len(table) and table[place] >> shift < np.uint64(bucket):
            place += 1
        index[bucket] = place
    index[len(index) - 1] = len(table)


@njit(nogil=True, cache=True)
def _place(v: int, table: np.ndarray, index: np.ndarray, shift: int) -> int:
    bucket = v >> shift
    place, end = np.int64(index[bucket]), np.int64(index[bucket + np.uint64(1)])
    if end - place <= _WINDOW and place + _WINDOW <= len(table):
        begin = place
        for i in range(_WINDOW):
            place += table[begin + i] < v
        return place if place < end and table[place] == v else -1
    while place < end and table[place] < v:
        place += 1
    return place if place < end and table[place] == v else -1


@njit(nogil=True, cache=True)
def _measure_rows(
    hashes: np.ndarray, ends: np.ndarray, table: np.ndarray, counts: np.ndarray, index: np.ndarray, shift: np.uint64, missing: np.ndarray, smallest: np.ndarray
) -> None:
    begin = 0
    for row in range(len(ends)):
        n, least = 0, np.uint8(255)
        for i in range(begin, ends[row]):
            place = _place(hashes[i], table, index, shift)
            if place < 0:
                n += 1
            else:
                least = min(least, counts[place])
        missing[row] = n
        smallest[row] = least if n == 0 else 0
        begin = ends[row]


@njit(nogil=True, cache=True)
def _find(hashes: np.ndarray, table: np.ndarray, index: np.ndarray, shift: np.uint64, places: np.ndarray) -> None:
    for i in range(len(hashes)):
        places[i] = _place(hashes[i], table, index, shift)


def log2_counts(counts: np.ndarray) -> np.ndarray:
    """Eight times log2 of each count, rounded to the nearest: uint8[n]; 255, the most, is a count of about 3.9 billion.

    In integers: v is the largest number with count ** 16 >= 2 ** (2 v - 1), so every machine agrees.
    """
    return np.searchsorted(_log2_steps(), counts, side="right").astype(np.uint8)


@cache
def _log2_steps() -> np.ndarray:
    """The smallest count whose rounded 8 * log2 is 1, 2, … 255."""
    steps, count = [], 1
    for v in range(1, 256):
        count = max(count, int(2 ** ((2 * v - 1) / 16)) - 2)
        while count**16 < 2 ** (2 * v - 1):
            count += 1
        steps.append(count)
    return np.array(steps, np.int64)
