"""Captions, words and n-grams one code point at a time: the oracle of the text kernels.

Written from the contract alone (product.md, section 3), with nothing of filters but the choice of Unicode's data, and
without Arrow or NumPy, so that one mistake is not made twice. Slow and obvious on purpose.
"""

from collections.abc import Callable, Sequence
from functools import cache
from html.entities import html5
from itertools import pairwise

from fontTools.unicodedata import script

from altalign.filters.unicode_16 import unicodedata

# Unicode 16.0, property White_Space. Neither U+001C to U+001F nor U+200B are in it, though str.split() breaks at the
# former.
WHITE_SPACE = (
    "\t\n\v\f\r "
    "\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
ZERO_WIDTH_SPACE = "\u200b"
WITHOUT_SPACES = {"Hani", "Hira", "Kana", "Thai", "Laoo", "Khmr", "Mymr", "Tibt"}

# Where str.lower() of one code point is not field 13 of UnicodeData 16.0: it has U+0130 of SpecialCasing, and lacks the
# letters that Python's own Unicode (14.0 in 3.11, 15.0 in 3.12) does not know. test_reference.py holds all mappings
# against a digest.
LOWER_16 = {
    "\u0130": "i",
    "\u1c89": "\u1c8a",
    "\ua7cb": "\u0264",
    "\ua7cc": "\ua7cd",
    "\ua7da": "\ua7db",
    "\ua7dc": "\u019b",
} | {chr(upper): chr(upper + 0x20) for upper in range(0x10D50, 0x10D66)}

# Numeric references to C1 controls mean the Windows-1252 character (HTML Standard, numeric character reference end
# state).
C1_REFERENCES = {
    code: bytes([code]).decode("cp1252") for code in range(0x80, 0xA0) if code not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)
}  # fmt: skip
LONGEST_NAME = max(map(len, html5))
ALPHANUMERIC = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def clean(text: str) -> str:
    """Controls that are not white space removed, NFC, every run of White_Space one space, stripped."""
    text = "".join(c for c in text if c in WHITE_SPACE or unicodedata.category(c) != "Cc")
    text = unicodedata.normalize("NFC", text)
    text = "".join(" " if c in WHITE_SPACE else c for c in text)
    return " ".join(part for part in text.split(" ") if part)


def folded(text: str) -> str:
    """Each code point replaced by its simple lower-case mapping; not normalised again."""
    return "".join(LOWER_16.get(c) or c.lower() for c in text)


def decode_entities(text: str) -> str:
    """Character references decoded once, as in an HTML attribute value."""
    parts, at = [], 0
    while at < len(text):
        found, length = _reference(text, at) if text[at] == "&" else (text[at], 1)
        parts.append(found)
        at += length
    return "".join(parts)


def _reference(text: str, at: int) -> tuple[str, int]:
    """What the ampersand at `at` stands for, and how many characters of the text that takes."""
    if text[at + 1 : at + 2] == "#":
        return _numeric_reference(text, at)
    for end in range(min(len(text), at + 1 + LONGEST_NAME), at + 1, -1):
        name = text[at + 1 : end]
        if name in html5:
            next_one = text[end : end + 1]
            if name[-1] != ";" and (next_one == "=" or next_one in ALPHANUMERIC):
                return text[at:end], end - at  # "&copy=2" of a query string: only in attributes, and left alone
            return html5[name], end - at
    return "&", 1


def _numeric_reference(text: str, at: int) -> tuple[str, int]:
    start, digits, base = (
        (at + 3, "0123456789abcdefABCDEF", 16) if text[at + 2 : at + 3] in ("x", "X") else (at + 2, "0123456789", 10)
    )
    end = start
    while end < len(text) and text[end] in digits:
        end += 1
    if end == start:
        return "&", 1
    # nine digits are beyond U+10FFFF already, and endless ones take endless time
    significant = text[start:end].lstrip("0")[:9] or "0"
    code = int(significant, base)
    length = end - at + (text[end : end + 1] == ";")
    if code == 0 or code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        return "\ufffd", length
    return C1_REFERENCES.get(code, chr(code)), length


@cache
def category(c: str) -> str:
    """General category of Unicode 16.0."""
    return unicodedata.category(c)


def is_letter(c: str) -> bool:
    return category(c)[0] == "L"


def is_mark(c: str) -> bool:
    return category(c)[0] == "M"


def is_letter_or_number(c: str) -> bool:
    return category(c)[0] in "LN"


def is_word_character(c: str) -> bool:
    return category(c)[0] in "LMN" or category(c) == "Pc"


@cache
def stands_alone(c: str) -> bool:
    """A letter or number of a script without spaces, which is a word of its own."""
    return is_letter_or_number(c) and script(c) in WITHOUT_SPACES


def words(caption: str) -> list[str]:
    """Words of a cleaned caption (folded here), in order; an apostrophe inside is ' whichever it was."""
    text = [c for c in folded(caption).replace("’", "'") if category(c) != "Cf" or c == ZERO_WIDTH_SPACE]
    found, start = [], 0
    while start < len(text):
        if stands_alone(text[start]):
            end = _end(text, start, lambda at: is_mark(text[at]) or category(text[at]) == "Lm")
        elif is_word_character(text[start]):
            end = _end(text, start, lambda at: _goes_on(text, at))
        else:
            start += 1
            continue
        if any(is_letter_or_number(c) for c in text[start:end]):
            found.append("".join(text[start:end]))
        start = end
    return found


def _end(text: Sequence[str], start: int, goes_on: Callable[[int], bool]) -> int:
    end = start + 1
    while end < len(text) and goes_on(end):
        end += 1
    return end


def _goes_on(text: Sequence[str], at: int) -> bool:
    """Whether a run of word characters, none of which stands alone, goes on at `at`."""
    if text[at] == "'":
        following = text[at + 1] if at + 1 < len(text) else " "
        return (
            (is_letter(text[at - 1]) or is_mark(text[at - 1])) and is_letter(following) and not stands_alone(following)
        )
    return is_word_character(text[at]) and not stands_alone(text[at])


def bigrams(found: Sequence[str]) -> list[str]:
    """Two neighbouring words, written with a space between them, which no word holds."""
    return [f"{first} {second}" for first, second in pairwise(found)]
