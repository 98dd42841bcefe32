"""Pages that are nested, endless, broken off, or not in the charset that they say."""

from collections.abc import Mapping

from tests.hostile.cases import BROKEN, NONE, Case
from tests.hostile.files import Content, good_image, gzipped, host, made, record_bomb, warc
from tests.pipelines.read.pages.archives import response

SHOWN = b"<img src=it.png alt='a picture on a bad page'>"
CAPTION = "a picture on a bad page"


def page(
    name: str,
    about: str,
    html: Content,
    *kept: str,
    dropped: Mapping[str, int] = NONE,
    error: str = "",
    header: str = "text/html",
    more: str = "",
) -> Case:
    """A case that is a page; `it.png` is a good image."""

    def build() -> bytes:
        bad = gzipped(response(f"{host(name)}/page", made(html), header, headers=more))
        return warc(name, bad, good_image(name))

    return Case(name, about, "warc", ".warc.gz", build, dropped, kept, error=error)


def _long_attribute() -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<img src=it.png alt='"
    return record_bomb(f"{host('attribute-of-50-mb')}/page", head, 50, byte=b"a")


_STRUCTURE = [
    page("div-nested-a-million-times", "A million `<div>`, none closed", lambda: b"<div>" * 1_000_000 + SHOWN, CAPTION),
    page("lists-nested", "300,000 nested `<ul><li>`", lambda: b"<ul><li>" * 300_000 + SHOWN, CAPTION),
    page(
        "formatting-never-closed",
        "10,000 `<b>`, all different, a `<p>` in each, none closed",
        lambda: b"".join(b"<b a%d><p>" % number for number in range(10_000)) + SHOWN,
        CAPTION,
    ),
    page("div-nested-a-little", "1,000 nested `<div>`", lambda: b"<div>" * 1_000 + SHOWN, CAPTION),
    page("tables-nested", "20,000 nested `<table>`", lambda: b"<table>" * 20_000 + SHOWN, CAPTION),
    page("svg-nested", "20,000 nested `<svg>`", lambda: b"<svg>" * 20_000 + SHOWN, CAPTION),
    page(
        "attributes-a-million",
        "A million attributes on one tag",
        lambda: (
            b"<img src=it.png "
            + b" ".join(b"a%d" % number for number in range(1_000_000))
            + b" alt='a picture on a bad page'>"
        ),
        CAPTION,
    ),
    page(
        "attribute-repeated",
        "An attribute given twice: the first counts",
        b"<img src=it.png alt='the first of two texts' alt='the second text'>",
        "the first of two texts",
    ),
    Case(
        "attribute-of-50-mb",
        "An `alt` of 50 MB",
        "warc",
        ".warc.gz",
        lambda: warc("attribute-of-50-mb", _long_attribute()),
        BROKEN,
        error="a page of more than 16 MiB",
    ),
    page(
        "attribute-of-15-mb",
        "An `alt` of 15 MB, 3 million words",
        lambda: b"<img src=it.png alt='" + b"word " * 3_000_000 + b"'>",
        dropped={"text_too_large": 1},
    ),
    page(
        "images-without-alt",
        "100,000 images without `alt`",
        lambda: b"<img src=a>" * 100_000,
        dropped={"alt_missing": 100_000},
    ),
    page("comments-never-closed", "A million `<!--`, none closed", lambda: SHOWN + b"<!--" * 1_000_000, CAPTION),
    page("comment-hides-the-rest", "An image inside a comment that is never closed", b"<p>text <!-- " + SHOWN),
    page("script-never-closed", "An image behind `<script>` that is never closed", b"<script>" + SHOWN),
    page("title-never-closed", "An image behind `<title>` that is never closed", b"<title>" + SHOWN),
    page("plaintext", "An image behind `<plaintext>`", b"<plaintext>" + SHOWN),
    page(
        "tag-never-closed",
        "A page that ends inside an image's `alt`",
        SHOWN + b"<img src=it.png alt='the page ends here",
        CAPTION,
    ),
    page("less-than-signs", "8 MB of `<`", lambda: SHOWN + b"<" * (8 << 20), CAPTION),
    page(
        "nul-everywhere",
        "8 MB of NUL, and NUL inside a tag",
        lambda: b"\0" * (8 << 20) + b"<img src=it.png alt='a text \0 with nothing'>",
        "a text \ufffd with nothing",
    ),
    page("nul-in-a-tag-name", "NUL inside the name of a tag", b"<im\0g src=it.png alt='no image at all'>"),
    page(
        "base-of-javascript",
        "`<base href>` of `javascript:`, which counts for nothing",
        b"<base href='javascript:alert(1)'>" + SHOWN,
        CAPTION,
    ),
    page("base-that-is-broken", "`<base href>` that no parser takes", b"<base href='http://[::1'>" + SHOWN, CAPTION),
    page(
        "srcset-of-commas",
        "A `srcset` of 4 MB of commas",
        lambda: b"<img srcset='" + b", " * (2 << 20) + b"' alt='a set of nothing'>",
        dropped={"url_invalid": 1},
    ),
    page(
        "image-called-image",
        "`<image>`, of which parsers make `<img>`",
        b"<image src=it.png alt='a picture by another name'>",
        "a picture by another name",
    ),
    page(
        "xhtml-of-entities",
        "XHTML that declares entities which unfold to 10^9 characters: read as HTML, which knows none",
        lambda: (
            b"<!DOCTYPE html ["
            + b"".join(b"<!ENTITY a%d '%s'>" % (n, b"&a%d;" % (n - 1) * 10 if n else b"x") for n in range(10))
            + b"]><html xmlns='http://www.w3.org/1999/xhtml'><p title='&a9;'/>"
            + SHOWN.replace(b"'>", b"'/>")
            + b"</html>"
        ),
        CAPTION,
        header="application/xhtml+xml",
    ),
    page(
        "xhtml-nested",
        "XHTML of 500,000 nested elements",
        lambda: (
            b"<html xmlns='http://www.w3.org/1999/xhtml'>"
            + b"<b>" * 500_000
            + SHOWN.replace(b"'>", b"'/>")
            + b"</b>" * 500_000
            + b"</html>"
        ),
        CAPTION,
        header="application/xhtml+xml",
    ),
    page(
        "xml-declared",
        "XHTML that is not well-formed",
        b"<?xml version='1.0'?><html><p>" + SHOWN + b"</q>",
        CAPTION,
        header="application/xhtml+xml",
    ),
]

_CHARSETS = [
    page(
        "utf-16-that-says-utf-8",
        "UTF-16 with a byte order mark; header and `<meta>` say UTF-8",
        ("\ufeff<meta charset=utf-8><img src=it.png alt='Grüße aus dem Süden'>").encode("utf-16-le"),
        "Grüße aus dem Süden",
        header="text/html; charset=utf-8",
    ),
    page(
        "utf-16-of-odd-length",
        "UTF-16 with half a character at its end",
        ("\ufeff<img src=it.png alt='Grüße aus dem Süden'>").encode("utf-16-be") + b"\xd8",
        "Grüße aus dem Süden",
    ),
    page(
        "utf-16-without-mark",
        "UTF-16 without a byte order mark, declared in the header alone",
        "<img src=it.png alt='Grüße aus dem Süden'>".encode("utf-16-le"),
        "Grüße aus dem Süden",
        header="text/html; charset=utf-16le",
    ),
    page(
        "iso-2022-jp",
        "ISO-2022-JP, all of it bytes below 128",
        b"<meta charset=iso-2022-jp>" + "<img src=it.png alt='庭の小さな猫'>".encode("iso-2022-jp"),
        "庭の小さな猫",
    ),
    page(
        "iso-2022-jp-cut",
        "ISO-2022-JP whose escape sequence never ends",
        b"<meta charset=iso-2022-jp><img src=it.png alt='a cat here'><p>\x1b$",
        "a cat here",
    ),
    page(
        "header-against-meta",
        "The header says windows-1251, `<meta>` says UTF-8: the header counts",
        b"<meta charset=utf-8>" + "<img src=it.png alt='кот в саду'>".encode("cp1251"),
        "кот в саду",
        header="text/html; charset=windows-1251",
    ),
    page(
        "header-that-lies",
        "The header says UTF-8, the bytes are Latin-1",
        "<img src=it.png alt='une forêt très verte'>".encode("latin-1"),
        "une for\ufffdt tr\ufffds verte",
        header="text/html; charset=utf-8",
    ),
    page(
        "meta-that-lies",
        "`<meta>` says Shift_JIS, the bytes are UTF-8: no caption is lost, and this one is wrong",
        b"<meta charset=shift_jis>" + "<img src=it.png alt='une forêt verte'>".encode(),
        "une for\uff83\uff6at verte",
    ),
    page(
        "charset-unknown",
        "Header and `<meta>` name a charset that nobody knows: valid UTF-8",
        "<meta charset=x-klingon><img src=it.png alt='une forêt très verte'>".encode(),
        "une forêt très verte",
        header="text/html; charset=utf-9000",
    ),
    page(
        "charset-of-nothing",
        "A charset of 10 kB in the header",
        SHOWN,
        CAPTION,
        header="text/html; charset=" + "x" * 10_000,
    ),
    page(
        "charset-declared-late",
        "`<meta charset>` behind the first 1,024 bytes does not count",
        b"<!-- "
        + b"-" * 2_000
        + b" --><meta charset=windows-1251>"
        + "<img src=it.png alt='une forêt très verte'>".encode(),
        "une forêt très verte",
    ),
    page(
        "utf-7",
        "UTF-7, which no browser reads any more",
        b"<img src=it.png alt='+ADw-script+AD4 is no tag'>",
        "+ADw-script+AD4 is no tag",
        header="text/html; charset=utf-7",
    ),
    page(
        "replacement-charset",
        "HZ-GB-2312, which browsers never decode",
        SHOWN,
        CAPTION,
        header="text/html; charset=hz-gb-2312",
    ),
    page(
        "utf-8-overlong",
        "Overlong UTF-8, half a surrogate pair, and a code point beyond Unicode",
        b"<meta charset=utf-8><img src=it.png alt='one \xc0\xbc two \xed\xa0\x80 three \xf5\x80\x80\x80 four'>",
        "one \ufffd\ufffd two \ufffd\ufffd\ufffd three \ufffd\ufffd\ufffd\ufffd four",
    ),
]

CASES = [*_STRUCTURE, *_CHARSETS]
