"""Candidates from columns of text as they were found: cleaned, cut where they are too long, with identities."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.data.schema import CANDIDATE
from altalign.filters import bounds, captions, urls
from altalign.pipelines.read.tables.values import occurring
from altalign.settings.curate import InputSettings


def candidates_of(
    url: object,
    caption: object,
    page_url: object,
    source_key: pa.StringArray,
    extra: pa.StringArray,
    *,
    settings: InputSettings,
) -> pa.RecordBatch:
    """`schema.CANDIDATE` from columns as they were found: strings, or dictionaries of them where they may be long."""
    image_url, identity = _image_urls(url)
    of_pages = occurring(page_url)
    pages = of_pages.rows(bounds.cut(urls.valid_utf8(of_pages.values), bytes_at_most=bounds.URL_BYTES))
    columns = [image_url, identity, _captions(caption, settings), pages, source_key, bounds.extra(extra)]
    return pa.record_batch(columns, schema=CANDIDATE)


def _image_urls(url: object) -> tuple[pa.StringArray, pa.StringArray]:
    """URLs as they are kept, and as identities: null where one is not valid, or too long."""
    found = occurring(url)
    taken, is_valid = urls.table_urls(found.values)
    is_long = bounds.longer(taken, bytes_at_most=bounds.URL_BYTES)
    image_url = found.rows(bounds.cut(taken, bytes_at_most=bounds.URL_BYTES))
    return image_url, _only_where(found.flags(is_valid & ~is_long), image_url)


def _captions(caption: object, settings: InputSettings) -> pa.StringArray:
    """Captions as they are kept: decoded where that is asked for, cleaned, and cut; "" for null."""
    found = occurring(caption)
    texts = cast(pa.StringArray, found.values.fill_null(""))
    if settings.decode_entities:
        texts = captions.decode_entities(texts)
    rows = found.rows(bounds.cut(captions.clean(texts), bytes_at_most=bounds.CAPTION_BYTES))
    return cast(pa.StringArray, rows.fill_null(""))


def in_hand(plain: pa.RecordBatch, sha256_hex: Sequence[str | None]) -> pa.RecordBatch:
    """`schema.CANDIDATE` for candidates whose images are in the input.

    An image without a valid URL gets its identity from the SHA-256 of its bytes (None: there are no bytes).
    """
    identity = pc.coalesce(plain["image_identity"], pa.array(sha256_hex, pa.string()))
    return plain.set_column(CANDIDATE.get_field_index("image_identity"), CANDIDATE.field("image_identity"), identity)


def string_columns(rows: Sequence[tuple[object, ...]]) -> list[pa.StringArray]:
    """The columns of rows (URL, caption, page URL, name, extra)."""
    values = zip(*rows, strict=True) if rows else [[]] * 5
    return [cast(pa.StringArray, pa.array(list(column), pa.string())) for column in values]


def _only_where(mask: npt.NDArray[np.bool_], texts: pa.StringArray) -> pa.StringArray:
    """The same texts, null where the mask (bool[n]) does not hold; they share their bytes."""
    bits = np.packbits(np.concatenate([np.zeros(texts.offset, bool), mask]), bitorder="little")
    offsets, data = cast(list[pa.Buffer], texts.buffers()[1:])
    return pa.StringArray.from_buffers(len(texts), offsets, data, pa.py_buffer(bits.data), -1, texts.offset)
