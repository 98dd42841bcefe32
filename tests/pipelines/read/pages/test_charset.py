"""Character encodings of pages: which declaration wins, and what cannot be decoded."""

import pytest

from altalign.pipelines.read.pages.charset import to_utf8

TEXT = "héllo wörld "


@pytest.mark.parametrize(
    ("body", "label", "text"),
    [
        (b"\xef\xbb\xbf" + TEXT.encode(), "latin1", TEXT),
        (b"\xff\xfe" + TEXT.encode("utf-16-le"), "utf-8", TEXT),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), None, TEXT),
        (b"\xff\xfe" + TEXT.encode("utf-16-le") + b"x", None, TEXT + "\ufffd"),
        (TEXT.encode("cp1252"), "ISO-8859-1", TEXT),
        (TEXT.encode("cp1252"), '"Latin1"', TEXT),
        (TEXT.encode(), "latin1", TEXT.encode().decode("cp1252")),
        (TEXT.encode("cp1252"), "utf-8", TEXT.replace("é", "\ufffd").replace("ö", "\ufffd")),
        (TEXT.encode(), "nothing", TEXT),
        (TEXT.encode(), "iso-2022-kr", TEXT),
        (TEXT.encode(), "hz-gb-2312", TEXT),
        (b"\xbf\xdf\xa3\xe1\xa1E\xa1\xe3\xa2D\xa1\xc2", "big5", "貓€\u2027～￥¯"),
        (b"\xbf\xdf\x88ba\xa3!", "big5", "貓Ê\u0304a\ufffd!"),
        (TEXT.encode("utf-16-le"), "utf-16", TEXT),
        ("これは".encode("iso-2022-jp"), "iso-2022-jp", "これは"),
        (TEXT.encode(), None, TEXT),
        (b"", None, ""),
        (b"", "utf-16", ""),
        (("Быстрая лиса прыгает " * 20).encode("koi8-r"), None, "Быстрая лиса прыгает " * 20),
    ],
)
def test_the_encoding_is_found_in_order(body, label, text):
    assert to_utf8(body, label)[0].decode() == text


@pytest.mark.parametrize(
    "meta",
    [
        "<meta charset=windows-1251>",
        "<META CHARSET='CP1251'/>",
        '<meta name="a" content="charset=utf-8"><meta charset="windows-1251">',
        '<meta http-equiv="Content-Type" content="text/html; charset=windows-1251">',
        "<meta content=\"text/html;charset = 'windows-1251'\" http-equiv=content-type>",
        '<!-- <meta charset=utf-8> --><meta charset="windows-1251">',
        '<a title="<meta charset=utf-8>"><meta charset=windows-1251>',
        "<meta charset=nothing><meta charset=windows-1251>",
        "<meta charset=windows-1251 charset=utf-8>",
        "<meta\ncharset = windows-1251 >",
    ],
)
def test_a_declaration_in_the_first_bytes_counts(meta):
    assert "лиса" in to_utf8(f"<html>{meta}<p>лиса".encode("cp1251"), None)[0].decode()


@pytest.mark.parametrize(
    "meta",
    [
        "<meta charset=utf-16>",
        "<meta charset=utf-16be>",
        "<!-- " + "x" * 1_024 + "--><meta charset=windows-1251>",
        '<meta content="charset=windows-1251">',
    ],
)
def test_utf16_in_a_declaration_means_utf8_and_late_ones_do_not_count(meta):
    assert "лиса" in to_utf8(f"{meta}<p>лиса".encode(), None)[0].decode()


def test_the_header_wins_over_the_declaration():
    assert to_utf8("<meta charset=utf-8>é".encode("cp1252"), "windows-1252")[0].decode().endswith("é")


@pytest.mark.parametrize("label", ["tis-620", "iso8859-11", "windows-874"])
def test_a_thai_page_keeps_its_quotes(label):
    assert to_utf8(b"\x93\xa1\x94", label)[0].decode() == "“ก”"
    assert to_utf8(f"<meta charset={label}>".encode() + b"\x93\xa1\x94", None)[0].decode().endswith("“ก”")
