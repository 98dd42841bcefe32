"""What a page asks for, as SQL on the table of pairs: filters, facets, orders.

A filter is JSON: `values` (any of these, by column), `ranges` ([least, most], null where open, by column), `text` and
`url` (parts of a caption, of the URL of an image or a page, ignoring case). Parts are joined by AND.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from altalign.errors import UsageError
from altalign.filters.where import quoted

# Expressions on columns of the table, by their names in filters.
SIZES = {
    "short_side": ("least(width, height)", "Short side, px"),
    "aspect": ("greatest(width, height) / least(width, height)", "Long side / short side"),
}
NUMBERS = {
    "words": "Words",
    "width": "Width, px",
    "height": "Height, px",
    "bytes": "Bytes of the stored image",
    "images_per_text": "Images of the text, above the limit",
    "texts_per_image": "Texts of the image, above the limit",
    "nsfw_score": "NSFW score",
    "similarity": "Cosine to a near-duplicate",
}
LABELS = {
    "stage": "Stage",
    "reason": "Reason",
    "source": "Source",
    "host": "Host",
    "said": "Notations about its use",
    "test_set": "Test set",
}
NAMES = ("key", "image_id", "caption", "kept_key")  # what a filter may name, and no facet shows


@dataclass(frozen=True)
class Facet:
    """A column or expression that pairs are counted by, and filtered by."""

    name: str
    label: str
    kind: Literal["values", "range", "name"]
    sql: str


class Facets(dict[str, Facet]):
    """The facets of a run by name: those of every run, then its scores and kept columns, `kinds` by name."""

    def __init__(self, kinds: Mapping[str, Literal["values", "range"]]) -> None:
        super().__init__()
        for name, label in LABELS.items():
            self[name] = Facet(name, label, "values", name)
        for name, label in NUMBERS.items():
            self[name] = Facet(name, label, "range", name)
        for name, (sql, label) in SIZES.items():
            self[name] = Facet(name, label, "range", sql)
        for name in NAMES:
            self[name] = Facet(name, name, "name", name)
        for name, kind in kinds.items():
            self[name] = Facet(name, name, kind, identifier(name))

    def named(self, name: object) -> Facet:
        """The facet of a name. Raises UsageError: there is none."""
        if not isinstance(name, str) or name not in self:
            raise UsageError(f"{name!r}: no column that pairs can be filtered by")
        return self[name]

    def where(self, asked: Mapping[str, Any], but: str = "") -> str:
        """A filter as a condition, without what it says of the column `but`. Raises UsageError: it is none."""
        if not isinstance(asked, Mapping) or not {*asked} <= {"values", "ranges", "text", "url"}:
            raise UsageError(f"a filter is an object of values, ranges, text and url, not {asked!r:.200}")
        parts = list[str]()
        for name, values in _table(asked, "values").items():
            if name != but:
                parts.append(self._is_any(self.named(name), values))
        for name, bounds in _table(asked, "ranges").items():
            if name != but:
                parts += self._within(self.named(name), bounds)
        if text := _text(asked, "text"):
            parts.append(f"contains(lower(caption), lower({literal(text)}))")
        if url := _text(asked, "url"):
            part = f"lower({literal(url)})"
            parts.append(f"(contains(lower(image_url), {part}) OR contains(lower(page_url), {part}))")
        return " AND ".join(parts) or "true"

    @staticmethod
    def _is_any(facet: Facet, values: object) -> str:
        if facet.kind == "range" or not isinstance(values, list) or not values:
            raise UsageError(f"values of {facet.name}: {values!r:.200} is no list of values of a column of text")
        known = ", ".join(literal(value) for value in values if value is not None)
        parts = [f"{facet.sql} IN ({known})"] if known else []
        parts += [f"{facet.sql} IS NULL"] if None in values else []
        return parts[0] if len(parts) == 1 else f"({' OR '.join(parts)})"

    @staticmethod
    def _within(facet: Facet, bounds: object) -> list[str]:
        if facet.kind != "range" or not isinstance(bounds, list) or len(bounds) != 2:
            raise UsageError(f"range of {facet.name}: {bounds!r} is not [least, most] of a column of numbers")
        signs = zip((">=", "<="), bounds, strict=True)
        return [f"{facet.sql} {sign} {number(bound)}" for sign, bound in signs if bound is not None]

    def order(self, sort: object) -> str:
        """The order of a column, `-` before its name for the largest first; empty: that of the run's files."""
        name = str(sort or "")
        if not name:
            return "n"
        facet = self.named(name.removeprefix("-"))
        return f"{facet.sql} {'DESC' if name.startswith('-') else 'ASC'} NULLS LAST, n"


def of_select(asked: Mapping[str, Any], facets: Facets, columns: Sequence[str]) -> str:
    """A filter of kept pairs as a condition of `altalign select --where` on these columns; empty where it has none."""
    values, ranges = {**_table(asked, "values")}, _table(asked, "ranges")
    if values.pop("stage", ["kept"]) != ["kept"] or values.pop("reason", ["kept"]) != ["kept"]:
        return ""
    if asked.get("text") or asked.get("url") or not {*values, *ranges} <= {*columns}:
        return ""
    condition = facets.where({"values": values, "ranges": ranges})
    return "" if condition == "true" else condition


def literal(value: object) -> str:
    """A string as SQL. Raises UsageError: it is none, or has a character that no string of a run has."""
    if not isinstance(value, str) or "\0" in value or not _is_text(value):
        raise UsageError(f"{value!r}: no text to look for")
    return quoted(value, "'")


def number(value: object) -> str:
    """A finite number as SQL. Raises UsageError: it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise UsageError(f"{value!r}: no number")
    return repr(value)


def identifier(name: str) -> str:
    """The name of a column as SQL."""
    return quoted(name, '"')


def _table(asked: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = asked.get(name) or {}
    if not isinstance(found, Mapping):
        raise UsageError(f"{name}: {found!r} is no object")
    return found


def _text(asked: Mapping[str, Any], name: str) -> str:
    found = asked.get(name) or ""
    if not isinstance(found, str):
        raise UsageError(f"{name}: {found!r} is no text")
    return found


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True
