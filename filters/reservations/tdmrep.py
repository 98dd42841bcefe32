"""`tdmrep`: the TDM Reservation Protocol, W3C Community Group Final Report of 10 May 2024."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from altalign.data.preferences import Said, short
from altalign.filters.reservations.paths import Pattern, path_of

RESERVATION, POLICY = "tdm-reservation", "tdm-policy"
NAMES = (RESERVATION, POLICY)  # of headers, of `<meta>`, and of keys in the file
PATH = "/.well-known/tdmrep.json"
# Section 5: each supersedes those behind it. What a page says is of the page, and is asked besides.
_PLACES = ("image header", "tdmrep.json"), ("page meta", "page header")


@dataclass(frozen=True)
class Reservations:
    """The rules of a `/.well-known/tdmrep.json`: the first whose pattern matches is that of a URL."""

    rules: tuple[tuple[Pattern, tuple[str, ...]], ...] = ()  # pattern, and what is said of it

    @classmethod
    def parse(cls, body: bytes) -> "Reservations":
        """Reads a file; what is no rule is left out."""
        try:
            items: Any = json.loads(body)
        except (ValueError, RecursionError):
            return cls()
        rules = list[tuple[Pattern, tuple[str, ...]]]()
        for item in items if isinstance(items, list) else [items]:
            if isinstance(item, dict) and isinstance(location := item.get("location"), str):
                values = [(name, item[name]) for name in NAMES if isinstance(item.get(name), (str, int))]
                texts = (f"{name}: {int(value) if isinstance(value, bool) else value}" for name, value in values)
                pattern = location if location.startswith(("/", "*")) else f"/{location}"
                rules.append((Pattern.of(pattern), tuple(map(short, texts))))
        return cls(tuple(rules))

    def said(self, url: str, when: str | None) -> list[Said]:
        """What the file says of a URL of its origin."""
        path = path_of(url) if self.rules else b""
        texts = next((texts for pattern, texts in self.rules if pattern.matches(path)), ())
        return [Said("tdmrep", text, "tdmrep.json", when) for text in texts]


def oppose(said: Sequence[Said], purpose: str, _token: str) -> bool:
    """Whether rights in mining are reserved: in the last place that says so or not of the image, or of its page."""
    reserved = dict[str, bool]()
    for _, value, where, _ in said:
        name, _, numbers = value.partition(":")
        if name == RESERVATION and (digits := {number.strip() for number in numbers.split(",")} & {"0", "1"}):
            reserved[where] = reserved.get(where, False) or "1" in digits
    last = (next((reserved[where] for where in places if where in reserved), False) for places in _PLACES)
    return purpose != "search" and any(last)
