"""What a statement about the use of a work is."""

from collections.abc import Iterable
from typing import NamedTuple

# In the order in which they are reported. docs/reference/reservations.md has the document of each.
NOTATIONS = (
    "x-robots-tag",
    "meta-robots",
    "content-usage",
    "content-signal",
    "tdmrep",
    "rsl",
    "iptc",
    "c2pa",
    "robots.txt",
)
VALUE_AT_MOST = 500  # characters
AT_MOST = 100  # looked at, of one kind in one file: thousands are a mistake, or malice


class Said(NamedTuple):
    """One statement as it was found."""

    notation: str  # one of `NOTATIONS`
    value: str  # as it was written, at most `VALUE_AT_MOST` characters
    where: str  # image header, page header, page meta, robots.txt, tdmrep.json, image file
    when: str | None  # UTC, ISO 8601, in seconds; None: of a file in hand


def short(value: str, words: Iterable[str] = ()) -> str:
    """A value in one line. Of a list that is too long, the members that have one of the words alone."""
    value = " ".join(value.encode("utf-8", "replace").decode().split())  # a server may send what is no text
    if len(value) > VALUE_AT_MOST:
        members = [member.strip() for member in value.split(",")]
        value = ", ".join(member for member in members if any(word in member.lower() for word in words)) or value
    return value[:VALUE_AT_MOST]
