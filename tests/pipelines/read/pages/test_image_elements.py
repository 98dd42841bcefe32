"""Pages: golden cases, URLs, any bytes, and pages that are refused."""

import json
from pathlib import Path

import ada_url
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.pipelines.read.pages import image_elements
from altalign.pipelines.read.pages.image_elements import PageError
from tests.pipelines.read.pages.tag_soup import tokens

CASES = Path(__file__).parents[3] / "cases" / "pages"
PAGE_URL = "http://site.example/dir/page.html"


def rows(body: bytes, page_url: str = PAGE_URL, charset: str | None = None) -> list[list[str | None]]:
    batch = image_elements.verdicts([(image, page_url, "") for image in image_elements.images(body, page_url, charset)])
    return [[row["image_url"], row["caption"], row["reason"]] for row in batch.to_pylist()]


@pytest.mark.parametrize("case", sorted(path.stem for path in CASES.glob("*.html")))
def test_a_golden_page_gives_its_images(case):
    assert rows((CASES / f"{case}.html").read_bytes()) == json.loads((CASES / f"{case}.json").read_text())


@pytest.mark.parametrize(
    ("page_url", "base", "src", "url"),
    [
        ("http://a/b/c", None, "x", "http://a/b/x"),
        ("http://a/b/c", "d/", "x", "http://a/b/d/x"),
        ("http://a/b/c", "//e/f", "x", "http://e/x"),
        ("http://a/b/c", "http://[", "x", "http://a/b/x"),
        ("http://a/b/c", "data:text/plain,x", "x", "http://a/b/x"),
        ("http://a/b/c", "javascript:x", "x", "http://a/b/x"),
        ("http://a/b/c", "", "x", "http://a/b/x"),
        ("no url", None, "x", None),
        ("no url", "http://b/", "x", "http://b/x"),
        ("no url", "relative/", "x", None),
        ("no url", None, "https://c/#f", "https://c/"),
        ("file:///a", None, "x", None),
    ],
)
def test_relative_urls_are_resolved_as_browsers_do(page_url, base, src, url):
    assert image_elements.resolve(src, image_elements.base_url(page_url, base)) == url


@pytest.mark.parametrize(
    ("charset", "written", "query"),  # as Chromium asks for them
    [
        ("windows-1251", "кот", "%EA%EE%F2"),
        ("iso-8859-1", "Kätzchen€", "K%E4tzchen%80"),
        ("iso-8859-7", "γάτα", "%E3%DC%F4%E1"),
        ("shift_jis", "猫ソ①", "%94L%83\\%87@"),
        ("euc-jp", "猫&#x1f408;", "%C7%AD%26%23128008%3B"),
        ("iso-2022-jp", "a猫b&eacute;", "a%1B$BG-%1B(Bb%26%23233%3B"),
        ("gbk", "猫&#x1f408;", "%C3%A8%26%23128008%3B"),
        ("gb18030", "猫&#x1f408;", "%C3%A8%949%CA2"),
        ("big5", "貓&Agrave;", "%BF%DF%26%23192%3B"),
        ("big5", "&euro;&#x2027;&#xff5e;十", "%A3%E1%A1E%A1%E3%A4Q"),
        ("euc-kr", "고양이", "%B0%ED%BE%E7%C0%CC"),
        ("koi8-r", "кот", "%CB%CF%D4"),
        ("utf-8", "кот", "%D0%BA%D0%BE%D1%82"),
        ("utf-16le", "кот", "%D0%BA%D0%BE%D1%82"),
    ],
)
def test_a_query_is_encoded_in_the_charset_of_the_page_and_a_path_in_utf_8(charset, written, query):
    codec = {"gbk": "gb18030", "shift_jis": "cp932", "iso-8859-1": "cp1252"}
    html = f'<img src="&eacute;?{written}">'.encode(codec.get(charset, charset))
    assert [image.url for image in image_elements.images(html, PAGE_URL, charset)] == [
        f"http://site.example/dir/%C3%A9?{query}"
    ]


def xhtml(body: str, head: str = "", before: str = "") -> bytes:
    root = '<html xmlns="http://www.w3.org/1999/xhtml">'
    return f"{before}{root}<head>{head}</head><body>{body}</body></html>".encode()


def alts(page: bytes) -> list[str | None]:
    return [image.alt for image in image_elements.images(page, PAGE_URL, None, is_xml=True)]


CLOSED = "script style title textarea iframe noframes noembed noscript xmp plaintext template select a b svg math"


@pytest.mark.parametrize("name", CLOSED.split())
def test_an_element_of_xhtml_that_ends_at_once_swallows_nothing(name):
    page = xhtml(f'<{name} class="x" title="a>b"/><p><img alt="a"/></p>', f"<{name}/>")
    assert alts(page) == ["a"]


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (xhtml('<![CDATA[<img alt="a"/>]]><img alt="b"/>'), ["b"]),
        (xhtml('<script><![CDATA[ if (1<2) "<img alt=0></script>" ]]></script><img alt="b"/>'), ["b"]),
        (xhtml('<?php echo "<img alt=0>" ?><!-- <img alt="0"/> --><img alt="b"/>'), ["b"]),
        (xhtml('<img alt="caf&eacute;&nbsp;&amp;&lt;&#x41;&apos;&mdash;"/>'), ["caf\u00e9\u00a0&<A'\u2014"]),
        (
            xhtml('<img alt="&eacute;"/>', before='<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "-//W3C" "x.dtd">'),
            ["é"],
        ),
        (xhtml('<image alt="a"/><img alt="b"/>'), ["b"]),
        (xhtml('<template><img alt="a"/></template><frameset/><img alt="b"/>'), ["b"]),
        (xhtml('<table><img alt="a"/></table><select><img alt="b"/></select>'), ["a", "b"]),
        (
            b'<?xml version="1.0" encoding="windows-1251"?>' + xhtml('<img alt="кот"/>').decode().encode("cp1251"),
            ["кот"],
        ),
        (b'<?xml version="1.0" encoding="utf-16"?>' + xhtml('<img alt="кот"/>'), ["кот"]),
        (
            xhtml("кот")
            .decode()
            .encode("utf-16")
            .replace("к".encode("utf-16-le"), '<img alt="к"/>'.encode("utf-16-le")),
            ["к"],
        ),
        (b'<html><img alt="no namespace"></html>', ["no namespace"]),
        (xhtml('<img alt="a"><br></p>'), ["a"]),
        (xhtml('<img alt="&x;"/>', before='<!DOCTYPE html [<!ENTITY x "y">]>'), ["&x;"]),
    ],
)
def test_xhtml_is_read_as_html_but_for_what_ends_at_once_and_cdata_sections(page, expected):
    assert alts(page) == expected


def test_a_base_and_a_query_count_in_xhtml_too():
    page = xhtml('<img src=" x?&#x43a; " srcset="y"/><img srcset="y 2x, z"/>', '<base href="/b/"/>')
    found = image_elements.images(page, PAGE_URL, "windows-1251", is_xml=True)
    assert [image.url for image in found] == ["http://site.example/b/x?%EA", "http://site.example/b/y"]


def test_a_page_without_images_has_no_rows():
    assert rows(b"<p>text") == rows(b"") == rows(b"\x00\xff") == []


def test_a_page_that_is_too_large_is_refused():
    with pytest.raises(PageError, match="16 MiB"):
        rows(b"<img>" + b" " * image_elements.PAGE_BYTES)
    with pytest.raises(PageError, match="16 MiB in UTF-8"):
        rows(b"<img>" + b"\xff" * (image_elements.PAGE_BYTES - 5), charset="latin1")


def test_a_page_of_too_many_images_is_refused():
    with pytest.raises(PageError, match="a page of more than 750,000 images"):
        rows(b"<img>" * 750_001)


def test_images_of_a_page_come_one_after_the_other():
    found = image_elements.images(b"<img src=a alt=b>" * 20_000, PAGE_URL, None)
    assert next(found) == image_elements.ImageElement("http://site.example/dir/a", "a", "b")
    assert sum(1 for _ in found) == 19_999


PARTS = tokens(
    r"http://  https://  HTTP://  //  /  a  A  xn--  -  .  ..  %2e  %20  ?  #  :  :80  :8080  @  \\  \u00e9  '  "
    r"0  1.2  com  b.c/  [  |  ~  &=  ;  _  \x20  \t"
)
BASES = ["http://h.example/", "https://h.example/dir/page?q=/a#f/g", "http://h/#/", "http://h:81?a/b", "file:///a/b"]


@settings(derandomize=True, deadline=None, max_examples=1_000)
@given(st.lists(st.sampled_from(PARTS), max_size=8).map("".join), st.none() | st.sampled_from(BASES))
def test_urls_are_resolved_as_by_the_url_parser(url, base):
    try:
        expected = ada_url.URL(url, base).href.partition("#")[0]
    except ValueError:
        expected = ""
    known = None if base is None else image_elements.base_url(base, None)
    assert image_elements.resolve(url, known) == (expected if expected.startswith(("http://", "https://")) else None)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    st.binary(max_size=300) | st.text("<>img/ src=\"'alt!-&;é\n", max_size=120).map(str.encode),
    st.sampled_from([None, "utf-8", "shift_jis", "utf-16", "nothing", "gb18030"]),
)
def test_any_bytes_are_a_page(body, charset):
    for url, caption, reason in rows(body, charset=charset):
        assert reason is not None or (url and caption)
