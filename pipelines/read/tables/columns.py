"""Candidates from columns of a table: cleaned, cut where they are too long, with identities and what is kept beside."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.data import extras
from altalign.data.schema import CANDIDATE
from altalign.filters import bounds, captions, urls
from altalign.pipelines.read.stretches import STRETCH_ROWS, kept
from altalign.settings.curate import InputSettings
from altalign.storage import parquet

_CAPTIONS_AT_ONCE = STRETCH_ROWS // 8  # of lists; each may be as long as one may be


def candidates_of(
    url: pa.StringArray,
    caption: pa.StringArray,
    page_url: pa.StringArray,
    source_key: pa.StringArray,
    extra: pa.StringArray,
    *,
    settings: InputSettings,
) -> pa.RecordBatch:
    """`schema.CANDIDATE` from columns as a table has them."""
    taken, is_valid = urls.table_urls(url)
    is_long = bounds.longer(taken, bytes_at_most=bounds.URL_BYTES)
    image_url = bounds.cut(taken, bytes_at_most=bounds.URL_BYTES)
    identity = pc.if_else(pa.array(is_valid & ~is_long), image_url, pa.scalar(None, pa.string()))
    texts = cast(pa.StringArray, caption.fill_null(""))
    if settings.decode_entities:
        texts = captions.decode_entities(texts)
    cleaned = bounds.cut(captions.clean(texts), bytes_at_most=bounds.CAPTION_BYTES)
    pages = bounds.cut(urls.valid_utf8(page_url), bytes_at_most=bounds.URL_BYTES)
    none = pa.nulls(len(url), pa.string())  # nobody has seen the pages
    columns = [image_url, identity, cleaned, pages, source_key, bounds.extra(extra), none]
    return pa.record_batch(columns, schema=CANDIDATE)


def in_hand(plain: pa.RecordBatch, sha256_hex: Sequence[str | None]) -> pa.RecordBatch:
    """`schema.CANDIDATE` for candidates whose images are in the input.

    An image without a valid URL gets its identity from the SHA-256 of its bytes (None: there are no bytes).
    """
    identity = pc.coalesce(plain["image_identity"], pa.array(sha256_hex, pa.string()))
    return plain.set_column(CANDIDATE.get_field_index("image_identity"), CANDIDATE.field("image_identity"), identity)


def extracted(settings: InputSettings, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Rows of (URL, caption, page URL, name, extra, SHA-256 of the image in hand) as `schema.EXTRACTED`."""
    *texts, digests = zip(*rows, strict=True) if rows else [[]] * 6
    arrays = (cast(pa.StringArray, pa.array(list(column), pa.string())) for column in texts)
    return kept(in_hand(candidates_of(*arrays, settings=settings), list(digests)))


def strings(column: Any) -> pa.StringArray:
    """Any column of strings as plain strings."""
    column = without_dictionary(column)
    return cast(pa.StringArray, column if pa.types.is_string(column.type) else column.cast(pa.string(), safe=False))


def without_dictionary(column: Any) -> Any:
    """The values of a column, each in its row."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def longest_of_dictionary(column: Any) -> tuple[int, int]:
    """The bytes of the longest value of the dictionary of a column or of its lists, and how many values it has."""
    while parquet.is_list(column.type):
        column = column.values
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else pa.null()
    if not any(is_kind(kind) for is_kind in _OF_ANY_LENGTH):
        return 0, 0
    return pc.max(pc.binary_length(column.dictionary)).as_py() or 0, len(column.dictionary)


_OF_ANY_LENGTH = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


# Lists of captions ----------------------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """Rows of one caption each, the row of a batch that each was in (int64[n]), and whether it is that row's first."""

    rows: pa.RecordBatch
    row_of: npt.NDArray[np.int64]
    is_first: npt.NDArray[np.bool_]


def caption_pieces(batch: pa.RecordBatch, column: str, *, rows_at_most: int = STRETCH_ROWS) -> Iterator[Piece]:
    """Yields a row for each caption, where rows have lists of them.

    A row without any stays, with null. A list of any length comes in pieces: in each caption's row the row's other
    values stand once more.
    """
    lists: Any = batch.column(column)
    if not parquet.is_list(lists.type):
        yield Piece(batch, np.arange(batch.num_rows), np.ones(batch.num_rows, np.bool_))
        return
    each_has: Any = pc.list_value_length(lists)
    lengths = each_has.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    begins, ends = np.cumsum(lengths) - lengths, np.cumsum(np.maximum(lengths, 1))
    every, at_once = pc.list_flatten(lists), min(rows_at_most, _CAPTIONS_AT_ONCE)
    for first in range(0, int(ends[-1]) if len(ends) else 0, at_once):
        numbers = np.arange(first, min(first + at_once, int(ends[-1])))
        row_of = np.searchsorted(ends, numbers, side="right")
        within = numbers - (ends - np.maximum(lengths, 1))[row_of]
        has_none = lengths[row_of] == 0
        each = every.take(pa.array(begins[row_of] + within, pa.int64(), mask=has_none))
        rows = batch.take(pa.array(row_of, pa.int64()))
        yield Piece(rows.set_column(batch.schema.get_field_index(column), column, each), row_of, within == 0)


# Kept columns ---------------------------------------------------------------------------------------------------------


def kept_as_json(batch: pa.RecordBatch, names: Sequence[str]) -> pa.StringArray:
    """N objects with the values of these columns, as `extras.encode` writes them; n nulls where there are no names.

    An object of which one value alone is longer than `bounds.EXTRA_BYTES` is left out.
    """
    if not names:
        return cast(pa.StringArray, pa.nulls(batch.num_rows, pa.string()))
    parts: list[Any] = []
    for number, name in enumerate(names):
        parts += [pa.scalar(f"{',' if number else '{'}{extras.encode(name)}:"), _as_json(batch.column(name))]
    objects: Any = pc.binary_join_element_wise(*parts, pa.scalar("}"), "")
    return cast(pa.StringArray, objects.fill_null(bounds.LEFT_OUT) if objects.null_count else objects)


def _as_json(column: Any) -> Any:
    """The values of a column as JSON, "null" for null; null for one that is too long."""
    column = without_dictionary(column)
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    texts = urls.valid_utf8(column.cast(pa.string())) if is_text else None
    # one look at the bytes of all: JSON names control characters by their numbers
    data = texts.buffers()[2] if texts is not None else None
    if texts is not None and (data is None or not (np.frombuffer(memoryview(data), np.uint8) < 0x20).any()):
        escaped: Any = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
        text = pc.binary_join_element_wise(pa.scalar('"'), escaped, pa.scalar('"'), "")
    elif pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        text = column.cast(pa.string())
    else:
        values = (column if texts is None else texts).to_pylist()
        text = pa.array([extras.encode(value) for value in values], pa.string())
    known: Any = pc.coalesce(text, pa.scalar("null"))
    is_long = bounds.longer(known, bytes_at_most=bounds.EXTRA_BYTES)
    return pc.if_else(pa.array(is_long), pa.scalar(None, pa.string()), known) if is_long.any() else known
