"""Kernels that look at bytes of a page: find, compare, skip. `page` is the address of `size` bytes of UTF-8."""

import numba
import numpy as np

from altalign.filters.bits import equal64, first_bit, load8

SPACE = sum(1 << byte for byte in b"\t\n\f\r ")


@numba.njit(cache=True, nogil=True)
def is_letter(byte: int) -> bool:
    """Whether a byte is an ASCII letter."""
    return 97 <= (byte | 0x20) <= 122


@numba.njit(cache=True, nogil=True)
def is_in(byte: int, bytes_below_64: int) -> bool:
    """Whether a byte is in a set of bytes below 64, which are bits of a number."""
    return byte < 64 and (bytes_below_64 >> np.int64(byte)) & 1 != 0


@numba.njit(cache=True, nogil=True)
def find(page: int, size: int, at: int, byte: int) -> int:
    """The position of the next such byte; the page's length if there is none."""
    while at + 64 <= size:
        found = equal64(page, at, np.uint8(byte))
        if found:
            return at + first_bit(found)
        at += 64
    while at < size and load8(page, at) != byte:
        at += 1
    return min(at, size)


@numba.njit(cache=True, nogil=True)
def after_spaces(page: int, size: int, at: int) -> int:
    """The position of the next byte that is no white space."""
    while at < size and is_in(load8(page, at), SPACE):
        at += 1
    return at


@numba.njit(cache=True, nogil=True)
def starts_with(page: int, size: int, at: int, text: bytes) -> bool:
    """Whether this text stands here."""
    if at + len(text) > size:
        return False
    for place in range(len(text)):  # noqa: SIM110  (numba knows no generators in any and all)
        if load8(page, at + place) != text[place]:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def equals(page: int, begin: int, end: int, text: bytes) -> bool:
    """Whether the bytes from `begin` to `end` are this text (lower case), in any case."""
    if end - begin != len(text):
        return False
    for place in range(len(text)):
        byte = load8(page, begin + place)
        if byte != text[place] and (not is_letter(byte) or byte | 0x20 != text[place]):
            return False
    return True
