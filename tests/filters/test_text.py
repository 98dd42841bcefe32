from types import SimpleNamespace

import pyarrow as pa
import pytest

from altalign.errors import AltalignError
from altalign.filters import text


def words(*counts: int) -> pa.Int32Array:
    return pa.array(counts, pa.int32())


def test_url_invalid_drops_what_has_no_identity() -> None:
    assert text.url_invalid(pa.array([True, False])).to_pylist() == [False, True]


def test_empty_drops_the_empty_caption_alone() -> None:
    assert text.text_empty(pa.array(["", "-", " ", "a"])).to_pylist() == [True, False, False, False]
    assert text.text_empty(pa.array(["", "a"], pa.large_string())).to_pylist() == [True, False]


def test_bytes_are_counted_not_characters() -> None:
    captions = pa.array(["abc", "äb", "äbc", ""])
    assert text.text_too_large(captions, bytes_at_most=3).to_pylist() == [False, False, True, False]


def test_a_long_url_of_the_image_or_of_its_page_is_enough() -> None:
    long = "http://a.example/" + "u" * 8_175
    urls, pages = pa.array([long[:-1], long, None]), pa.array([None, None, long + "u"], pa.string())
    assert [len(long[:-1]), len(long)] == [8_191, 8_192]
    assert text.url_too_long(urls, pages).to_pylist() == [False, False, True]


def test_what_is_kept_with_a_pair_may_have_been_left_out() -> None:
    assert text.row_too_large(pa.array([None, "{}", '{"a":1}'])).to_pylist() == [False, True, False]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_too_short_keeps_the_limit_itself(limit: int) -> None:
    counts = range(6)
    assert text.text_too_short(words(*counts), words_at_least=limit).to_pylist() == [n < limit for n in counts]


@pytest.mark.parametrize("limit", [0, 3, 20])
def test_too_long_keeps_the_limit_itself(limit: int) -> None:
    counts = range(23)
    assert text.text_too_long(words(*counts), words_at_most=limit).to_pylist() == [n > limit for n in counts]


def test_counts_within_the_limit_are_null_and_keep() -> None:
    counts = pa.array([None, 11, 1_000_000], pa.int64())
    assert text.text_on_too_many_images(counts).to_pylist() == [False, True, True]
    assert text.image_has_too_many_texts(counts).to_pylist() == [False, True, True]


def test_one_rare_ngram_is_enough() -> None:
    assert text.text_has_rare_ngram(pa.array([False, True])).to_pylist() == [False, True]


def test_a_null_where_a_value_is_needed_is_an_error_and_keeps_nothing() -> None:
    config = SimpleNamespace(text=SimpleNamespace(words_at_least=3, words_at_most=3))
    columns = {
        "words": pa.array([1, None], pa.int32()),
        "has_rare_ngram": pa.array([True, None]),
        "caption": pa.array(["a", None]),
        "has_identity": pa.array([True, None]),
    }
    for rule in (text.text_too_short, text.text_too_long, text.text_has_rare_ngram, text.text_empty, text.url_invalid):
        with pytest.raises(AltalignError, match=f"text.py line .*: {rule.name}: it returned null for 1"):
            rule.mask(columns, config)


def test_masks_of_no_rows() -> None:
    assert len(text.text_too_short(words(), words_at_least=3)) == len(text.text_empty(pa.array([], pa.string()))) == 0
