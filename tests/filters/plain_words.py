"""The word rule once more, as one regular expression over classes of characters.

The slow twin of altalign.filters.words.

Each visible character of the folded caption becomes a letter that names its class; classes come from unicodedata2 and
fontTools alone, not from the frozen table.
"""

import re
from functools import cache

from fontTools.unicodedata import script

from altalign.filters.one_caption import blocks, folded, mix
from altalign.filters.unicode_16 import unicodedata
from altalign.filters.word_kernels import STEP_1, STEP_2
from tools.make_unicode_data import simple_lower_case

UINT64 = (1 << 64) - 1

UNSPACED = {"Hani", "Hira", "Kana", "Thai", "Laoo", "Khmr", "Mymr", "Tibt"}
# H letter or number of a script without spaces, h the same and a modifier letter, l another modifier letter, L another
# letter, N another number, M mark, C connector, q apostrophe
WORD = re.compile(r"[Hh][hlM]*|[LlNMC](?:[LlNMC]|(?<=[LlM])q(?=[Ll]))*")
FORMAT = "-"


def plain_words(caption: str) -> list[str]:
    """Words of a clean caption, in order."""
    lower = simple_lower_case_of_unicode_16()
    visible = [c for c in caption.translate(lower) if class_of(c) != FORMAT]
    found = [match.span() for match in WORD.finditer("".join(map(class_of, visible))) if re.search("[HhLlN]", match[0])]
    return ["".join(visible[start:stop]).replace("’", "'") for start, stop in found]


@cache
def simple_lower_case_of_unicode_16() -> dict[int, int]:
    """As `str.translate` takes it."""
    return simple_lower_case()


@cache
def class_of(character: str) -> str:
    """One letter, as above; "." for what is in no word."""
    category = unicodedata.category(character)
    if category[0] in "LN" and script(character) in UNSPACED:
        return "h" if category == "Lm" else "H"
    if character in "'’":
        return "q"
    if category == "Cf" and character != "\u200b":
        return FORMAT
    return {"Lm": "l", "Pc": "C"}.get(category) or (category[0] if category[0] in "LNM" else ".")


def hash_of_text(caption: str) -> int:
    """Hash of a caption after folding, as in `Scan.texts`."""
    text = folded(caption).encode()
    lanes = [int(STEP_1), int(STEP_2)]
    for i, block in enumerate(blocks(text.ljust(len(text) // 16 * 16 + 16, b"\0"))):
        lane = lanes[i % 2] + block * int(STEP_2) & UINT64
        lanes[i % 2] = (lane << 31 | lane >> 33) * int(STEP_1) & UINT64
    return mix(mix(lanes[0] + len(text) & UINT64) ^ lanes[1])
