"""Kernels behind `filters.captions.clean`: which captions need work, and the simple part of that work."""

import numpy as np
from numba import njit

from filters import unicode_data
from filters.bits import address_of, any_bit64, below64, equal64, load8, store8
from filters.utf8 import decode, entry_of, place_of

SPACES = 1  # white space or controls to mend
TEXT = 2  # perhaps not NFC, or not UTF-8: the row is left to Python

CONTROL, WHITE_SPACE = unicode_data.CONTROL, unicode_data.WHITE_SPACE
NFC_CHECK, COMBINING = unicode_data.NFC_CHECK, unicode_data.COMBINING
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
SPACE, DELETE, NON_ASCII = np.uint8(0x20), np.uint8(0x7F), np.uint8(0x80)


@njit(nogil=True, cache=True)
def look(data: np.ndarray, offsets: np.ndarray, blocks: np.ndarray, entries: np.ndarray, combining: np.ndarray, needs: np.ndarray) -> int:
    """Fill `needs` (uint8[n]) with what each row needs: 0, SPACES, TEXT or both. Returns how many rows need anything.

    Shapes: data uint8[bytes], offsets int64[n + 1], and the three columns of the Unicode table.
    """
    found = 0
    edge = np.zeros(128, np.uint8)  # copy of the last bytes, so that nothing behind them is read
    edge_from = max(0, data.size - 64)
    edge[: data.size - edge_from] = data[edge_from:]
    for row in range(offsets.size - 1):
        start, end = offsets[row], offsets[row + 1]
        need = _look_at_spaces(address_of(data), address_of(edge), edge_from, start, end)
        if need & NON_ASCII:
            need |= _look_at_points(address_of(data), start, end, address_of(blocks), address_of(entries), address_of(combining))
            need &= SPACES | TEXT
        needs[row] = need
        found += need != 0
    return found


@njit(nogil=True, cache=True)
def _look_at_spaces(data: int, edge: int, edge_from: int, start: int, end: int) -> int:
    # SPACES where ASCII controls, or spaces beside one another or at an end, are in the row; NON_ASCII where such bytes are.
    wrong, high, before = np.uint64(0), np.uint64(0), np.uint64(1)  # before: the last byte was a space; the row's begin counts as one
    for at in range(start, end, 64):
        source, base = (data, at) if at <= edge_from else (edge, at - edge_from)
        row = ALL if end - at >= 64 else ~(ALL << np.uint64(end - at))
        spaces = equal64(source, base, SPACE) & row
        wrong |= (below64(source, base, SPACE) | equal64(source, base, DELETE) | (spaces & (spaces << np.uint64(1) | before))) & row
        high |= any_bit64(source, base, NON_ASCII) & row
        before = spaces >> np.uint64(63)
    trailing = end > start and load8(data, end - 1) == SPACE
    return (SPACES if wrong != 0 or trailing else 0) | (NON_ASCII if high else 0)


@njit(nogil=True, cache=True)
def _look_at_points(data: int, start: int, end: int, blocks: int, entries: int, combining: int) -> int:
    # The same for code points that are not ASCII, and whether NFC may change them: quick check and order of marks (UAX #15, section 9).
    at, need, previous, has_marks = start, 0, 0, False
    while at < end:
        if load8(data, at) < 0x80:
            at, previous = at + 1, 0
            continue
        point, size = decode(data, at, end)
        at += size
        entry = entry_of(point, blocks, entries)
        if entry & (CONTROL | WHITE_SPACE):
            need |= SPACES
        elif point < 0 or entry & NFC_CHECK:
            need |= TEXT
        mark = 0
        if entry & COMBINING:
            has_marks, mark = True, load8(combining, place_of(point, blocks))
            if mark < previous:
                need |= TEXT
        previous = mark
    return need | (TEXT if has_marks and need else 0)  # a control between two marks hides their order


@njit(nogil=True, cache=True)
def rebuild(
    data: np.ndarray,
    offsets: np.ndarray,
    blocks: np.ndarray,
    entries: np.ndarray,
    needs: np.ndarray,
    fixed: np.ndarray,
    fixed_offsets: np.ndarray,
    out: np.ndarray,
    out_offsets: np.ndarray,
) -> int:
    """Write clean rows: as they are, with spaces mended, or (those of TEXT, in their order) from `fixed`. Returns the bytes written.

    Shapes: out uint8[bytes of data and fixed], out_offsets int64[n + 1].
    """
    to, of_fixed, row = 0, 0, 0
    out_offsets[0] = 0
    while row < needs.size:
        if needs[row] & TEXT:
            start, end = fixed_offsets[of_fixed], fixed_offsets[of_fixed + 1]
            out[to : to + end - start] = fixed[start:end]
            to += end - start
            of_fixed += 1
        elif needs[row]:
            to = _mend(address_of(data), offsets[row], offsets[row + 1], address_of(blocks), address_of(entries), address_of(out), to)
        else:
            first = row
            while row + 1 < needs.size and needs[row + 1] == 0:
                row += 1
            for i in range(first, row):
                out_offsets[i + 1] = to + offsets[i + 1] - offsets[first]
            start, end = offsets[first], offsets[row + 1]
            out[to : to + end - start] = data[start:end]
            to += end - start
        out_offsets[row + 1] = to
        row += 1
    return to


@njit(nogil=True, cache=True)
def _mend(data: int, at: int, end: int, blocks: int, entries: int, out: int, to: int) -> int:
    # Copy a row of valid UTF-8 without controls, white space as single spaces, none at its ends. Returns where it ends.
    begin, pending = to, False
    while at < end:
        point, size = decode(data, at, end)
        entry = entry_of(point, blocks, entries)
        if entry & WHITE_SPACE:
            pending = to > begin
        elif not entry & CONTROL:
            if pending:
                store8(out, to, SPACE)
                to += 1
                pending = False
            for i in range(size):
                store8(out, to + i, load8(data, at + i))
            to += size
        at += size
    return to
