"""The kernel finds the image elements of the document that selectolax builds, in a bounded number of steps a byte."""

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.pipelines.read.pages import html_kernels, image_elements
from altalign.pipelines.read.pages.html_kernels import name_table
from altalign.pipelines.read.pages.records import Record, records
from tests.pipelines.read.pages import plain_pages
from tests.pipelines.read.pages.tag_soup import (
    BASES,
    FOREIGN,
    FRAMESETS,
    HTML,
    IMAGES,
    TEMPLATES,
    TEXTS,
    WITHOUT_TABLES,
)

PAGE_URL = "http://site.example/dir/page.html"
HANDBOOKS = Path(__file__).parents[4] / "examples" / "handbook"


def assert_same(page: bytes) -> None:
    found, expected = list(image_elements.images(page, PAGE_URL, "utf-8")), plain_pages.images(page, PAGE_URL)
    if b"<table" in page.lower():  # what stands in a table and not in a cell goes before it: in another order
        assert Counter(found) == Counter(expected)
    else:
        assert found == expected


def soup(*vocabularies: list[str], size: int = 30) -> st.SearchStrategy[bytes]:
    every = st.one_of([st.sampled_from(vocabulary) for vocabulary in vocabularies])
    return st.lists(every, max_size=size).map(lambda found: "".join(found).encode())


@settings(derandomize=True, deadline=None, max_examples=400)
@given(soup(IMAGES, HTML, BASES))
def test_images_of_a_tag_soup_are_those_of_the_parser(page):
    assert_same(page)


@settings(derandomize=True, deadline=None, max_examples=400)
@given(soup(IMAGES, HTML, TEXTS, TEXTS))
def test_images_among_comments_scripts_and_other_texts_are_those_of_the_parser(page):
    assert_same(page)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(soup(IMAGES, HTML, TEMPLATES, TEMPLATES))
def test_images_around_templates_are_those_of_the_parser(page):
    assert_same(page)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(soup(IMAGES, FRAMESETS, FRAMESETS, size=12))
def test_images_around_framesets_are_those_of_the_parser(page):
    assert_same(page)


@settings(derandomize=True, deadline=None, max_examples=400)
@given(soup(IMAGES, WITHOUT_TABLES, FOREIGN, FOREIGN))  # the parser loses an <image> in a table
def test_images_around_svg_and_mathml_are_those_of_the_parser(page):
    assert_same(page)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    st.text("<>/!-=\"' aimgsrct\0\r\n&;#x0", max_size=80).map(str.encode)
    | st.lists(st.sampled_from(["<script", "</", ">", "<!--", "-->", "<img", "alt=", "'", "x", " "]), max_size=40).map(
        lambda found: "".join(found).encode()
    )
)
def test_images_of_any_text_are_those_of_the_parser(page):
    assert_same(page)


def handbook_pages() -> list[bytes]:
    found = [
        record
        for path in sorted(HANDBOOKS.glob("*.warc.gz"))
        for record in records(str(path), lambda *_: 1 << 20)
        if isinstance(record, Record)
    ]
    return [record.payload for record in found if record.http is not None and record.http.content_type == "text/html"]


def mutated(page: bytes, randomness: random.Random) -> bytes:
    """With some stretches cut out, repeated, moved or overwritten, and tokens of tag soup put in."""
    vocabulary = [*IMAGES, *HTML, *TEXTS, *TEMPLATES]
    for _ in range(randomness.randrange(1, 12)):
        begin = randomness.randrange(len(page))
        end = min(len(page), begin + randomness.choice([1, 5, 40, 400]))
        other = randomness.randrange(len(page))
        put_in = randomness.choice(
            [
                b"",
                page[begin:end],
                page[other : other + 60],
                randomness.choice(vocabulary).encode(),
                randomness.randbytes(3),
            ]
        )
        page = page[:begin] + put_in + page[end if randomness.random() < 0.5 else begin :]
    return page.decode(errors="replace").encode()


def test_images_of_the_handbooks_whole_and_mutated_are_those_of_the_parser():
    found, randomness = handbook_pages(), random.Random(7)
    assert len(found) == 254
    for page in found:
        assert_same(page)
        assert_same(mutated(page, randomness))


@pytest.mark.parametrize(
    ("page", "alts"),
    [
        ("<table><image alt=a>", ["a"]),  # the parser loses it
        ("<svg><title/><style/><script/><image alt=a></svg><img alt=b>", ["b"]),
        ("<script/><img alt=a></script><img alt=b>", ["b"]),
        ("<template>" * 200 + "<img alt=a>" + "</template>" * 200 + "<img alt=b>", ["b"]),
        ("<svg><g>" * 200 + "<image alt=a>" + "</g></svg>" * 200 + "<image alt=b>", ["b"]),
        ("</svg><svg></svg></svg><image alt=a>", ["a"]),
    ],
)
def test_images_of_odd_pages(page, alts):
    assert [image.alt for image in image_elements.images(page.encode(), PAGE_URL, None)] == alts


def test_base_of_svg_is_none():
    page = b"<svg><base href=//a/></svg><template><base href=//b/></template>"
    page += b"<base><base href=//c/><base href=//d/><img src=x>"
    assert [image.url for image in image_elements.images(page, PAGE_URL, None)] == ["http://c/x"]


# Pages of a number of repetitions.
REPEATED: dict[str, Callable[[int], bytes]] = {
    "nested div": lambda n: b"<div>" * n,
    "nested svg": lambda n: b"<svg>" * n,
    "nested templates": lambda n: b"<template>" * n,
    "attributes": lambda n: b"<img " + b" ".join(b"a%d" % number for number in range(n)) + b">",
    "attributes without spaces": lambda n: b"<img " + b'a="b"' * n + b">",
    "attributes of a tag that is no image": lambda n: b"<p " + b"a = b " * n + b">",
    "equals signs": lambda n: b"<p " + b" =" * n + b">",
    "spaces and an equals sign": lambda n: b"<p a" + b" " * n + b"= b" + b" " * n + b">",
    "a long attribute": lambda n: b'<img alt="' + b"x" * n + b'">',
    "an attribute never closed": lambda n: b'<img alt="' + b"x" * n,
    "a long name": lambda n: b"<" + b"x" * n,
    "names of end tags": lambda n: b"</x" * n,
    "comments never closed": lambda n: b"<!--" * n,
    "brackets in a comment": lambda n: b"<!--" + b">" * n,
    "dashes": lambda n: b"<!--" + b"-" * n,
    "declarations": lambda n: b"<!" * n,
    "CDATA in svg": lambda n: b"<svg>" + b"<![CDATA[" * n,
    "brackets in CDATA": lambda n: b"<svg><![CDATA[" + b"]]" * n,
    "scripts never closed": lambda n: b"<script>" * n,
    "scripts in a comment in a script": lambda n: b"<script><!--" + b"<script" * n,
    "letters in a comment in a script": lambda n: b"<script><!--" + b"<a" * n,
    "ends of no script": lambda n: b"<script>" + b"</scrip" * n,
    "titles": lambda n: b"<title></titl" * n,
    "NULs": lambda n: b"\0" * n,
    "open angle brackets": lambda n: b"<" * n,
    "slashes": lambda n: b"<img" + b"/" * n,
    "references": lambda n: b"&amp" * n,
    "images": lambda n: b"<img>" * n,
}


@pytest.mark.parametrize("name", REPEATED)
def test_steps_are_in_proportion_to_bytes(name):
    few, many = (REPEATED[name](n) for n in (300, 600))
    steps, twice = steps_of(few), steps_of(many)
    assert twice <= 2.2 * steps + 200
    assert twice <= 40 * len(many)


def steps_of(page: bytes) -> int:
    """Lines of the kernels that are executed, uncompiled."""
    steps = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        if frame.f_code.co_filename != html_kernels.__file__:
            return None
        steps += event == "line"
        return count

    with uncompiled(), np.errstate(over="ignore"):
        before = sys.gettrace()
        sys.settrace(count)
        try:
            html_kernels.find_images(np.frombuffer(page, np.uint8), name_table(), 1 << 24, 0)
        finally:
            sys.settrace(before)
    return steps


@contextmanager
def uncompiled() -> Iterator[None]:
    """Kernels as plain Python; an address is the array itself."""

    def equal64(page: np.ndarray, at: int, byte: np.uint8) -> int:
        return sum(1 << int(place) for place in np.flatnonzero(page[at : at + 64] == byte))

    plain: dict[str, Any] = {
        name: kernel.py_func for name, kernel in vars(html_kernels).items() if hasattr(kernel, "py_func")
    }
    plain |= {
        "address_of": lambda array: array,
        "load8": lambda page, at: int(page[at]),
        "equal64": equal64,
        "first_bit": lambda bits: (bits & -bits).bit_length() - 1,
    }
    plain["load_index"] = lambda array, at: array.view(np.int64).reshape(-1)[at]
    with pytest.MonkeyPatch.context() as patch:
        for name, function in plain.items():
            patch.setattr(html_kernels, name, function)
        yield


@settings(derandomize=True, deadline=None, max_examples=50)
@given(soup(IMAGES, HTML, TEXTS, FOREIGN))
def test_compiled_and_uncompiled_kernels_agree(page):
    text = np.frombuffer(page, np.uint8)
    compiled = html_kernels.find_images(text, name_table(), 5, 0)
    with uncompiled(), np.errstate(over="ignore"):
        plain = html_kernels.find_images(text, name_table(), 5, 0)
    assert [each if isinstance(each, int) else each.tolist() for each in compiled] == [
        each if isinstance(each, int) else each.tolist() for each in plain
    ]
