"""Candidates from columns of a table: cleaned, cut where they are too long, with identities and what is kept beside.

A column of text may be a dictionary: each value that occurs is worked on once, and rows are made of it last.
"""

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

_TOO_LONG = ""  # of a kept value; no JSON is
_CONTROL = r"[\x00-\x1f]"  # characters that JSON names by their numbers
_CAPTIONS_AT_ONCE = STRETCH_ROWS // 8  # of lists; each may be as long as one may be


def candidates_of(
    url: object,
    caption: object,
    page_url: object,
    source_key: pa.StringArray,
    extra: pa.StringArray,
    *,
    settings: InputSettings,
) -> pa.RecordBatch:
    """`schema.CANDIDATE` from columns as a table has them: strings, or dictionaries of them where they may be long."""
    url_values, caption_values, page_values = map(occurring, (url, caption, page_url))
    taken, is_valid = urls.table_urls(url_values.values)
    is_long = bounds.longer(taken, bytes_at_most=bounds.URL_BYTES)
    image_url = url_values.rows(bounds.cut(taken, bytes_at_most=bounds.URL_BYTES))
    identity = _only_where(url_values.flags(is_valid & ~is_long), image_url)
    texts = cast(pa.StringArray, caption_values.values.fill_null(""))
    if settings.decode_entities:
        texts = captions.decode_entities(texts)
    cleaned: Any = caption_values.rows(bounds.cut(captions.clean(texts), bytes_at_most=bounds.CAPTION_BYTES))
    pages = page_values.rows(bounds.cut(urls.valid_utf8(page_values.values), bytes_at_most=bounds.URL_BYTES))
    columns = [image_url, identity, cleaned.fill_null(""), pages, source_key, bounds.extra(extra)]
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


def _only_where(mask: npt.NDArray[np.bool_], texts: pa.StringArray) -> pa.StringArray:
    """The same texts, null where the mask (bool[n]) does not hold; they share their bytes."""
    bits = np.packbits(np.concatenate([np.zeros(texts.offset, bool), mask]), bitorder="little")
    offsets, data = cast(list[pa.Buffer], texts.buffers()[1:])
    return pa.StringArray.from_buffers(len(texts), offsets, data, pa.py_buffer(bits.data), -1, texts.offset)


# Dictionaries ---------------------------------------------------------------------------------------------------------


class Values(NamedTuple):
    """The values that occur in a column of n rows, and which of them each row has (null: none)."""

    values: pa.StringArray
    of_rows: "pa.Int32Array | None"  # None: the values are the rows

    def rows(self, values: pa.StringArray) -> pa.StringArray:
        """The column with these values in place of its own."""
        return values if self.of_rows is None else cast(pa.StringArray, values.take(self.of_rows))

    def flags(self, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Flags of each value (bool[m]) as flags of each row (bool[n]); false of null."""
        if self.of_rows is None:
            return flags
        return np.append(flags, False)[self.of_rows.fill_null(len(flags)).to_numpy()]


def occurring(column: Any) -> Values:
    """The values of a column of strings, of any kind that Arrow has of them."""
    if not pa.types.is_dictionary(column.type):
        return Values(strings(column), None)
    used = pc.unique(column.indices).drop_null()
    return Values(strings(column.dictionary.take(used)), cast(Any, pc.index_in(column.indices, used)))


def strings(column: Any) -> pa.StringArray:
    """Any column of strings as plain strings."""
    return cast(pa.StringArray, column if pa.types.is_string(column.type) else column.cast(pa.string(), safe=False))


def longest_of_dictionaries(column: Any) -> int:
    """The bytes of the longest value of the dictionaries in a column; it may have lists or structs of them."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        is_text = pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type)
        is_known = is_text or pa.types.is_binary(kind.value_type)
        return (pc.max(pc.binary_length(column.dictionary)).as_py() or 0) if is_known else 0
    if pa.types.is_struct(kind):
        return max((longest_of_dictionaries(column.field(number)) for number in range(kind.num_fields)), default=0)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return longest_of_dictionaries(column.values)
    return 0


# Lists of captions ----------------------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """Rows of one caption each, the row of a batch that each was in (int64[n]), and whether it is that row's first."""

    rows: pa.RecordBatch
    row_of: npt.NDArray[np.int64]
    is_first: npt.NDArray[np.bool_]


def caption_pieces(batch: pa.RecordBatch, column: str) -> Iterator[Piece]:
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
    every = pc.list_flatten(lists)
    for first in range(0, int(ends[-1]) if len(ends) else 0, _CAPTIONS_AT_ONCE):
        numbers = np.arange(first, min(first + _CAPTIONS_AT_ONCE, int(ends[-1])))
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
    if pa.types.is_dictionary(column.type) and not pa.types.is_string(column.type.value_type):
        column = column.dictionary_decode()
    if pa.types.is_dictionary(column.type):
        used = occurring(column)
        rows: Any = used.rows(_as_json(used.values).fill_null(_TOO_LONG)).fill_null("null")
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
