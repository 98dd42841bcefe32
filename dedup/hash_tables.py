# ruff: noqa: ARG001  (numba types a call by the names of the parameters; the code reads them from `arguments`)
"""A finished table of hashes: sorted, memory-mapped, asked by the million."""

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, njit, types

intrinsic: Any = extending.intrinsic  # what it makes is called with other parameters than those it is written with

_PER_BUCKET = 4  # entries at most, on average; fewer would be no faster, and the index larger
_MOST = np.uint64(2**64 - 1)
_WINDOW = 8  # entries that a probe always compares, for where it ends cannot be foreseen; few buckets hold more


class HashTable:
    """Sorted uint64 hashes, with a count each where the caller has them.

    An index over the top bits (1 to 2 bytes an entry) leads to a bucket of two to four entries.
    """

    def __init__(self, hashes: np.ndarray, counts: np.ndarray | None = None):
        self.hashes, self.counts = hashes, counts
        self._table = hashes if len(hashes) >= _WINDOW else np.concatenate([hashes, np.full(_WINDOW - len(hashes), _MOST)])
        bits = max(1, (len(hashes) // _PER_BUCKET).bit_length())
        self._shift = np.uint64(64 - bits)
        self._index = np.empty(1 << bits, np.uint32 if len(hashes) < 2**32 else np.uint64)
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
        _measure_rows(self.find(hashes), ends, self.counts, missing, smallest)
        return missing, smallest

    def find(self, hashes: np.ndarray) -> np.ndarray:
        """Place of each hash in the table, -1 where it is not: int64[m]."""
        places = np.full(len(hashes), -1, np.int64)
        if len(self):
            _find(hashes, self._table, len(self), self._index, self._shift, places)
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
def _fill_index(table: np.ndarray, shift: np.uint64, index: np.ndarray) -> None:
    """Where the entries of each bucket begin."""
    place = 0
    for bucket in range(len(index)):
        while place < len(table) and table[place] >> shift < np.uint64(bucket):
            place += 1
        index[bucket] = place


def _count_smaller(context: Any, builder: Any, signature: Any, arguments: Any) -> ir.Value:
    entries = ir.VectorType(ir.IntType(64), _WINDOW)
    table, begin, h = arguments
    start = builder.gep(context.make_array(signature.args[0])(context, builder, table).data, [begin])
    found = builder.load(builder.bitcast(start, entries.as_pointer()), align=8)
    lane = builder.insert_element(ir.Constant(entries, ir.Undefined), h, ir.Constant(ir.IntType(32), 0))
    every = builder.shuffle_vector(lane, ir.Constant(entries, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), _WINDOW), None))
    bits = builder.bitcast(builder.icmp_unsigned("<", found, every), ir.IntType(_WINDOW))
    return builder.zext(builder.ctpop(bits), ir.IntType(64))


@intrinsic
def _smaller(_typing_context: Any, table: Any, begin: Any, h: Any) -> tuple[Any, Any]:
    """`_smaller(table, begin, h) -> uint64`: how many of the _WINDOW entries from `begin` on are less than h."""
    return types.uint64(table, types.uint64, types.uint64), _count_smaller


@njit(nogil=True, cache=True)
def _find(hashes: np.ndarray, table: np.ndarray, size: int, index: np.ndarray, shift: np.uint64, places: np.ndarray) -> None:
    # No branch depends on what memory answers, so the CPU asks for many entries at a time. Unsigned places: numba would ask each whether it
    # counts from the end.
    last, most = np.uint64(len(table) - _WINDOW), np.uint64(size - 1)
    for i in range(len(hashes)):
        places[i] = index[hashes[i] >> shift]
    for i in range(len(hashes)):
        h, begin = hashes[i], min(np.uint64(places[i]), last)
        place = begin + _smaller(table, begin, h)
        while place < most and table[place] < h:
            place += np.uint64(1)
        place = min(place, most)
        places[i] = np.int64(place) if table[place] == h else -1


@njit(nogil=True, cache=True)
def _measure_rows(places: np.ndarray, ends: np.ndarray, counts: np.ndarray, missing: np.ndarray, smallest: np.ndarray) -> None:
    begin = np.uint64(0)
    for row in range(len(ends)):
        n, least, end = 0, np.uint8(255), np.uint64(ends[row])
        for i in range(begin, end):
            place = places[i]
            is_missing = place < 0
            n += is_missing
            least = min(least, np.uint8(0) if is_missing else counts[np.uint64(max(place, 0))])
        missing[row], smallest[row] = n, least
        begin = end


def log2_counts(counts: np.ndarray) -> np.ndarray:
    """Eight times log2 of each count, rounded to the nearest: uint8[n]; 255, the most, is a count of about 3.77 billion.

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
