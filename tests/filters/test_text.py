import pyarrow as pa
import pytest

from altalign.data.reasons import DropReason
from altalign.filters import text


def words(*counts: int) -> pa.Int32Array:
    return pa.array(counts, pa.int32())


def test_url_invalid_drops_what_has_no_identity() -> None:
    assert text.url_invalid(pa.array([True, False])).to_pylist() == [None, DropReason.URL_INVALID]


def test_empty_drops_the_empty_caption_alone() -> None:
    assert text.empty(pa.array(["", "-", " ", "a"])).to_pylist() == [DropReason.TEXT_EMPTY, None, None, None]
    assert text.empty(pa.array(["", "a"], pa.large_string())).to_pylist() == [DropReason.TEXT_EMPTY, None]


def test_bytes_are_counted_not_characters() -> None:
    captions = pa.array(["abc", "äb", "äbc", ""])
    assert text.too_large(captions, bytes_at_most=3).to_pylist() == [None, None, DropReason.TEXT_TOO_LARGE, None]


def test_a_long_url_of_the_image_or_of_its_page_is_enough() -> None:
    long = "http://a.example/" + "u" * 8_175
    urls, pages = pa.array([long[:-1], long, None]), pa.array([None, None, long + "u"], pa.string())
    assert [len(long[:-1]), len(long)] == [8_191, 8_192]
    assert text.url_too_long(urls, pages).to_pylist() == [None, None, DropReason.URL_TOO_LONG]


def test_what_is_kept_with_a_pair_may_have_been_left_out() -> None:
    assert text.row_too_large(pa.array([None, "{}", '{"a":1}'])).to_pylist() == [None, DropReason.ROW_TOO_LARGE, None]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_too_short_keeps_the_limit_itself(limit: int) -> None:
    counts = range(6)
    assert text.too_short(words(*counts), words_at_least=limit).to_pylist() == [
        DropReason.TEXT_TOO_SHORT if n < limit else None for n in counts
    ]


@pytest.mark.parametrize("limit", [0, 3, 20])
def test_too_long_keeps_the_limit_itself(limit: int) -> None:
    counts = range(23)
    assert text.too_long(words(*counts), words_at_most=limit).to_pylist() == [
        DropReason.TEXT_TOO_LONG if n > limit else None for n in counts
    ]


def test_counts_within_the_limit_are_null_and_keep() -> None:
    counts = pa.array([None, 11, 1_000_000], pa.int64())
    assert text.on_too_many_images(counts).to_pylist() == [None, *[DropReason.TEXT_ON_TOO_MANY_IMAGES] * 2]
    assert text.image_has_too_many_texts(counts).to_pylist() == [None, *[DropReason.IMAGE_HAS_TOO_MANY_TEXTS] * 2]


def test_one_rare_ngram_is_enough() -> None:
    assert text.has_rare_ngram(pa.array([False, True])).to_pylist() == [None, DropReason.TEXT_HAS_RARE_NGRAM]


def test_a_null_where_a_number_is_needed_is_an_error_and_keeps_nothing() -> None:
    unknown = pa.array([1, None], pa.int32())
    with pytest.raises(ValueError, match="null"):
        text.too_short(unknown, words_at_least=3)
    with pytest.raises(ValueError, match="null"):
        text.too_long(unknown, words_at_most=3)
    with pytest.raises(ValueError, match="null"):
        text.has_rare_ngram(pa.array([True, None]))
    with pytest.raises(ValueError, match="null"):
        text.empty(pa.array(["a", None]))
    with pytest.raises(ValueError, match="null"):
        text.url_invalid(pa.array([True, None]))


def test_verdicts_of_no_rows() -> None:
    assert len(text.too_short(words(), words_at_least=3)) == len(text.empty(pa.array([], pa.string()))) == 0
