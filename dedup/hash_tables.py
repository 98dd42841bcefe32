# ruff: noqa: ARG001  (numba types a call by the names of the parameters; the code reads them from `arguments`)
"""A finished table of hashes: sorted, memory-mapped, and looked up by the million."""

from functools import cache
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types

from altalign.dedup import lines
from altalign.filters.bits import (
    Arguments,
    Builder,
    Bytes,
    Context,
    Hashes,
    Intrinsic,
    Kind,
    Longs,
    Signature,
    intrinsic,
    on_all_lanes,
)

_PER_BUCKET = 4  # entries of a bucket on average, at most; with fewer the index is larger and no faster
_MOST = np.uint64(2**64 - 1)
_WINDOW = 8  # entries that a probe always compares, since no branch could be predicted; few buckets hold more


class _Index(NamedTuple):
    """Sorted hashes, at least `_WINDOW` of them with what fills up; their number, and where buckets begin."""

    hashes: np.ndarray
    size: int
    begins: np.ndarray  # of the buckets of the top bits
    shift: np.uint64  # that leaves these bits of a hash


class HashTable:
    """Sorted uint64 hashes, each with a count if the caller has counts.

    An index over the top bits (1 to 2 bytes per entry) leads to a bucket of two to four entries.
    """

    def __init__(self, hashes: np.ndarray, counts: np.ndarray | None = None):
        self.hashes, self.counts = hashes, counts
        missing = _WINDOW - len(hashes)
        filled = np.concatenate([hashes, np.full(missing, _MOST)]) if missing > 0 else hashes
        bits = max(1, (len(hashes) // _PER_BUCKET).bit_length())
        begins = np.empty(1 << bits, np.uint32 if len(hashes) < 2**32 else np.uint64)
        self._index = _Index(filled, len(hashes), begins, np.uint64(64 - bits))
        _fill_index(hashes, self._index.shift, begins)
        self._lines = lines.build(hashes, counts) if counts is not None and counts.dtype == np.uint8 else None

    def __len__(self) -> int:
        return len(self.hashes)

    def measure_rows(self, hashes: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whether any hash of each row is missing from the table (bool[n]), and the smallest count (uint8[n]).

        Rows end at `ends` (int64[n]) in `hashes` (uint64[m]). The smallest count is 0 if a hash is missing, and 255,
        the largest of 8 bits, if the row has no hashes.

        Raises:
            ValueError: the table's counts are not in 8 bits.
        """
        if self.counts is None or self.counts.dtype != np.uint8:
            raise ValueError("the counts of this table are not in 8 bits")
        is_missing, smallest = np.empty(len(ends), np.bool_), np.empty(len(ends), np.uint8)
        if self._lines is not None:
            lines.measure_rows(self._lines, hashes, ends, is_missing, smallest)
        else:
            _measure_rows(hashes, ends, self._index, self.counts, is_missing, smallest)
        return is_missing, smallest

    def lookup(self, hashes: np.ndarray) -> np.ndarray:
        """Count of each hash (uint64[m]), int64[m]; 0 for one that is not in the table."""
        if self.counts is None:
            raise ValueError("this table has no counts")
        result = np.zeros(len(hashes), np.int64)
        if len(self):
            _lookup(hashes, self._index, self.counts, result)
        return result


@njit(nogil=True, cache=True)
def _fill_index(table: np.ndarray, shift: np.uint64, index: np.ndarray) -> None:
    """Fill `index` with where the entries of each bucket begin."""
    place = 0
    for bucket in range(len(index)):
        while place < len(table) and table[place] >> shift < np.uint64(bucket):
            place += 1
        index[bucket] = place


@intrinsic
def _smaller(_typing_context: object, table: Kind, begin: Kind, h: Kind) -> Intrinsic:
    """`_smaller(table, begin, h) -> uint64`: the number of entries less than h among the _WINDOW from `begin` on."""

    def codegen(context: Context, builder: Builder, signature: Signature, arguments: Arguments) -> ir.Value:
        table, begin, h = arguments
        start = builder.gep(context.make_array(signature.args[0])(context, builder, table).data, [begin])
        window = builder.bitcast(start, ir.VectorType(ir.IntType(64), _WINDOW).as_pointer())
        is_less = builder.icmp_unsigned("<", builder.load(window, align=8), on_all_lanes(builder, h, _WINDOW))
        return builder.zext(builder.ctpop(builder.bitcast(is_less, ir.IntType(_WINDOW))), ir.IntType(64))

    return types.uint64(table, types.uint64, types.uint64), codegen


@njit(nogil=True)
def _place_of(h: np.uint64, table: np.ndarray, size: int, begins: np.ndarray, shift: np.uint64) -> np.uint64:
    # The place of the first entry that is not less than h, or of the last entry. A branch on the place in the window
    # would be mispredicted, so there is none.
    last, most = np.uint64(len(table) - _WINDOW), np.uint64(size - 1)
    begin = min(np.uint64(begins[h >> shift]), last)
    place = begin + _smaller(table, begin, h)
    while place < most and table[place] < h:
        place += np.uint64(1)
    return min(place, most)


@njit(nogil=True, cache=True)
def _lookup(hashes: np.ndarray, index: _Index, counts: np.ndarray, out: np.ndarray) -> None:
    # Unsigned places: numba would ask each whether it counts from the end.
    table, size, begins, shift = index
    for i in range(len(hashes)):
        place = _place_of(hashes[i], table, size, begins, shift)
        out[i] = counts[place] if table[place] == hashes[i] else 0


@njit(nogil=True, cache=True)
def _measure_rows(
    hashes: Hashes, ends: Longs, index: _Index, counts: Bytes, is_missing: np.ndarray, smallest: Bytes
) -> None:
    begin, (table, size, begins, shift) = np.uint64(0), index
    for row in range(len(ends)):
        end, least, misses = np.uint64(ends[row]), np.uint8(255), False
        for i in range(begin, end):
            place = _place_of(hashes[i], table, size, begins, shift) if size else np.uint64(0)
            if size == 0 or table[place] != hashes[i]:
                misses, least = True, np.uint8(0)
                break  # the rest of the row cannot change this
            least = min(least, counts[place])
        is_missing[row], smallest[row] = misses, least
        begin = end


def log2_counts(counts: np.ndarray) -> np.ndarray:
    """Eight times log2 of each count, rounded to the nearest, uint8[n]; 255 stands for counts above some 3.77 billion.

    It is computed in integers, so every machine agrees: v is the largest number with count ** 16 >= 2 ** (2 v - 1).
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
