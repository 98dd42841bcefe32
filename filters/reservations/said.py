"""The notations of statements, and how their values are kept."""

from collections.abc import Iterable

from altalign.data.preferences import VALUE_AT_MOST

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
AT_MOST = 100  # looked at, of one kind in one file: thousands are a mistake, or malice


def short(value: str, words: Iterable[str] = ()) -> str:
    """A value in one line. Of a list that is too long, the members that have one of the words alone."""
    value = " ".join(value.encode("utf-8", "replace").decode().split())  # a server may send what is no text
    if len(value) > VALUE_AT_MOST:
        members = [member.strip() for member in value.split(",")]
        value = ", ".join(member for member in members if any(word in member.lower() for word in words)) or value
    return value[:VALUE_AT_MOST]
