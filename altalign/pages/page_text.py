"""Makes untrusted strings fit for a page: hidden characters, length and links. The templates escape HTML."""

import unicodedata
from dataclasses import dataclass

CAPTION_AT_MOST, URL_AT_MOST, LINK_AT_MOST = 400, 120, 500  # characters
# Characters that join letters, break lines or hint at a direction: scripts need them, and in <bdi> they hide nothing.
_HARMLESS = frozenset("\u00ad\u061c\u200c\u200d\u200e\u200f")
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
_MARKS = frozenset(("Mn", "Me"))
_MARKS_AT_MOST = 4  # in a row; more would paint over the lines above and below


@dataclass(frozen=True)
class Shown:
    """A string as it is shown, and how many of its characters were left out."""

    text: str
    left_out: int


def shown(text: str, at_most: int = CAPTION_AT_MOST) -> Shown:
    r"""Cuts a string and writes out what could mislead in it, as `\u202e`.

    That is control and format characters (direction overrides too), lone surrogates, and the fifth and further marks
    on one letter. The most characters are counted as they are shown; what is beyond the cut is not read.
    """
    parts, length, marks = [], 0, 0
    for number, character in enumerate(text):
        kind = unicodedata.category(character)
        marks = marks + 1 if kind in _MARKS else 0
        is_shown = character in _HARMLESS or (kind not in _HIDDEN and marks <= _MARKS_AT_MOST)
        written = character if is_shown else character.encode("unicode_escape").decode("ascii")
        length += len(written)
        if length > at_most:
            return Shown("".join(parts), len(text) - number)
        parts.append(written)
    return Shown("".join(parts), 0)


def link(url: str | None) -> str | None:
    """The URL if a page may link to it (http or https, short, printable ASCII without quotes or spaces), else None."""
    if not url or len(url) > LINK_AT_MOST or not url.lower().startswith(("http://", "https://")):
        return None
    return url if all("!" <= character <= "~" and character not in "\"'<>`\\" for character in url) else None


def number(value: float) -> str:
    """A count with thousands separators, or another number in four digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def size(value: float) -> str:
    """A number of bytes with its unit, for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:,.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def share(part: float, whole: float) -> str:
    """A part of a whole in percent, never rounded to 0 or 100 %; empty if the whole is 0."""
    if not whole:
        return ""
    percent = 100 * part / whole
    if 0 < percent < 0.01:
        return "<\u20090.01\u2009%"
    if 99.95 <= percent < 100:
        return ">\u200999.9\u2009%"
    return f"{percent:.2f}\u2009%" if percent < 1 and part else f"{percent:.1f}\u2009%"
