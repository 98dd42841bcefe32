import threading
import tomllib
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.filters import one_caption, words
from altalign.filters.one_caption import hash_of_bigram, hash_of_word
from tests.filters.plain_words import hash_of_text, plain_words
from tests.golden import caption_cases
from tests.reference import captions as reference
from tests.shared_data import SHARED, needs_shared
from tests.strategies import nasty_captions

GOLDEN = tomllib.loads((Path(__file__).parents[1] / "cases" / "words.toml").read_text(encoding="utf-8"))["words"]
NASTY = "aZ9_ '’-\u00e9\u0130\u212a\u212b\u023a\u1e9e\u00ad\u200b\u200d\u0301\ufe0f人々ー〇が\u3099กำ\u0e34ក\u17d2ཀཾ٣한ʼ\U0001d7d9\U00010400\U0001f642\U00020000"  # noqa: E501
GOLDEN_HASHES = {
    "dog": 0x0148C267E25A0791,
    "internationalisation": 0x2DA9E0C03D7BA6A1,
    "brown dog": 0xE241634259D18A22,
    "a brown dog.": 0x6AF8B0B5BE16F5D0,
}  # stored tables hold such hashes

derandomized = settings(derandomize=True, deadline=None, max_examples=150)


def rows_of(found: words.Scan) -> list[tuple[int, int, list[int]]]:
    begins = [0, *found.ends.tolist()]
    ngrams = [found.ngrams[begin:end].tolist() for begin, end in zip(begins, found.ends, strict=False)]
    return list(zip(found.words.tolist(), found.texts.tolist(), ngrams, strict=True))


def plain_row(caption: str) -> tuple[int, int, list[int]]:
    return len(one_caption.words_of(caption)), hash_of_text(caption), one_caption.ngram_hashes(caption)


def scan(captions: list[str] | pa.Array) -> list[tuple[int, int, list[int]]]:
    return rows_of(words.scan(captions if isinstance(captions, pa.Array) else pa.array(captions, pa.string())))


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["why"])
def test_golden_captions_have_their_words(case):
    assert one_caption.words_of(case["caption"]) == case["words"]
    assert plain_words(case["caption"]) == case["words"]
    assert reference.words(case["caption"]) == case["words"]
    assert scan([case["caption"]]) == [plain_row(case["caption"])]


@pytest.mark.parametrize("case", [case for case in caption_cases() if "words" in case], ids=lambda case: case["why"])
def test_golden_clean_captions_have_their_words(case):
    assert one_caption.words_of(case["clean"]) == case["words"]
    assert scan([case["clean"]]) == [plain_row(case["clean"])]


@pytest.mark.parametrize("case", [case for case in caption_cases() if "folded" in case], ids=lambda case: case["why"])
def test_golden_captions_are_folded(case):
    assert one_caption.folded(case["clean"]) == case["folded"]


@derandomized
@given(
    st.lists(
        st.one_of(st.text(st.sampled_from(NASTY), max_size=90), nasty_captions(), st.text(max_size=20)), max_size=20
    )
)
def test_kernel_and_plain_twins_agree(captions):
    for caption in captions:
        assert one_caption.words_of(caption) == plain_words(caption)
    assert scan(captions) == [plain_row(caption) for caption in captions]


@derandomized
@given(st.lists(st.text(st.sampled_from(NASTY), max_size=30), min_size=1, max_size=30), st.data())
def test_a_row_is_the_same_in_every_slice(captions, data):
    whole = scan(captions)
    begin = data.draw(st.integers(0, len(captions)))
    length = data.draw(st.integers(0, len(captions) - begin))
    array = pa.array(captions, pa.string())
    assert scan(array.slice(begin, length)) == whole[begin : begin + length]
    assert scan(array.cast(pa.large_string()).slice(begin, length)) == whole[begin : begin + length]


@derandomized
@given(
    st.lists(
        st.one_of(st.binary(max_size=40), st.text(st.sampled_from(NASTY), max_size=9).map(str.encode)),
        min_size=1,
        max_size=12,
    )
)
def test_bytes_that_are_not_utf_8_belong_to_no_word(rows):
    # In one buffer without room behind it, where sequences cut at a row's end must not be read on into the next row.
    data = np.frombuffer(b"".join(rows), np.uint8)
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    array = pa.StringArray.from_buffers(len(rows), pa.py_buffer(offsets), pa.py_buffer(data))
    found = scan(array)
    replaced = scan([row.decode(errors="replace") for row in rows])
    assert [(n, ngrams) for n, _, ngrams in found] == [(n, ngrams) for n, _, ngrams in replaced]


def test_rows_of_any_length_and_number_are_scanned():
    captions = [
        "",
        "x",
        "Été's " * 9_000,
        "",
        "İ’漢\u00ad" * 9_000,
        *["A B"] * 3_000,
        "b" * 70_000,
        "",
        *["l’été\u00ad", ""] * 700,
    ]
    assert scan(captions) == [plain_row(caption) for caption in captions]


def test_no_rows_are_no_rows():
    empty = words.scan(pa.array([], pa.string()))
    assert [array.size for array in empty] == [0, 0, 0, 0]
    assert scan(["", ""]) == [plain_row("")] * 2
    assert scan(pa.StringArray.from_buffers(0, pa.py_buffer(b""), pa.py_buffer(b""))) == []


def test_nulls_are_refused():
    with pytest.raises(ValueError, match="hold 1 nulls"):
        words.scan(pa.array(["a", None]))


def test_threads_do_not_disturb_one_another():
    captions = [f"Word{i} l’été 漢字 number {i}" for i in range(5_000)]
    expected = scan(captions)
    found = []

    def work() -> None:
        found.extend(scan(captions) == expected for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 15


def test_hash_version_1_is_what_it_was():
    assert words.HASH_VERSION == 1
    assert hash_of_word("dog") == GOLDEN_HASHES["dog"]
    assert hash_of_word("internationalisation") == GOLDEN_HASHES["internationalisation"]
    assert hash_of_bigram("brown", "dog") == GOLDEN_HASHES["brown dog"]
    assert hash_of_text("A brown dog.") == GOLDEN_HASHES["a brown dog."]


def test_short_words_do_not_collide():
    mixed = np.unique([hash_of_word(chr(a) + chr(b)) for a in range(97, 123) for b in range(0x430, 0x450)])
    assert mixed.size == 26 * 32


def test_bigrams_know_their_order():
    assert hash_of_bigram("a", "b") != hash_of_bigram("b", "a")


def test_texts_that_differ_in_punctuation_or_format_characters_alone_are_different():
    texts = ["a dog", "a dog.", "a  dog", "a\u00ad dog", "a dog\0"]
    assert len({hash_of_text(text) for text in texts}) == len(texts)
    assert hash_of_text("A DOG") == hash_of_text("a dog")


def test_ngrams_are_named_in_the_order_of_their_hashes():
    assert one_caption.ngrams_of("a b  c") == ["a", "b", "a b", "c", "b c"]
    assert one_caption.ngrams_of("?") == []


@needs_shared
def test_real_captions_have_the_words_of_the_twins():
    texts = pq.read_table(SHARED / "alt_text.parquet", columns=["text"])["text"].unique().to_pylist()
    chosen = [text for text in texts if zlib.crc32(text.encode()) % 120 == 0]
    assert len(chosen) > 10_000
    assert [text for text in chosen if one_caption.words_of(text) != plain_words(text)] == []
    assert scan(chosen) == [plain_row(text) for text in chosen]
