"""The frozen Unicode 16.0 table: lower case and class of every code point, the same on every machine.

Interpreters, pyarrow and operating systems bring Unicode data of their own, in different versions. Captions and words
depend on `unicode_16.npz` alone, which `tools/make_unicode_data.py` writes and a test regenerates.
"""

from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

UNICODE_VERSION = "16.0.0"
CODE_POINTS = 0x110000
BLOCK = 64  # code points in a block
FOLD = (1 << 21) - 1  # low bits of an entry: simple lower-case mapping minus the code point, modulo 2^21

LETTER = 1 << 21  # L*
MARK = 1 << 22  # M*
NUMBER = 1 << 23  # N*
CONNECTOR = 1 << 24  # Pc
MODIFIER_LETTER = 1 << 25  # Lm, a LETTER too
FORMAT = 1 << 26  # Cf without U+200B, which separates words
CONTROL = 1 << 27  # Cc
WHITE_SPACE = 1 << 28  # property White_Space
SINGLE = 1 << 29  # LETTER or NUMBER whose Script writes words without spaces
NFC_CHECK = 1 << 30  # NFC_Quick_Check is No or Maybe
COMBINING = 1 << 31  # Canonical_Combining_Class is not 0


class UnicodeTable(NamedTuple):
    """Entries in blocks of 64 code points; equal blocks are stored once.

    The entry of code point c is `entries[blocks[c >> 6] << 6 | c & 63]`.
    """

    blocks: npt.NDArray[np.uint16]  # [17408]: the block of c >> 6
    entries: npt.NDArray[np.uint32]  # [64 * blocks]: fold in the low 21 bits, class above
    combining: npt.NDArray[np.uint8]  # [64 * blocks]: Canonical_Combining_Class


@cache
def table() -> UnicodeTable:
    """The table, read once per process; its arrays are read-only."""
    with np.load(Path(__file__).with_name("unicode_16.npz")) as stored:
        arrays = [stored[name] for name in UnicodeTable._fields]
    for array in arrays:
        array.setflags(write=False)
    return UnicodeTable(*arrays)


@lru_cache(1 << 16)
def entry(character: str) -> int:
    """Entry of one character: fold in the low 21 bits, class above."""
    blocks, entries, _ = table()
    point = ord(character)
    return int(entries[int(blocks[point >> 6]) << 6 | point & 63])


@cache
def lower_case() -> dict[int, int]:
    """Simple lower-case mapping of code points that have one (UnicodeData field 13), as `str.translate` takes it."""
    blocks, entries, _ = table()
    points = np.arange(CODE_POINTS)
    delta = (entries.reshape(-1, BLOCK)[blocks] & FOLD).ravel()
    changed = np.flatnonzero(delta)
    return dict(zip(points[changed].tolist(), ((changed + delta[changed]) & FOLD).tolist(), strict=True))
