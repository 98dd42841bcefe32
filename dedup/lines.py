# ruff: noqa: ARG001  (numba types a call by the names of the parameters; the code reads them from `arguments`)
"""A table of hashes and counts laid out for probing: one line of the CPU's cache holds the answer for a hash.

A line has eight entries of 64 bits: the low 56 bits of a hash, and its count in 8. The lines are in the order of the
hashes, so the number of a line tells the bits that its entries leave out. An entry whose line is full is in one of the
next few.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types

from altalign.filters.bits import Arguments, Builder, Context, Intrinsic, Kind, Signature, intrinsic

_A_LINE = 8  # entries of a line
_PER_LINE = 5  # entries on average; fewer need more of the cache, with more the next line is read more often
_FARTHEST = 8  # lines between an entry's own line and its place, at most
# Two hashes that share 56 bits are then at least 15 lines apart, farther than an entry is placed or looked for.
_LINES_AT_LEAST = 4_096
ENTRIES_AT_MOST = 1 << 23  # 107 MB of lines in each process

_ENTRIES = ir.VectorType(ir.IntType(64), _A_LINE)


def build(hashes: np.ndarray, counts: np.ndarray) -> np.ndarray | None:
    """Lines (uint64, a multiple of eight) of sorted hashes, or None if the table does not fit this layout.

    A table does not fit if it is small or very large, or its hashes are not spread evenly.

    Args:
        hashes: uint64[n], sorted and distinct.
        counts: uint8[n]; 0 marks an empty place, so a table with a count of 0 does not fit.
    """
    number = len(hashes) // _PER_LINE
    if number < _LINES_AT_LEAST or len(hashes) > ENTRIES_AT_MOST or not counts.all():
        return None
    lines = np.zeros((number + _FARTHEST + 1) * _A_LINE, np.uint64)  # a probe never runs out of them
    return lines if _fill(hashes, counts, np.uint64(number), lines) else None


def measure_rows(
    lines: np.ndarray, hashes: np.ndarray, ends: np.ndarray, is_missing: np.ndarray, smallest: np.ndarray
) -> None:
    """Fill `is_missing` (bool[n]) and `smallest` (uint8[n]) as `HashTable.measure_rows` returns them.

    Rows end at `ends` (int64[n]) in `hashes` (uint64[m]).
    """
    _measure_rows(lines, np.uint64(len(lines) // _A_LINE - _FARTHEST - 1), hashes, ends, is_missing, smallest)


@njit(nogil=True)
def _line_of(h: np.uint64, number: np.uint64) -> np.uint64:
    # Where the line of a hash begins. The upper half of the hash decides: it has more values than there are lines.
    return ((h >> np.uint64(32)) * number >> np.uint64(32)) * np.uint64(_A_LINE)


@njit(nogil=True, cache=True)
def _fill(hashes: np.ndarray, counts: np.ndarray, number: np.uint64, lines: np.ndarray) -> bool:
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


def _find_in_line(context: Context, builder: Builder, signature: Signature, arguments: Arguments) -> ir.Value:
    lines, begin, entry = arguments
    start = builder.gep(context.make_array(signature.args[0])(context, builder, lines).data, [begin])
    line = builder.load(builder.bitcast(start, _ENTRIES.as_pointer()), align=8)
    lane = builder.insert_element(ir.Constant(_ENTRIES, ir.Undefined), entry, ir.Constant(ir.IntType(32), 0))
    first_lane = ir.Constant(ir.VectorType(ir.IntType(32), _A_LINE), None)
    every = builder.shuffle_vector(lane, ir.Constant(_ENTRIES, ir.Undefined), first_lane)
    # An empty place has no count, so it never matches a hash whose 56 bits are 0: less 1, it is the largest number.
    less_one = builder.sub(builder.xor(line, every), ir.Constant(_ENTRIES, [1] * _A_LINE))
    is_here = builder.icmp_unsigned("<", less_one, ir.Constant(_ENTRIES, [255] * _A_LINE))
    return builder.zext(builder.bitcast(is_here, ir.IntType(_A_LINE)), ir.IntType(64))


@intrinsic
def _in_line(_typing_context: object, lines: Kind, begin: Kind, entry: Kind) -> Intrinsic:
    """`_in_line(lines, begin, entry) -> uint64`: bits of the eight places from `begin` on that have this entry."""
    return types.uint64(lines, types.uint64, types.uint64), _find_in_line


@intrinsic
def _lowest_bit(_typing_context: object, bits: Kind) -> Intrinsic:
    """`_lowest_bit(bits) -> uint64`: the number of the lowest bit that is set; at least one must be."""
    return types.uint64(types.uint64), lambda _context, builder, _signature, arguments: builder.cttz(
        arguments[0], ir.Constant(ir.IntType(1), 1)
    )


@njit(nogil=True, cache=True)
def _measure_rows(
    lines: np.ndarray,
    number: np.uint64,
    hashes: np.ndarray,
    ends: np.ndarray,
    is_missing: np.ndarray,
    smallest: np.ndarray,
) -> None:
    # Unsigned places: numba would ask each whether it counts from the end.
    line_size, begin = np.uint64(_A_LINE), np.uint64(0)
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
            least = min(least, lines[at + _lowest_bit(hits)] & np.uint64(255))
        is_missing[row], smallest[row] = least == 0, least
        begin = end
