"""The text rules, in the order in which they are asked: columns in, booleans out, true where a row is dropped.

`images_per_text` and `texts_per_image` come from the tables of the whole pool. They are null within the limit, where
the rule keeps.
"""

from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from altalign.filters import bounds
from altalign.filters.bounds import URL_BYTES
from altalign.rules.rule import Paper, rule

Mask: TypeAlias = "pa.BooleanArray | Any"  # n booleans without nulls


@rule(
    explain="the URL of the image or of its page has more than 8 KiB",
    card="the URL of the image or of its page has more than 8 KiB",
    why="No server takes such a URL; bounds memory.",
)
def url_too_long(url: pa.StringArray, page_url: pa.StringArray) -> Mask:
    """The URL of the image, or of its page, has more than 8 KiB once it is resolved; what is kept of it is cut."""
    return pa.array(bounds.longer(url, bytes_at_most=URL_BYTES) | bounds.longer(page_url, bytes_at_most=URL_BYTES))


@rule(
    explain="{no_url}",
    card="no valid URL, and no image in hand",
    why="With neither a valid URL nor the image, there is nothing to fetch.",
)
def url_invalid(has_identity: pa.BooleanArray) -> Mask:
    """Pages: no http(s) URL, or one that a WHATWG parser refuses.

    Tables and tars: neither a valid URL nor an image in hand.
    """
    return pc.invert(has_identity)


@rule(
    explain="nothing is left of the caption after cleaning",
    card="nothing is left of the caption",
    why="No caption, no pair.",
)
def text_empty(caption: pa.StringArray) -> Mask:
    """Nothing is left of the caption after cleaning. Tables and tars only; on pages this is `alt_empty`."""
    return pc.equal(pc.binary_length(caption), pa.scalar(0))


@rule(
    setting="text.bytes_at_most",
    explain="{setting}; longer captions are cut at 64 KiB",
    card="more bytes",
    why="Bounds memory; 20 words never have so many bytes.",
)
def text_too_large(caption: pa.StringArray, *, bytes_at_most: int) -> Mask:
    """The caption has more bytes than `text.bytes_at_most`; readers cut what is above 64 KiB."""
    return pa.array(bounds.longer(caption, bytes_at_most=bytes_at_most))


@rule(
    setting="text.words_at_least",
    measured="words",
    explain="{words}, {setting}",
    card="fewer words",
    paper=Paper(
        "too short (<3 unigrams)",
        "Words, at least",
        "3",
        number=3,
        less_is_stricter=False,
        note="The paper names no tokenizer. Here a word is a run of letters and digits.",
    ),
)
def text_too_short(words: pa.Int32Array, *, words_at_least: int) -> Mask:
    """Fewer words than `text.words_at_least`."""
    return pc.less(words, pa.scalar(words_at_least))


@rule(
    setting="text.words_at_most",
    measured="words",
    explain="{words}, {setting}",
    card="more words",
    paper=Paper("too long (>20 unigrams)", "Words, at most", "20", number=20),
)
def text_too_long(words: pa.Int32Array, *, words_at_most: int) -> Mask:
    """More words than `text.words_at_most`."""
    return pc.greater(words, pa.scalar(words_at_most))


@rule(
    setting="text.images_per_text_at_most",
    measured="images_per_text",
    explain="on {row[images_per_text]} images, {setting}",
    card="the caption is on more images",
    paper=Paper(
        "We exclude alt-texts that are shared by more than 10 images", "Images of a text, at most", "10", number=10
    ),
)
def text_on_too_many_images(images_per_text: pa.Int64Array) -> Mask:
    """The folded caption is on more distinct images of the pool than `text.images_per_text_at_most`.

    Of merged runs: of all their pools.
    """
    return images_per_text.is_valid()


@rule(
    setting="text.vocabulary_size",
    measured="rarest_log2",
    explain="{rare_ngrams}, {setting}",
    card="a word, or two neighbouring ones, not among so many most frequent",
    paper=Paper(
        "any rare token (outside of 100 million most frequent unigrams and bigrams from the raw dataset)",
        "Vocabulary",
        "100,000,000 most frequent unigrams and bigrams",
        number=100_000_000,
    ),
)
def text_has_rare_ngram(has_rare_ngram: pa.BooleanArray) -> Mask:
    """A unigram or bigram is not among the `text.vocabulary_size` most frequent of the pool."""
    return has_rare_ngram


@rule(
    setting="image.texts_per_image_at_most",
    measured="texts_per_image",
    explain="{row[texts_per_image]} texts, {setting}",
    card="the image has more captions",
    paper=Paper(
        "Images with more than 1000 associated alt-texts are discarded",
        "Texts of an image, at most",
        "1,000",
        number=1_000,
    ),
)
def image_has_too_many_texts(texts_per_image: pa.Int64Array) -> Mask:
    """The image has more distinct folded captions in the pool than `image.texts_per_image_at_most`.

    Of merged runs: in all their pools.
    """
    return texts_per_image.is_valid()


@rule(
    explain="over 64 KiB of keep_columns, or [fetch] bytes_at_most = {config.fetch.bytes_at_most}",
    card="more kept with the pair, or a larger image in a table, than a run takes",
    why="Bounds memory.",
)
def row_too_large(extra: pa.StringArray) -> Mask:
    """`keep_columns` have more than 64 KiB in this row, and are left out (`{}`).

    Or a table's image has more bytes than `fetch.bytes_at_most`.
    """
    return pc.equal(extra.fill_null(""), pa.scalar(bounds.LEFT_OUT))


@rule(
    explain="it has: {personal}; [text] drop_personal = {config.text.drop_personal}",
    card="an e-mail address, a phone number or a street address",
    why="For data that shall not say how to reach people.",
    on_with="text.drop_personal",
)
def text_personal(has_personal: pa.BooleanArray) -> Mask:
    """The caption has an e-mail address, a phone number or a street address, as `text.drop_personal` names them."""
    return has_personal


RULES = (
    url_too_long,
    url_invalid,
    text_empty,
    text_too_large,
    text_too_short,
    text_too_long,
    text_on_too_many_images,
    text_has_rare_ngram,
    image_has_too_many_texts,
    row_too_large,
    text_personal,
)
