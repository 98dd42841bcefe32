"""Statements of rights holders between stages: of a page as text beside each of its images, in files as a column.

A statement is a tuple of notation, value, where and when, as in `schema.PREFERENCES`. The text of nothing said is
empty, and null says that nobody looked.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from altalign.data.schema import PREFERENCES

Statement: TypeAlias = "tuple[str, str, str, str | None]"

STATEMENTS_AT_MOST = 16  # of a page, or of an image, that are kept: those that were found first

_NAMES = [field.name for field in PREFERENCES.value_type]


def as_text(said: Iterable[Statement]) -> str:
    """The first distinct statements as one text."""
    every = list(dict.fromkeys(said))[:STATEMENTS_AT_MOST]
    return json.dumps(every, ensure_ascii=False, separators=(",", ":")) if every else ""


def from_text(text: str) -> list[Statement]:
    """The statements of a text."""
    return [(notation, value, where, when) for notation, value, where, when in json.loads(text or "[]")]


def column(said: Iterable[Sequence[Statement] | None]) -> "pa.Array[Any]":
    """The column of n rows, each with its statements (None: nobody looked)."""
    rows = [None if each is None else [dict(zip(_NAMES, one, strict=True)) for one in each] for each in said]
    return pa.array(rows, PREFERENCES)


def of_texts(texts: "pa.Array[Any] | pa.ChunkedArray[Any]") -> "pa.Array[Any]":
    """The column of rows that have these texts; few are distinct, and where nobody looked there are none."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), PREFERENCES)
    encoded: Any = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    encoded = encoded.dictionary_encode()
    return column(map(from_text, encoded.dictionary.to_pylist())).take(encoded.indices)
