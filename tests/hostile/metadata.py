"""Metadata of web archives (WAT): JSON that is broken, endless, deep, or of other types than a WAT's."""

import json
from collections.abc import Mapping

from tests.hostile.cases import BROKEN, NONE, Case
from tests.hostile.files import Content, gzipped, host, link, made, metadata, metadata_of, wat

CAPTION = "a link in the metadata"


def _block(
    name: str, about: str, block: Content, *kept: str, dropped: Mapping[str, int] = BROKEN, error: str = ""
) -> Case:
    """A case that is the block of a metadata record."""
    build = lambda: wat(name, metadata_of(f"{host(name)}/page", made(block)))  # noqa: E731 - the case has it as a field
    return Case(name, about, "wat", ".warc.wat.gz", build, dropped, kept, error=error)


def _links(
    name: str,
    about: str,
    links: object,
    *kept: str,
    dropped: Mapping[str, int] = NONE,
    error: str = "",
    head: object = None,
) -> Case:
    """A case that is the `Links` of a page."""
    build = lambda: wat(name, metadata(f"{host(name)}/page", links, head=head))  # noqa: E731
    return Case(name, about, "wat", ".warc.wat.gz", build, dropped, kept, error=error)


def _of(**envelope: object) -> bytes:
    return json.dumps({"Envelope": envelope}).encode()


_GOOD = [link("it", CAPTION)]
_URL = {"WARC-Target-URI": "http://a.example/"}
_HTML = {"HTTP-Response-Metadata": {"HTML-Metadata": {"Links": _GOOD}}}

CASES = [
    _block(
        "json-cut",
        "JSON cut in two",
        lambda: _of(a=[1, 2, 3])[:-4],
        error="Expecting value: line 1 column 27 (char 26)",
    ),
    _block(
        "json-of-nothing", "A metadata record without a byte", b"", error="Expecting value: line 1 column 1 (char 0)"
    ),
    _block("json-no-object", "A list instead of an object", b"[1, 2, 3]", error="the metadata is no object"),
    _block(
        "json-nested-a-million-times", "A million nested lists", lambda: b"[" * 1_000_000, error="nested too deeply"
    ),
    _block(
        "json-nested-and-closed",
        "100,000 nested objects, all closed, inside an envelope",
        lambda: b'{"Envelope": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        error="nested too deeply",
    ),
    _block(
        "json-of-17-mb",
        "A metadata record of 17 MiB",
        lambda: b'{"Envelope": "' + b"x" * (17 << 20) + b'"}',
        error="longer than 16 MiB",
    ),
    _block("json-no-utf-8", "Bytes that are no UTF-8", b'{"Envelope": {"\xff\xfe": 1}}', dropped=NONE),
    _block(
        "json-of-fields",
        "A metadata record of WARC fields, as crawlers write of their own",
        b"fetchTimeMs: 100\r\ncharset: utf-8\r\n",
        error="Expecting value: line 1 column 1 (char 0)",
    ),
    _block(
        "json-of-nan",
        "`NaN` and `Infinity`, which are no JSON and are written all the same",
        lambda: _of(**{"Actual-Content-Length": float("nan"), "Payload-Metadata": _HTML, "WARC-Header-Metadata": _URL}),
        CAPTION,
        dropped=NONE,
    ),
    _block(
        "json-with-keys-twice",
        "Two `Envelope`: the last counts",
        lambda: _of(a=1)[:-1] + b", " + _of(**{"Payload-Metadata": _HTML, "WARC-Header-Metadata": _URL})[1:],
        CAPTION,
        dropped=NONE,
    ),
    _block("envelope-missing", "An object without an `Envelope`", b"{}", dropped=NONE),
    _block("envelope-null", "`Envelope: null`", b'{"Envelope": null}', dropped=NONE),
    _block("envelope-of-text", "`Envelope` is text", b'{"Envelope": "yes"}', error="Envelope is no object"),
    _block(
        "envelope-without-url",
        "Links, and no page that they are on",
        lambda: _of(**{"Payload-Metadata": _HTML}),
        error="no WARC-Target-URI",
    ),
    _block(
        "envelope-url-of-a-number",
        "The page's URL is a number",
        lambda: _of(**{"Payload-Metadata": _HTML, "WARC-Header-Metadata": {"WARC-Target-URI": 5}}),
        error="no WARC-Target-URI",
    ),
    _links("links-no-list", "`Links` is an object", {"a": 1}, dropped=BROKEN, error="Links is no list"),
    _links("links-of-text", "`Links` is text", "IMG@/src", dropped=BROKEN, error="Links is no list"),
    _links(
        "links-of-anything",
        "Links that are null, numbers and lists, and one that is good",
        [None, 5, [], "x", {}, {"path": 7}, {"path": ["IMG@/src"]}, *_GOOD],
        CAPTION,
    ),
    _links(
        "links-with-odd-values",
        "URLs and texts that are numbers, lists and null",
        [
            {"path": "IMG@/src", "url": 5, "alt": "the URL is a number"},
            {"path": "IMG@/src", "url": None, "alt": []},
            link("it", 7),
            *_GOOD,
        ],
        CAPTION,
        dropped={"alt_missing": 2, "url_invalid": 1},
    ),
    _links(
        "links-of-half-characters",
        "Half surrogate pairs in a text",
        [link("it", "half a \ud83d character here")],
        "half a \ufffd character here",
    ),
    _links(
        "links-ten-thousand",
        "10,000 links without a text",
        [{"path": "IMG@/src", "url": "x"}] * 10_000,
        dropped={"alt_missing": 10_000},
    ),
    _links("head-no-object", "`Head` is a list", _GOOD, dropped=BROKEN, error="Head is no object", head=[1]),
    _links("head-base-of-javascript", "A base of `javascript:`", _GOOD, CAPTION, head={"Base": "javascript:alert(1)"}),
    Case(
        "wat-of-junk",
        "A file of metadata that is none",
        "wat",
        ".warc.wat.gz",
        lambda: gzipped(b'{"Envelope": {}}\n' * 9),
        exit_code=1,
        error="no WARC record in it",
    ),
]
