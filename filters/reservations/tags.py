"""`x-robots-tag` and `meta-robots`: directives as Google documents them, with DeviantArt's `noai` and `noimageai`."""

import re
from collections.abc import Sequence

from altalign.data.preferences import Said

_NO_AI = frozenset({"noai", "noimageai"})
_NO_INDEX = frozenset({"noindex", "noimageindex", "none"})  # `none` is noindex and nofollow
WORDS = _NO_AI | _NO_INDEX  # img2dataset refuses these by default
_OPPOSING = {"train": WORDS, "train-generative": _NO_AI, "train-other": _NO_AI, "search": _NO_INDEX}

# Those that have a value. What else stands before a colon is the name of a robot, unless it is a part of a date.
_VALUED = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
_ROBOT = re.compile(r"[a-z_][\w.-]*|\*")


def oppose(said: Sequence[Said], purpose: str, token: str) -> bool:
    """Whether tags oppose a purpose, for a product token in lower case."""
    return any(directives(each.value, token) & _OPPOSING[purpose] for each in said)


def directives(value: str, token: str) -> set[str]:
    """The directives of a tag for a robot: those before any name, and those after its own up to the next name."""
    found, is_meant = set[str](), True
    for part in value.lower().split(","):
        before, colon, after = part.partition(":")
        name, *others = before.partition("/")[0].split() or [""]
        if colon and name not in _VALUED and (name == token or (not others and _ROBOT.fullmatch(name))):
            is_meant = name in (token, "*")
            part = after
        if is_meant:
            found.add(part.strip())
    return found - {""}
