"""Writes filters/unicode_16.npz and filters/scripts_16.npz: `python -m tools.make_unicode_data`.

Sources, all of Unicode 16.0: categories, combining classes and NFC of unicodedata2 16.0.0, scripts of fonttools 4.60
(whose later code points unicodedata2 does not assign), lower case of simple_lower_case_16.txt, White_Space from
PropList.txt.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from altalign.filters import unicode_data
from altalign.filters.unicode_16 import unicodedata
from altalign.filters.unicode_data import BLOCK, CODE_POINTS, UnicodeTable

FILTERS = Path(__file__).parents[1] / "filters"
ZERO_WIDTH_SPACE = 0x200B
# fmt: off
WHITE_SPACE = {
    *range(0x9, 0xE), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000,
}
# fmt: on
UNSPACED_SCRIPTS = {"Hani", "Hira", "Kana", "Thai", "Laoo", "Khmr", "Mymr", "Tibt"}  # product.md section 3, words
CLASS_OF_CATEGORY = {
    "L": unicode_data.LETTER,
    "Lm": unicode_data.MODIFIER_LETTER,
    "M": unicode_data.MARK,
    "N": unicode_data.NUMBER,
    "Pc": unicode_data.CONNECTOR,
    "Cf": unicode_data.FORMAT,
    "Cc": unicode_data.CONTROL,
}
# Hangul vowels and final consonants: they compose by rule
LAST_SYLLABLE_PARTS = (range(0x1161, 0x1176), range(0x11A8, 0x11C3))


def build() -> UnicodeTable:
    """Build the table from the sources alone."""
    lower = simple_lower_case()
    doubtful = nfc_doubtful()
    entries = np.array([_entry(point, lower, doubtful) for point in range(CODE_POINTS)], np.uint32)
    combining = np.array([unicodedata.combining(chr(point)) for point in range(CODE_POINTS)], np.uint8)
    both = np.stack([entries, combining], axis=1).reshape(-1, BLOCK * 2)
    _, first, blocks = np.unique(both, axis=0, return_index=True, return_inverse=True)
    return UnicodeTable(
        blocks.ravel().astype(np.uint16),
        entries.reshape(-1, BLOCK)[first].ravel(),
        combining.reshape(-1, BLOCK)[first].ravel(),
    )


def simple_lower_case() -> dict[int, int]:
    """UnicodeData field 13, for the code points where it is not empty."""
    lines = (FILTERS / "simple_lower_case_16.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(";") for line in lines if not line.startswith("#"))
    return {int(upper, 16): int(lower, 16) for upper, lower in pairs}


def nfc_doubtful() -> set[int]:
    """Code points whose NFC_Quick_Check is No (NFC changes them) or Maybe (they compose with a character before)."""
    changed = {point for point in _characters() if unicodedata.normalize("NFC", chr(point)) != chr(point)}
    return changed.union((ord(second) for _, second in compositions()), *LAST_SYLLABLE_PARTS)


def compositions() -> Iterator[tuple[str, str]]:
    """Pairs of characters that NFC makes one, except those of Hangul."""
    for point in _characters():
        parts = unicodedata.decomposition(chr(point)).split()  # begins with a <tag> if it is not canonical
        if len(parts) == 2 and not parts[0].startswith("<") and unicodedata.normalize("NFC", chr(point)) == chr(point):
            yield chr(int(parts[0], 16)), chr(int(parts[1], 16))


def _characters() -> Iterator[int]:
    yield from range(0xD800)
    yield from range(0xE000, CODE_POINTS)


def _entry(point: int, lower: dict[int, int], doubtful: set[int]) -> int:
    from fontTools.unicodedata import script  # a test dependency; reading the table does not need it

    character = chr(point)
    category = unicodedata.category(character)
    entry = (lower.get(point, point) - point) & unicode_data.FOLD
    if point != ZERO_WIDTH_SPACE:
        entry |= CLASS_OF_CATEGORY.get(category[0], 0) | CLASS_OF_CATEGORY.get(category, 0)
    if entry & (unicode_data.LETTER | unicode_data.NUMBER) and script(character) in UNSPACED_SCRIPTS:
        entry |= unicode_data.SINGLE
    entry |= unicode_data.WHITE_SPACE if point in WHITE_SPACE else 0
    entry |= unicode_data.NFC_CHECK if point in doubtful else 0
    return entry | (unicode_data.COMBINING if unicodedata.combining(character) else 0)


def build_scripts() -> dict[str, npt.NDArray[Any]]:
    """Build the table of `altalign.filters.languages`: starts, scripts and names."""
    from fontTools.unicodedata import script, script_name

    codes = [script(chr(point)) for point in range(CODE_POINTS)]
    names = ["", *sorted({script_name(code) for code in codes} - {"Common", "Inherited", "Unknown"})]
    numbers = np.array([names.index(name) if (name := script_name(code)) in names else 0 for code in codes], np.uint8)
    starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
    return {"starts": starts.astype(np.uint32), "scripts": numbers[starts], "names": np.array(names)}


def main() -> None:
    """Write the tables."""
    np.savez_compressed(FILTERS / "unicode_16.npz", **build()._asdict())
    table = build_scripts()
    np.savez_compressed(
        FILTERS / "scripts_16.npz", starts=table["starts"], scripts=table["scripts"], names=table["names"]
    )


if __name__ == "__main__":
    main()
