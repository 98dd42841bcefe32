# ruff: noqa: ARG001  (numba types a call by the names of the parameters; the code reads them from `arguments`)
"""A table of hashes and counts laid out for probing: one line of the CPU's cache holds the answer for a hash.

A line has eight entries of 64 bits: the low 56 bits of a hash, and its count in 8. The lines are in the order of the
hashes, so the number of a line tells the bits that its entries leave out. An entry whose line is full is in one of the
next few.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types

from altalign.filters.bits import (
    Arguments,
    Builder,
    Context,
    Intrinsic,
    Kind,
    Signature,
    first_bit,
    intrinsic,
    on_all_lanes,
)

_A_LINE = 8  # entries of a line
_PER_LINE = 5  # entries on average; fewer need more of the cache, with more the next line is read more often
_FARTHEST = 8  # lines between an entry's own line and its place, at most
# Two hashes that share 56 bits are then at least 15 lines apart, farther than an entry is placed or looked for.
_LINES_AT_LEAST = 4_096
ENTRIES_AT_MOST = 1 << 23  # 107 MB of lines in each process

_ENTRIES = ir.VectorType(ir.IntType(64), _A_LINE)


def build(hashes: np.ndarray, counts: np.ndarray) -> np.ndarray | None:
    """Lines (uint64, a multiple of eight) of hashes (uint64[n], rising) and their counts (uint8[n]).

    None of a table that does not fit: it is small or very large, has a count of 0, which marks an empty place, or its
    hashes are not spread evenly.
    """
    number = len(hashes) // _PER_LINE
    if number < _LINES_AT_LEAST or len(hashes) > ENTRIES_AT_MOST or not counts.all():
        return None
    lines = np.zeros((number + _FARTHEST + 1) * _A_LINE, np.uint64)  # a probe never runs out of them
    return lines if _fill(hashes, counts, np.uint64(number), lines) else None


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


@intrinsic
def _in_line(_typing_context: object, lines: Kind, begin: Kind, entry: Kind) -> Intrinsic:
    """`_in_line(lines, begin, entry) -> uint64`: bits of the eight places from `begin` on that have this entry."""

    def codegen(context: Context, builder: Builder, signature: Signature, arguments: Arguments) -> ir.Value:
        lines, begin, entry = arguments
        start = builder.gep(context.make_array(signature.args[0])(context, builder, lines).data, [begin])
        line = builder.load(builder.bitcast(start, _ENTRIES.as_pointer()), align=8)
        # An empty place has no count, so it never matches a hash whose 56 bits are 0: less 1, it is the largest number.
        differing = builder.xor(line, on_all_lanes(builder, entry, _A_LINE))
        less_one = builder.sub(differing, ir.Constant(_ENTRIES, [1] * _A_LINE))
        is_here = builder.icmp_unsigned("<", less_one, ir.Constant(_ENTRIES, [255] * _A_LINE))
        return builder.zext(builder.bitcast(is_here, ir.IntType(_A_LINE)), ir.IntType(64))

    return types.uint64(lines, types.uint64, types.uint64), codegen


@njit(nogil=True, cache=True)
def measure_rows(
    lines: np.ndarray, hashes: np.ndarray, ends: np.ndarray, is_missing: np.ndarray, smallest: np.ndarray
) -> None:
    """Fill `is_missing` (bool[n]) and `smallest` (uint8[n]) as `HashTable.measure_rows` returns them.

    Rows end at `ends` (int64[n]) in `hashes` (uint64[m]).
    """
    # Unsigned places: numba would ask each whether it counts from the end.
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
            least = min(least, lines[at + np.uint64(first_bit(hits))] & np.uint64(255))
        is_missing[row], smallest[row] = least == 0, least
        begin = end
