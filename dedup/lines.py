# ruff: noqa: ARG001  (numba types a call by the names of the parameters; the code reads them from `arguments`)
"""A table of hashes and their counts laid out for probing: one line of the CPU's cache answers whether a hash is there, and how often.

A line has eight entries of 64 bits: the low 56 bits of a hash, and its count in 8. The lines are in the order of the
hashes, so the number of a hash's line says the bits that the entry leaves out. An entry whose line is full is in one of
the next few.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, njit, types

intrinsic: Any = extending.intrinsic  # what it makes is called with other parameters than those it is written with

_A_LINE = 8  # entries
_PER_LINE = 5  # on average; with fewer the lines need more of the cache, with more the next line is asked more often
_FARTHEST = 8  # lines from an entry's own to where it is, at most
# two hashes alike in 56 bits are at least 15 lines apart: farther than any is from its own, or looked for
_LINES_AT_LEAST = 4_096
ENTRIES_AT_MOST = 1 << 23  # 107 MB of lines: more would be too much for the memory of each process

_ENTRIES = ir.VectorType(ir.IntType(64), _A_LINE)


def build(hashes: np.ndarray, counts: np.ndarray) -> np.ndarray | None:
    """Lines (uint64, a multiple of eight) of sorted hashes, or None where the table does not fit this layout.

    Args:
        hashes: uint64[n], sorted, each once.
        counts: uint8[n]; none may be 0, which marks an empty place.

    It does not fit where it is small or very large, or its hashes are not spread as those of a good hash function are.
    """
    number = len(hashes) // _PER_LINE
    if number < _LINES_AT_LEAST or len(hashes) > ENTRIES_AT_MOST or not counts.all():
        return None
    lines = np.zeros((number + _FARTHEST + 1) * _A_LINE, np.uint64)  # a probe never runs out of them
    return lines if _fill(hashes, counts, np.uint64(number), lines) else None


def measure_rows(
    lines: np.ndarray, hashes: np.ndarray, ends: np.ndarray, is_missing: np.ndarray, smallest: np.ndarray
) -> None:
    """Fill, of rows of hashes that end at `ends`, whether any hash is missing (bool[n]), and the smallest count (uint8[n]: 0 of a missing one, 255 of none)."""
    _measure_rows(lines, np.uint64(len(lines) // _A_LINE - _FARTHEST - 1), hashes, ends, is_missing, smallest)


@njit(nogil=True)
def _line_of(h: np.uint64, number: np.uint64) -> np.uint64:
    # Where the line of a hash begins. By its upper half: there are fewer lines than it has values.
    return ((h >> np.uint64(32)) * number >> np.uint64(32)) * np.uint64(_A_LINE)


@njit(nogil=True, cache=True)
def _fill(hashes: np.ndarray, counts: np.ndarray, number: np.uint64, lines: np.ndarray) -> bool:
    """Put every entry into the first line from its own on that has room; False where one would get too far."""
    place = np.uint64(0)  # behind the last entry
    for i in range(len(hashes)):
        own = _line_of(hashes[i], number)
        place = max(place, own)
        if place >= own + np.uint64(_A_LINE * (_FARTHEST + 1)):
            return False
        lines[place] = hashes[i] << np.uint64(8) | np.uint64(counts[i])
        place += np.uint64(1)
    return True


def _find_in_line(context: Any, builder: Any, signature: Any, arguments: Any) -> ir.Value:
    lines, begin, entry = arguments
    start = builder.gep(context.make_array(signature.args[0])(context, builder, lines).data, [begin])
    found = builder.load(builder.bitcast(start, _ENTRIES.as_pointer()), align=8)
    lane = builder.insert_element(ir.Constant(_ENTRIES, ir.Undefined), entry, ir.Constant(ir.IntType(32), 0))
    every = builder.shuffle_vector(
        lane, ir.Constant(_ENTRIES, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), _A_LINE), None)
    )
    # An empty place, which has no count, is none of a hash whose 56 bits are 0: less 1 it is the most there is.
    less_one = builder.sub(builder.xor(found, every), ir.Constant(_ENTRIES, [1] * _A_LINE))
    bits = builder.bitcast(
        builder.icmp_unsigned("<", less_one, ir.Constant(_ENTRIES, [255] * _A_LINE)), ir.IntType(_A_LINE)
    )
    return builder.zext(bits, ir.IntType(64))


@intrinsic
def _in_line(_typing_context: Any, lines: Any, begin: Any, entry: Any) -> tuple[Any, Any]:
    """`_in_line(lines, begin, entry) -> uint64`: which of the eight places from `begin` on have this entry with any count, as bits."""
    return types.uint64(lines, types.uint64, types.uint64), _find_in_line


@intrinsic
def _lowest_bit(_typing_context: Any, bits: Any) -> tuple[Any, Any]:
    """`_lowest_bit(bits) -> uint64`: the number of the lowest bit that is 1, of at least one."""
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
            found = _in_line(lines, at, entry)
            while found == 0 and at < last and lines[at + line_size - np.uint64(1)] != 0:
                at += line_size
                found = _in_line(lines, at, entry)
            if found == 0:
                least = np.uint64(0)
                break  # what else the row has says nothing more
            least = min(least, lines[at + _lowest_bit(found)] & np.uint64(255))
        is_missing[row], smallest[row] = least == 0, least
        begin = end
