"""Pages: golden cases, any tag soup, and pages made to hurt."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.read import effort, pages
from pipelines.read.pages import PageError

CASES = Path(__file__).parents[2] / "cases" / "pages"
PAGE_URL = "http://site.example/dir/page.html"


def rows(body: bytes, page_url: str = PAGE_URL, charset: str | None = None) -> list[list[str | None]]:
    batch = pages.verdicts([(image, page_url) for image in pages.images(body, page_url, charset)])
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
    assert pages.resolve(src, pages.base_url(page_url, base)) == url


def test_a_page_without_images_has_no_rows():
    assert rows(b"<p>text") == rows(b"") == rows(b"\x00\xff") == []


def test_a_page_that_is_too_large_is_refused():
    with pytest.raises(PageError, match="16 MiB"):
        rows(b"<img>" + b" " * pages.PAGE_BYTES)
    with pytest.raises(PageError, match="16 MiB in UTF-8"):
        rows(b"<img>" + b"\xff" * (pages.PAGE_BYTES - 5), charset="latin1")


N = 1_000_000
HOSTILE: dict[str, Callable[[], bytes]] = {
    "nested div": lambda: b"<div>" * N,
    "nested lists": lambda: b"<ul><li>" * N,
    "nested div behind barriers": lambda: b"<div><object></div></object>" * 500_000,
    "nested div behind svg": lambda: b"<svg><foreignObject><div/>" * 500_000,
    "nested div in a title of svg": lambda: b"<svg><title>" + b"<div>" * N,
    "nested div in cells without a table": lambda: b"<td><div>" * N,
    "nested div beside others": lambda: b"<div>" * 5_000 + b"<div></div>" * N,
    "attributes": lambda: b"<img " + b" ".join(b"a%d" % number for number in range(N)) + b">",
    "attributes without spaces": lambda: b"<img " + b'a="b"' * N + b">",
    "images": lambda: b"<img>" * 2 * N,
    "rebuilt formatting": lambda: b"".join(b"<p><font a=%d>" % number for number in range(100_000)),
    "rebuilt formatting by text": lambda: b"<p>" + b"".join(b"<font a=%d>" % number for number in range(1_000)) + b"</p>" + b"<p>x</p>" * 100_000,
    "adoption": lambda: b"<b><div>" * 100_000 + b"</b>" * 100_000,
    "nested links": lambda: b"<a><b>" * 100_000 + b"</a></b>" * 100_000,
}
HARMLESS: dict[str, Callable[[], bytes]] = {
    "comments never closed": lambda: b"<!--" * N,
    "scripts never closed": lambda: b"<script>" * N,
    "a long attribute": lambda: b'<p title="' + b"x" * 15 * N + b'">',
    "an attribute never closed": lambda: b'<p title="' + b"x" * 15 * N,
    "NULs": lambda: b"\0" * 15 * N,
    "open angle brackets": lambda: b"<" * 15 * N,
    "paragraphs and anchors never closed": lambda: b"<p><a name=x>text" * 10_000,
    "options": lambda: b"<select>" + b"<option>x" * 300_000,
    "cells never closed": lambda: b"<table>" + b"<tr><td>x<td><p>y" * 50_000,
    "items never closed": lambda: b"<ul>" + b"<li><b>x</b> y" * 100_000,
    "formatting never closed": lambda: b"<b><i>x<p>" * 20_000,
    "misnested formatting": lambda: b"<p><b>x</p><p>y</b></p>" * 50_000,
    "references": lambda: b"&amp" * 3 * N,
    "frames of svg": lambda: b"<svg><path d='M0 0'/><g/></svg>" * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_page_made_to_hurt_is_refused_before_it_is_parsed(name):
    with pytest.raises(PageError, match="more than"):
        rows(HOSTILE[name]() + b"<img src=a alt=b>")


@pytest.mark.parametrize("name", HARMLESS)
def test_an_odd_page_that_is_no_work_is_read(name):
    assert rows(b"<img src=a.png alt=first>" + HARMLESS[name]())[0] == ["http://site.example/dir/a.png", "first", None]


_TOKENS = [
    "<div>",
    "</div>",
    "<p>",
    "</p>",
    "<b a=1>",
    "</b>",
    "<table>",
    "<td>",
    "</table>",
    "<a href=x>",
    "</a>",
    "text",
    "<!-- c -->",
    "<li>",
    "<svg>",
    "</svg>",
    "<br/>",
    "&amp",
    "\0",
]
_IMAGES = ['<img src="a.png" alt="x">', "<img>", "<IMG alt>", "<img src=b alt='' / >", "<img src='http://[' alt=q>"]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(_TOKENS + _IMAGES), max_size=60))
def test_every_image_element_of_a_tag_soup_has_exactly_one_row(tokens):
    found = rows("".join(tokens).encode())
    assert len(found) == sum(token in _IMAGES for token in tokens)
    assert all(reason is not None or (url and caption) for url, caption, reason in found)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    st.binary(max_size=300) | st.text("<>img/ src=\"'alt!-&;é\n", max_size=120).map(str.encode),
    st.sampled_from([None, "utf-8", "shift_jis", "utf-16", "nothing", "gb18030"]),
)
def test_any_bytes_are_a_page(body, charset):
    for url, caption, reason in rows(body, charset=charset):
        assert reason is not None or (url and caption)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.binary(max_size=200) | st.text('<>/divpabtsg ="!-', max_size=200).map(str.encode))
def test_any_bytes_have_an_estimate(body):
    assert effort.refusal(body) is None
