"""Bounds of strings, against a loop over characters, and columns of dictionaries, against the same rows written out."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.filters import bounds, text
from altalign.pipelines.read.tables import columns, table
from altalign.settings.curate import InputSettings, TextSettings
from tests.reference import curation

TEXTS = st.lists(st.none() | st.text(st.sampled_from("ab é\U0001d160"), max_size=12), max_size=6)


@given(TEXTS, st.integers(1, 9))
def test_a_text_is_cut_where_a_loop_over_its_characters_ends(texts, limit):
    texts = [text and text.rstrip(" ") for text in texts]
    found = bounds.cut(pa.array(texts, pa.string()), bytes_at_most=limit)
    assert found.to_pylist() == [curation.cut(text, limit) for text in texts]
    is_long = [curation.is_long(text, limit) for text in texts]
    assert bounds.longer(found, bytes_at_most=limit).tolist() == is_long


def test_a_column_without_long_texts_is_the_same_column() -> None:
    texts = pa.array(["ab", None, ""])
    assert bounds.cut(texts, bytes_at_most=2) is texts


def test_the_default_is_what_readers_keep_of_a_caption() -> None:
    assert TextSettings().bytes_at_most == bounds.CAPTION_BYTES == curation.CAPTION_BYTES
    assert (bounds.URL_BYTES, bounds.EXTRA_BYTES) == (curation.URL_BYTES, curation.EXTRA_BYTES)


ROWS = [
    ("http://a.example/1", "a cat &amp; dog", "http://p.example/"),
    ("http://a.example/" + "u" * 9_000, "x" * 70_000, None),
    (None, None, "http://p.example/" + "p" * 9_000),
    ("no url", "  two   spaces ", "http://p.example/"),
    ("http://a.example/1#part", " " * 70_000 + "short after all", None),
]


@pytest.mark.parametrize("decode", [False, True])
def test_dictionaries_give_the_rows_that_strings_give(decode):
    settings = InputSettings(kind="table", paths=["-"], page_url_column="page", decode_entities=decode)
    texts = {
        name: pa.array([row[number] for row in ROWS] * 2, pa.string())
        for number, name in enumerate(("url", "caption", "page"))
    }
    dictionaries = {name: column.dictionary_encode() for name, column in texts.items()}
    plain = table.candidates(pa.record_batch(texts), settings, None)
    assert table.candidates(pa.record_batch(dictionaries), settings, None).equals(plain)
    assert [len(caption) for caption in plain["caption"].to_pylist()[:2]] == [11 if decode else 15, 65_537]
    assert plain["image_identity"].to_pylist()[:5] == ["http://a.example/1", None, None, None, "http://a.example/1"]


def test_a_kept_object_that_is_too_long_is_left_out_whole() -> None:
    values = pa.array(["a", "x" * 70_000, None, "x" * 40_000])
    rows = pa.record_batch({"a": values, "b": values.dictionary_encode(), "c": pa.array([1, 2, 3, 4])})
    objects = columns.kept_as_json(rows, ["a", "b", "c"])
    assert bounds.extra(objects).to_pylist() == [
        '{"a":"a","b":"a","c":1}', bounds.LEFT_OUT, '{"a":null,"b":null,"c":3}', bounds.LEFT_OUT,
    ]  # fmt: skip
    assert text.row_too_large(bounds.extra(objects)).to_pylist() == [False, True, False, True]
    assert text.row_too_large(pa.nulls(3, pa.string())).to_pylist() == [False] * 3
