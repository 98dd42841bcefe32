"""Columns of a Parquet table that are kept as they are: for each row one JSON object, the column `extra`."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from altalign.data import extras
from altalign.filters import bounds, urls
from altalign.pipelines.read.tables.values import occurring

_TOO_LONG = ""  # no JSON is
_CONTROL = r"[\x00-\x1f]"  # characters that JSON names by their numbers


def as_json(batch: pa.RecordBatch, names: Sequence[str]) -> pa.StringArray:
    """N objects with the values of these columns, as `extras.encode` writes them; n nulls where there are no names.

    An object of which one value alone is longer than `bounds.EXTRA_BYTES` is left out.
    """
    if not names:
        return cast(pa.StringArray, pa.nulls(batch.num_rows, pa.string()))
    parts: list[Any] = []
    for number, name in enumerate(names):
        parts += [pa.scalar(f"{',' if number else '{'}{extras.encode(name)}:"), _values(batch.column(name))]
    objects: Any = pc.binary_join_element_wise(*parts, pa.scalar("}"), "")
    return cast(pa.StringArray, objects.fill_null(bounds.LEFT_OUT) if objects.null_count else objects)


def has_bytes(kind: pa.DataType) -> bool:
    """Whether values of this type hold bytes, which JSON has no word for."""
    is_bytes = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    if pa.types.is_dictionary(kind):
        return has_bytes(cast(Any, kind).value_type)
    of_fields = (has_bytes(kind.field(number).type) for number in range(kind.num_fields))
    return any(is_kind(kind) for is_kind in is_bytes) or any(of_fields)


def _values(column: Any) -> Any:
    """The values of a column as JSON, "null" for null; null for one that is too long."""
    if pa.types.is_dictionary(column.type) and not pa.types.is_string(column.type.value_type):
        column = column.dictionary_decode()
    if pa.types.is_dictionary(column.type):
        found = occurring(column)
        rows: Any = found.rows(_values(found.values).fill_null(_TOO_LONG)).fill_null("null")
        return pc.if_else(pc.equal(rows, pa.scalar(_TOO_LONG)), pa.scalar(None, pa.string()), rows)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        text = _quoted(urls.valid_utf8(column.cast(pa.string())))
    elif pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        text = column.cast(pa.string())
    else:
        text = pa.array([extras.encode(value) for value in column.to_pylist()], pa.string())
    known: Any = pc.coalesce(text, pa.scalar("null"))
    is_long = bounds.longer(known, bytes_at_most=bounds.EXTRA_BYTES)
    return pc.if_else(pa.array(is_long), pa.scalar(None, pa.string()), known) if is_long.any() else known


def _quoted(texts: pa.StringArray) -> Any:
    escaped: Any = texts
    for plain, written in (("\\", "\\\\"), ('"', '\\"')):
        escaped = pc.replace_substring(escaped, plain, written)
    quoted = pc.binary_join_element_wise(pa.scalar('"'), escaped, pa.scalar('"'), "")
    data = texts.buffers()[2]
    if data is None or not (np.frombuffer(memoryview(data), np.uint8) < 0x20).any():  # one look at the bytes of all
        return quoted
    is_odd: Any = pc.fill_null(pc.match_substring_regex(texts, _CONTROL), pa.scalar(value=False))
    odd = pa.array([extras.encode(text) for text in texts.filter(is_odd).to_pylist()], pa.string())
    return pc.replace_with_mask(quoted, is_odd, odd)
