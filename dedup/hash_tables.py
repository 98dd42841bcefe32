# ruff: noqa: ARG001  (numba types a call by the names of the parameters; the code reads them from `arguments`)
"""A finished table of hashes: sorted, memory-mapped, and looked up by the million.

Rows of hashes are measured in lines, where these fit: one line of the CPU's cache holds the answer for a hash. A line
has eight entries of 64 bits: the low 56 bits of a hash, and its count in 8. The lines are in the order of the hashes,
so the number of a line tells the bits that its entries leave out. An entry whose line is full is in one of the next
few.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types

from altalign.filters import bits as of_bits
from altalign.filters.bits import Arguments, Builder, Bytes, Context, Hashes, Intrinsic, Kind, Longs, Signature

_PER_BUCKET = 4  # entries of a bucket on average, at most; with fewer the index is larger and no faster
_MOST = np.uint64(2**64 - 1)
_WINDOW = 8  # entries that a probe always compares, since no branch could be predicted; few buckets hold more

_A_LINE = 8  # entries of a line
_PER_LINE = 5  # entries on average; fewer need more of the cache, with more the next line is read more often
_FARTHEST = 8  # lines between an entry's own line and its place, at most
# Two hashes that share 56 bits are then at least 15 lines apart, farther than an entry is placed or looked for.
_LINES_AT_LEAST = 4_096
LINED_AT_MOST = 1 << 23  # entries: 107 MB of lines in each process
_ENTRIES = ir.VectorType(ir.IntType(64), _A_LINE)


class _Index(NamedTuple):
    """Sorted hashes, at least `_WINDOW` of them with what fills up; their number, and where buckets begin."""

    hashes: np.ndarray
    size: int
    begins: np.ndarray  # of the buckets of the top bits
    shift: np.uint64  # that leaves these bits of a hash


class HashTable:
    """Sorted uint64 hashes and their counts.

    An index over the top bits (1 to 2 bytes per entry) leads to a bucket of two to four entries.
    """

    def __init__(self, hashes: np.ndarray, counts: np.ndarray):
        self.hashes, self.counts = hashes, counts
        missing = _WINDOW - len(hashes)
        filled = np.concatenate([hashes, np.full(missing, _MOST)]) if missing > 0 else hashes
        bits = max(1, (len(hashes) // _PER_BUCKET).bit_length())
        begins = np.empty(1 << bits, np.uint32 if len(hashes) < 2**32 else np.uint64)
        self._index = _Index(filled, len(hashes), begins, np.uint64(64 - bits))
        _fill_index(hashes, self._index.shift, begins)
        self._lines = lines_of(hashes, counts) if counts.dtype == np.uint8 else None

    def __len__(self) -> int:
        return len(self.hashes)

    def measure_rows(self, hashes: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whether any hash of each row is missing from the table (bool[n]), and the smallest count (uint8[n]).

        Rows end at `ends` (int64[n]) in `hashes` (uint64[m]), and the table's counts are in 8 bits. The smallest count
        is 0 if a hash is missing, and 255, the largest of 8 bits, if the row has no hashes.
        """
        is_missing, smallest = np.empty(len(ends), np.bool_), np.empty(len(ends), np.uint8)
        if self._lines is not None:
            measure_in_lines(self._lines, hashes, ends, is_missing, smallest)
        else:
            _measure_rows(hashes, ends, self._index, self.counts, is_missing, smallest)
        return is_missing, smallest

    def lookup(self, hashes: np.ndarray) -> np.ndarray:
        """Count of each hash (uint64[m]), int64[m]; 0 for one that is not in the table."""
        result = np.zeros(len(hashes), np.int64)
        if len(self):
            _lookup(hashes, self._index, self.counts, result)
        return result


def lines_of(hashes: np.ndarray, counts: np.ndarray) -> np.ndarray | None:
    """Lines (uint64, a multiple of eight) of hashes (uint64[n], rising) and their counts (uint8[n]).

    None of a table that does not fit: it is small or very large, has a count of 0, which marks an empty place, or its
    hashes are not spread evenly.
    """
    number = len(hashes) // _PER_LINE
    if number < _LINES_AT_LEAST or len(hashes) > LINED_AT_MOST or not counts.all():
        return None
    lines = np.zeros((number + _FARTHEST + 1) * _A_LINE, np.uint64)  # a probe never runs out of them
    return lines if _fill_lines(hashes, counts, np.uint64(number), lines) else None


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


# The index. Places are unsigned: numba would ask each whether it counts from the end. ---------------------------------


@njit(nogil=True, cache=True)
def _fill_index(table: np.ndarray, shift: np.uint64, index: np.ndarray) -> None:
    place = 0
    for bucket in range(len(index)):
        while place < len(table) and table[place] >> shift < np.uint64(bucket):
            place += 1
        index[bucket] = place


@of_bits.intrinsic
def _smaller(_typing_context: object, table: Kind, begin: Kind, h: Kind) -> Intrinsic:
    """`_smaller(table, begin, h) -> uint64`: the number of entries less than h among the _WINDOW from `begin` on."""

    def codegen(context: Context, builder: Builder, signature: Signature, arguments: Arguments) -> ir.Value:
        table, begin, h = arguments
        start = builder.gep(context.make_array(signature.args[0])(context, builder, table).data, [begin])
        window = builder.bitcast(start, ir.VectorType(ir.IntType(64), _WINDOW).as_pointer())
        every = of_bits.on_all_lanes(builder, h, _WINDOW)
        is_less = builder.icmp_unsigned("<", builder.load(window, align=8), every)
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


# Lines ----------------------------------------------------------------------------------------------------------------


@njit(nogil=True)
def _line_of(h: np.uint64, number: np.uint64) -> np.uint64:
    # Where the line of a hash begins. The upper half of the hash decides: it has more values than there are lines.
    return ((h >> np.uint64(32)) * number >> np.uint64(32)) * np.uint64(_A_LINE)


@njit(nogil=True, cache=True)
def _fill_lines(hashes: np.ndarray, counts: np.ndarray, number: np.uint64, lines: np.ndarray) -> bool:
    """Put every entry into the first line from its own on that has room; returns False if one would be too far away."""
    place = np.uint64(0)  # the place after the last entry
    for i in range(len(hashes)):
        own = _line_of(hashes[i], number)
        place = max(place, own)
        if place >= own + np.uint64(_A_LINE * (_FARTHEST + 1)):
            return False
        lines[place] = hashes[i] << np.uint64(8) | np.uint64(counts[i])
        place += np.uint64(1)
    return True


@of_bits.intrinsic
def _in_line(_typing_context: object, lines: Kind, begin: Kind, entry: Kind) -> Intrinsic:
    """`_in_line(lines, begin, entry) -> uint64`: bits of the eight places from `begin` on that have this entry."""

    def codegen(context: Context, builder: Builder, signature: Signature, arguments: Arguments) -> ir.Value:
        lines, begin, entry = arguments
        start = builder.gep(context.make_array(signature.args[0])(context, builder, lines).data, [begin])
        line = builder.load(builder.bitcast(start, _ENTRIES.as_pointer()), align=8)
        # An empty place has no count, so it never matches a hash whose 56 bits are 0: less 1, it is the largest number.
        differing = builder.xor(line, of_bits.on_all_lanes(builder, entry, _A_LINE))
        less_one = builder.sub(differing, ir.Constant(_ENTRIES, [1] * _A_LINE))
        is_here = builder.icmp_unsigned("<", less_one, ir.Constant(_ENTRIES, [255] * _A_LINE))
        return builder.zext(builder.bitcast(is_here, ir.IntType(_A_LINE)), ir.IntType(64))

    return types.uint64(lines, types.uint64, types.uint64), codegen


@njit(nogil=True, cache=True)
def measure_in_lines(
    lines: np.ndarray, hashes: np.ndarray, ends: np.ndarray, is_missing: np.ndarray, smallest: np.ndarray
) -> None:
    """Fill `is_missing` (bool[n]) and `smallest` (uint8[n]) as `HashTable.measure_rows` returns them."""
    number, line_size, begin = np.uint64(len(lines) // _A_LINE - _FARTHEST - 1), np.uint64(_A_LINE), np.uint64(0)
    for row in range(len(ends)):
        end, least = np.uint64(ends[row]), np.uint64(255)
        for i in range(begin, end):
            h = hashes[i]
            at, entry = _line_of(h, number), h << np.uint64(8)
            last = at + line_size * np.uint64(_FARTHEST)
            hits = _in_line(lines, at, entry)
            while hits == 0 and at < last and lines[at + line_size - np.uint64(1)] != 0:
                at += line_size
                hits = _in_line(lines, at, entry)
            if hits == 0:
                least = np.uint64(0)
                break  # the rest of the row cannot change this
            least = min(least, lines[at + np.uint64(of_bits.first_bit(hits))] & np.uint64(255))
        is_missing[row], smallest[row] = least == 0, least
        begin = end
