"""UTF-8 inside kernels: decodes, checks, looks up and encodes one code point at an address (see bits.py)."""

from numba import njit

from altalign.filters.bits import load8, load16, load32, store8

INVALID = -1  # "code point" of a byte that begins no valid sequence


@njit(nogil=True)
def decode(data: int, at: int, end: int) -> tuple[int, int]:
    """Code point and length of the sequence that is at `at` and ends by `end`; (INVALID, 1) if it is not valid UTF-8.

    Validity is Python's: no surrogates, no overlong forms, nothing above U+10FFFF.
    """
    lead = load8(data, at)
    if lead < 0x80:
        return lead, 1
    second = load8(data, at + 1) ^ 0x80 if at + 1 < end else 0xFF
    if second >= 0x40 or lead < 0xC2:
        return INVALID, 1
    if lead < 0xE0:
        return (lead & 0x1F) << 6 | second, 2
    third = load8(data, at + 2) ^ 0x80 if at + 2 < end else 0xFF
    if third >= 0x40:
        return INVALID, 1
    if lead < 0xF0:
        point = (lead & 0xF) << 12 | second << 6 | third
        return (point, 3) if point >= 0x800 and point >> 11 != 0x1B else (INVALID, 1)
    fourth = load8(data, at + 3) ^ 0x80 if at + 3 < end else 0xFF
    point = (lead & 0xF) << 18 | second << 12 | third << 6 | fourth
    return (point, 4) if fourth < 0x40 and 0x10000 <= point < 0x110000 else (INVALID, 1)


@njit(nogil=True)
def encode(point: int, text: int, at: int) -> int:
    """Write a code point; returns the number of bytes."""
    if point < 0x80:
        store8(text, at, point)
        return 1
    if point < 0x800:
        store8(text, at, 0xC0 | point >> 6)
        store8(text, at + 1, 0x80 | point & 0x3F)
        return 2
    if point < 0x10000:
        store8(text, at, 0xE0 | point >> 12)
        store8(text, at + 1, 0x80 | point >> 6 & 0x3F)
        store8(text, at + 2, 0x80 | point & 0x3F)
        return 3
    store8(text, at, 0xF0 | point >> 18)
    store8(text, at + 1, 0x80 | point >> 12 & 0x3F)
    store8(text, at + 2, 0x80 | point >> 6 & 0x3F)
    store8(text, at + 3, 0x80 | point & 0x3F)
    return 4


@njit(nogil=True)
def place_of(point: int, blocks: int) -> int:
    """The place of a code point in the columns of the Unicode table (`unicode_data.UnicodeTable`)."""
    return load16(blocks, (point >> 6) * 2) << 6 | point & 63


@njit(nogil=True)
def entry_of(point: int, blocks: int, entries: int) -> int:
    """The code point's entry in the Unicode table; 0, which is no class, for INVALID."""
    return load32(entries, place_of(point, blocks) * 4) if point >= 0 else 0
