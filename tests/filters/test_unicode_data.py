import unicodedata

import numpy as np
import pytest

from altalign.filters import unicode_data
from altalign.filters.unicode_16 import unicodedata as unicodedata_16
from altalign.filters.unicode_data import (
    CONNECTOR,
    CONTROL,
    FORMAT,
    LETTER,
    MARK,
    MODIFIER_LETTER,
    NFC_CHECK,
    NUMBER,
    SINGLE,
    WHITE_SPACE,
)
from tools import make_unicode_data


def test_the_stored_table_is_what_its_sources_give():
    assert unicodedata_16.unidata_version == unicode_data.UNICODE_VERSION
    for stored, built in zip(unicode_data.table(), make_unicode_data.build(), strict=True):
        assert stored.dtype == built.dtype
        np.testing.assert_array_equal(stored, built)


def test_lower_case_is_that_of_the_interpreter_where_it_knows_the_code_point():
    lower = unicode_data.lower_case()
    known = [
        chr(point) for point in range(unicode_data.CODE_POINTS) if unicodedata.category(chr(point)) not in ("Cn", "Cs")
    ]
    assert [c for c in known if lower.get(ord(c), ord(c)) != ord(c.lower()[0])] == []
    assert len(lower) == 1_460  # code points with a field 13 in UnicodeData.txt 16.0.0


@pytest.mark.parametrize(
    ("upper", "lower"),
    [("\u0130", "i"), ("Σ", "σ"), ("\u212a", "k"), ("\ua7dc", "\u019b"), ("\U00010d50", "\U00010d70"), ("ẞ", "ß")],
)
def test_lower_case_is_simple_and_of_unicode_16(upper: str, lower: str):
    assert upper.translate(unicode_data.lower_case()) == lower


@pytest.mark.parametrize(
    ("character", "classes"),
    [
        ("a", LETTER),
        ("5", NUMBER),
        ("_", CONNECTOR),
        (" ", WHITE_SPACE),
        ("\t", WHITE_SPACE | CONTROL),
        ("\x1c", CONTROL),
        ("\x85", WHITE_SPACE | CONTROL),
        ("\u200b", 0),
        ("\u200d", FORMAT),
        ("\u2000", WHITE_SPACE | NFC_CHECK),
        ("\u02bc", LETTER | MODIFIER_LETTER),
        ("漢", LETTER | SINGLE),
        ("々", LETTER | MODIFIER_LETTER | SINGLE),
        ("ー", LETTER | MODIFIER_LETTER),
        ("〇", NUMBER | SINGLE),
        ("๑", NUMBER | SINGLE),
        ("\u0e31", MARK),
        ("\u1161", LETTER | NFC_CHECK),
        ("한", LETTER),
        ("\U00016ea0", 0),
        ("\ud800", 0),
        ("\U0010ffff", 0),
    ],
)
def test_classes_of_characters(character: str, classes: int):
    assert unicode_data.entry(character) & ~unicode_data.FOLD == classes


def test_text_without_doubtful_characters_and_marks_out_of_order_is_in_nfc():
    # NFC_Quick_Check and combining classes are enough: no pair of characters without either changes.
    rng = np.random.default_rng(0)
    plain = [
        chr(p)
        for p in range(unicode_data.CODE_POINTS)
        if not 0xD800 <= p < 0xE000 and not unicode_data.entry(chr(p)) & NFC_CHECK
    ]
    text = "".join(
        a + b + "." for a, b in zip(rng.permutation(plain).tolist(), rng.permutation(plain).tolist(), strict=True)
    )
    marks = [unicodedata_16.combining(c) for c in text]
    ordered = "".join(c for c, before, mark in zip(text, [0, *marks], marks, strict=False) if not 0 < mark < before)
    assert unicodedata_16.normalize("NFC", ordered) == ordered


def test_the_table_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        unicode_data.table().entries[0] = 1
