"""Statements of rights holders between stages: of a page as text beside each of its images, in files as a column.

The text of nothing said is empty, and null says that nobody looked.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from altalign.data.schema import PREFERENCES

STATEMENTS_AT_MOST = 16  # of a page, or of an image, that are kept: those that were found first
VALUE_AT_MOST = 500  # characters
LOOKED_AT = 100  # at most, of one kind in one file: thousands are a mistake, or malice


class Said(NamedTuple):
    """One statement as it was found: a value of `schema.PREFERENCES`."""

    notation: str  # one of `filters.reservations.NOTATIONS`
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


def as_text(said: Iterable[Said]) -> str:
    """The first distinct statements as one text."""
    every = list(dict.fromkeys(said))[:STATEMENTS_AT_MOST]
    return json.dumps(every, ensure_ascii=False, separators=(",", ":")) if every else ""


def from_text(text: str) -> list[Said]:
    """The statements of a text."""
    return [Said(*each) for each in json.loads(text or "[]")]


def column(said: Iterable[Sequence[Said] | None]) -> "pa.Array[Any]":
    """The column of n rows, each with its statements (None: nobody looked)."""
    rows = [None if each is None else [one._asdict() for one in each] for each in said]
    return pa.array(rows, PREFERENCES)


def of_texts(texts: "pa.Array[Any] | pa.ChunkedArray[Any]") -> "pa.Array[Any]":
    """The column of rows that have these texts; few are distinct, and where nobody looked there are none."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), PREFERENCES)
    encoded: Any = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    encoded = encoded.dictionary_encode()
    return column(map(from_text, encoded.dictionary.to_pylist())).take(encoded.indices)
