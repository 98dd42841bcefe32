"""Patterns of paths, as robots.txt and tdmrep.json have them (RFC 9309, sections 2.2.2 and 2.2.3)."""

import re
from typing import NamedTuple

_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_KEPT = b"/%*$"  # whose escapes mean something else


class Pattern(NamedTuple):
    """A pattern: `*` stands for any characters, `$` for the end."""

    parts: tuple[bytes, ...]  # between the asterisks, spelled alike
    is_whole: bool  # nothing follows the last part

    @classmethod
    def of(cls, text: str) -> "Pattern":
        """Reads a pattern."""
        whole = text.endswith("$")
        return cls(tuple(_spelled(text.removesuffix("$")).replace(b"$", b"%24").split(b"*")), whole)

    def matches(self, path: bytes) -> bool:
        """Whether a path, as `path_of` gives it, begins so. In linear time, whoever wrote the pattern."""
        first, *others = self.parts
        if not path.startswith(first):
            return False
        if not others:
            return not self.is_whole or path == first
        at = len(first)
        last = others.pop() if self.is_whole else None
        for part in others:
            at = path.find(part, at)
            if at < 0:
                return False
            at += len(part)
        return last is None or path.endswith(last, at)


def path_of(url: str) -> bytes:
    """The path and query of a URL, as patterns are compared with it."""
    _, _, rest = url.partition("#")[0].partition("://")
    _, slash, path = rest.partition("/")
    return _spelled(slash + path or "/").replace(b"*", b"%2A").replace(b"$", b"%24")


def _spelled(text: str) -> bytes:
    """Bytes in which nothing is escaped but what would mean something else."""

    def plain(escape: re.Match[bytes]) -> bytes:
        byte = bytes.fromhex(escape[1].decode())
        return escape[0].upper() if byte in _KEPT else byte

    return _ESCAPE.sub(plain, text.encode("utf-8", "replace"))
