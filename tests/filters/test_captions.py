import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.filters import captions
from altalign.filters.unicode_16 import unicodedata
from tests.golden import caption_cases
from tests.reference import captions as reference
from tests.shared_data import SHARED, needs_shared
from tests.strategies import nasty_captions

NASTY = (
    "ab  \t\n\x00\x1c\x1f\x7f\x85\xa0\u2000\u2028\u3000e\u0301\u0323\u0307\u0f71\u0f72\u1100\u1161\u11a8é\u212b\uac00日\U0001f600"  # noqa: E501
    "\u200b\u00ad\ufeff\U0001d165\u09c7\u09be"
)
REFERENCES = ["&", "&amp", "amp", ";", "=", "lt", "&lt;", "&notin;", "&not", "it;", "&#", "x", "X", "39", "0", "1F600"]
REFERENCES += ["150", "D800", "110000", "9" * 5_000, "é", " "]
derandomized = settings(derandomize=True, deadline=None, max_examples=150)


def plain_clean(text: str) -> str:
    """The slow twin: one step of the rule after the other."""
    points = [*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
    white_space = list(map(chr, points))
    text = "".join(c for c in text if unicodedata.category(c) != "Cc" or c in white_space)
    text = unicodedata.normalize("NFC", text)
    for c in white_space:
        text = text.replace(c, " ")
    while "  " in text:
        text = text.replace("  ", " ")
    return text.removeprefix(" ").removesuffix(" ")


def array_of(rows: list[bytes]) -> pa.StringArray:
    """In buffers without room behind them, not all of it UTF-8 perhaps."""
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(rows), pa.py_buffer(offsets), pa.py_buffer(b"".join(rows)))


@pytest.mark.parametrize("case", caption_cases(), ids=lambda case: case["why"])
def test_golden_captions_become_clean(case):
    raw = pa.array([case["raw"]])
    assert captions.clean(captions.decode_entities(raw) if case.get("decode_entities") else raw).to_pylist() == [
        case["clean"]
    ]


@derandomized
@given(st.lists(st.one_of(st.text(st.sampled_from(NASTY), max_size=150), nasty_captions(), st.none()), max_size=15))
def test_clean_is_its_plain_twin(texts):
    found = captions.clean(pa.array(texts, pa.string())).to_pylist()
    assert found == [plain_clean(text or "") for text in texts]
    assert found == [reference.clean(text or "") for text in texts]


@derandomized
@given(
    st.lists(
        st.one_of(st.binary(max_size=80), st.text(st.sampled_from(NASTY), max_size=20).map(str.encode)),
        min_size=1,
        max_size=15,
    ),
    st.data(),
)
def test_broken_bytes_become_replacement_characters_and_slices_are_minded(rows, data):
    begin = data.draw(st.integers(0, len(rows)))
    found = captions.clean(array_of(rows).slice(begin))
    found.validate(full=True)
    assert found.to_pylist() == [plain_clean(row.decode(errors="replace")) for row in rows[begin:]]


def test_every_code_point_of_two_and_three_bytes_is_cleaned_as_the_plain_twin_cleans_it():
    texts = [f"a{chr(point)}\u0301b" for point in [*range(0x80, 0xD800), *range(0xE000, 0x10000)]] + [
        f"a{chr(point)}b" for point in range(0x80, 0x2000)
    ]
    assert captions.clean(pa.array(texts)).to_pylist() == [plain_clean(text) for text in texts]


@pytest.mark.parametrize("at", [0, 1, 62, 63, 64])
def test_bytes_that_begin_a_sequence_and_do_not_go_on_become_replacement_characters(at: int):
    ends = [b"", b"a", b"\x80", b"\x80\x80", b"\xd0", b"\xd0\x80", b"\x80\xc3", b"\xff", b"\x80\xd0\xb0\xb0"]
    rows = [b"x" * at + bytes([lead]) + end for lead in range(0x80, 0x100) for end in ends]
    assert captions.clean(array_of(rows)).to_pylist() == [plain_clean(row.decode(errors="replace")) for row in rows]


@derandomized
@given(st.lists(st.text(st.sampled_from(NASTY), max_size=30), max_size=15))
def test_what_is_clean_stays_as_it_is_in_the_same_buffers(texts):
    clean = captions.clean(pa.array(texts, pa.string()))
    assert captions.clean(clean) is clean
    part = clean.slice(len(texts) // 2)
    assert captions.clean(part) is part


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.large_string()),
    ],
)
def test_any_kind_of_string_is_taken(kind: pa.DataType):
    texts = [" a ", None, "b&amp;", "", " a "]
    array = pa.array(texts).cast(kind)
    assert captions.clean(array).equals(pa.array(["a", "", "b&amp;", "", "a"]))
    assert captions.decode_entities(array.slice(1)).equals(pa.array(["", "b&", "", " a "]))


def test_columns_of_nothing_but_nulls_and_of_no_rows_are_taken():
    assert captions.clean(pa.array([None, None])).equals(pa.array(["", ""]))
    assert captions.clean(pa.array([], pa.string())).equals(pa.array([], pa.string()))
    assert captions.decode_entities(pa.array([], pa.large_string())).equals(pa.array([], pa.string()))


def test_long_rows_are_cleaned_wherever_the_trouble_is():
    for at in range(60, 70):
        for trouble in (" ", "\t", "\x01", "\u2003", "e\u0301", "\u0323\u0301"):
            text = "x" * at + trouble + "é" * at + " y"
            assert captions.clean(pa.array([text, "z" * 200 + " " + trouble])).to_pylist() == [
                plain_clean(text),
                plain_clean("z" * 200 + " " + trouble),
            ]


@derandomized
@given(st.lists(st.lists(st.sampled_from(REFERENCES), max_size=9).map("".join) | nasty_captions(), max_size=6))
def test_entities_are_decoded_as_in_attributes(texts):
    expected = [reference.decode_entities(text) for text in texts]
    assert [captions.decode_entities_in(text) for text in texts] == expected
    assert captions.decode_entities(pa.array(texts, pa.string())).to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("cats &amp; dogs", "cats & dogs"),
        ("&amp;amp;", "&amp;"),
        ("?a=1&copy=2&copy2", "?a=1&copy=2&copy2"),
        ("&copy 2020 &copy", "© 2020 ©"),
        ("&notit; &notin;", "&notit; ∉"),
        ("&NotEqualTilde; &fjlig;", "≂̸ fj"),
        ("&#39;&#x27;&#X27;&#39", "''''"),
        ("&#150;&#x80;&#x81;", "–€\x81"),
        ("&#0;&#xD800;&#x110000;&#99999999999;", "\ufffd\ufffd\ufffd\ufffd"),
        ("&#x0000000041;", "A"),
        ("&#; &#x; &; & &unknown;", "&#; &#x; &; & &unknown;"),
    ],
)
def test_entities_decoded_one_by_one(text: str, decoded: str):
    assert captions.decode_entities_in(text) == decoded


def test_rows_without_references_keep_their_buffers():
    array = pa.array(["a", "b"])
    assert captions.decode_entities(array) is array


def test_rows_beside_a_decoded_one_keep_their_bytes():
    found = captions.decode_entities(array_of([b"\xff", b"&lt;\xff", b"\xe9"]))
    assert found.cast(pa.binary()).to_pylist() == [b"\xff", "<\ufffd".encode(), b"\xe9"]


@needs_shared
def test_real_captions_are_cleaned_as_the_plain_twin_cleans_them():
    texts = pq.read_table(SHARED / "alt_text.parquet", columns=["text"])["text"].unique().to_pylist()
    chosen = [text for text in texts if zlib.crc32(text.encode()) % 40 == 0]
    assert len(chosen) > 30_000
    assert captions.clean(pa.array(chosen)).to_pylist() == [reference.clean(text) for text in chosen]
