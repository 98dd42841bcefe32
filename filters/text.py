"""The text rules (ALIGN section 3, "Text-based filtering"), one function each: columns in, verdict out (null keeps).

`images_per_text` and `texts_per_image` come from the tables of the whole pool. They are null within the limit, where
the verdict keeps.
"""

import pyarrow as pa
import pyarrow.compute as pc

from altalign.data.reasons import DropReason, Verdict, drop_where
from altalign.filters import bounds


def url_invalid(has_identity: pa.BooleanArray) -> Verdict:
    """Neither a valid URL nor an image in hand (ours)."""
    return drop_where(pc.invert(has_identity), DropReason.URL_INVALID)


def url_too_long(urls: pa.StringArray, page_urls: pa.StringArray) -> Verdict:
    """The URL of the image, or of its page, has more than `bounds.URL_BYTES` (ours)."""
    return drop_where(pa.array(bounds.urls_too_long(urls, page_urls)), DropReason.URL_TOO_LONG)


def empty(captions: pa.StringArray) -> Verdict:
    """Nothing is left of the caption after cleaning (ours; the paper's fewer than 3 unigrams include it)."""
    return drop_where(pc.equal(pc.binary_length(captions), pa.scalar(0)), DropReason.TEXT_EMPTY)


def too_large(captions: pa.StringArray, *, bytes_at_most: int) -> Verdict:
    """More bytes than `bytes_at_most` (ours)."""
    return drop_where(pa.array(bounds.longer(captions, bytes_at_most=bytes_at_most)), DropReason.TEXT_TOO_LARGE)


def too_short(words: pa.Int32Array, *, words_at_least: int) -> Verdict:
    """Fewer unigrams than `words_at_least` ("too short (<3 unigrams)")."""
    return drop_where(pc.less(words, pa.scalar(words_at_least)), DropReason.TEXT_TOO_SHORT)


def too_long(words: pa.Int32Array, *, words_at_most: int) -> Verdict:
    """More unigrams than `words_at_most` ("too long (>20 unigrams)")."""
    return drop_where(pc.greater(words, pa.scalar(words_at_most)), DropReason.TEXT_TOO_LONG)


def on_too_many_images(images_per_text: pa.Int64Array) -> Verdict:
    """The text is shared by more images than the limit ("alt-texts that are shared by more than 10 images")."""
    return drop_where(images_per_text.is_valid(), DropReason.TEXT_ON_TOO_MANY_IMAGES)


def has_rare_ngram(is_rare: pa.BooleanArray) -> Verdict:
    """A unigram or bigram is outside the vocabulary ("any rare token")."""
    return drop_where(is_rare, DropReason.TEXT_HAS_RARE_NGRAM)


def image_has_too_many_texts(texts_per_image: pa.Int64Array) -> Verdict:
    """The image has more texts than the limit ("Images with more than 1000 associated alt-texts are discarded")."""
    return drop_where(texts_per_image.is_valid(), DropReason.IMAGE_HAS_TOO_MANY_TEXTS)


def row_too_large(extra: pa.StringArray) -> Verdict:
    """The columns that are kept with the pair were too long, and were left out (ours)."""
    return drop_where(pa.array(bounds.is_left_out(extra)), DropReason.ROW_TOO_LARGE)
