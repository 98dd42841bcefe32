"""UTF-8 inside kernels: one code point decoded, checked and encoded."""

import numpy as np
from numba import njit

INVALID = -1  # "code point" of a byte that begins no valid sequence


@njit(nogil=True, cache=True, inline="never")
def decode(data: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """Code point and length of the sequence at `at`, which ends before `end`; (INVALID, 1) where it is not valid UTF-8.

    As Python decodes: no surrogates, no overlong forms, nothing above U+10FFFF.
    """
    lead = np.int64(data[at])
    if lead < 0x80:
        return lead, 1
    if 0xC2 <= lead < 0xE0 and at + 1 < end and data[at + 1] & 0xC0 == 0x80:
        return (lead & 0x1F) << 6 | data[at + 1] & 0x3F, 2
    if lead & 0xF0 == 0xE0 and at + 2 < end and data[at + 1] & 0xC0 == 0x80 and data[at + 2] & 0xC0 == 0x80:
        point = (lead & 0xF) << 12 | np.int64(data[at + 1] & 0x3F) << 6 | data[at + 2] & 0x3F
        return (point, 3) if point >= 0x800 and point >> 11 != 0x1B else (INVALID, 1)
    if 0xF0 <= lead < 0xF5 and at + 3 < end and data[at + 1] & 0xC0 == 0x80 and data[at + 2] & 0xC0 == 0x80 and data[at + 3] & 0xC0 == 0x80:
        point = (lead & 7) << 18 | np.int64(data[at + 1] & 0x3F) << 12 | np.int64(data[at + 2] & 0x3F) << 6 | data[at + 3] & 0x3F
        return (point, 4) if 0x10000 <= point < 0x110000 else (INVALID, 1)
    return INVALID, 1


@njit(nogil=True, cache=True)
def encode(point: int, text: np.ndarray, at: int) -> int:
    """Write a code point to `text`; how many bytes it took. 4 bytes must be there."""
    if point < 0x80:
        text[at] = point
        return 1
    if point < 0x800:
        text[at] = 0xC0 | point >> 6
        text[at + 1] = 0x80 | point & 0x3F
        return 2
    if point < 0x10000:
        text[at] = 0xE0 | point >> 12
        text[at + 1] = 0x80 | point >> 6 & 0x3F
        text[at + 2] = 0x80 | point & 0x3F
        return 3
    text[at] = 0xF0 | point >> 18
    text[at + 1] = 0x80 | point >> 12 & 0x3F
    text[at + 2] = 0x80 | point >> 6 & 0x3F
    text[at + 3] = 0x80 | point & 0x3F
    return 4


@njit(nogil=True, cache=True)
def entry_of(point: int, blocks: np.ndarray, entries: np.ndarray) -> int:
    """Entry of the Unicode table as int64; 0, a character of no class, for INVALID."""
    if point < 0:
        return np.int64(0)
    return np.int64(entries[np.int64(blocks[point >> 6]) << 6 | point & 63])
