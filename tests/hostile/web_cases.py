"""Pages, responses, web archives and their metadata that are broken or lie."""

import json
from collections.abc import Callable, Mapping

import brotli

from tests.hostile.cases import BROKEN, NONE, Case
from tests.hostile.files import (
    gzipped,
    host,
    jsonl,
    link,
    metadata,
    metadata_of,
    picture,
    row,
    warc,
    wat,
)
from tests.support.archives import record, response, zstd

SHOWN = b"<img src=it.png alt='a picture on a bad page'>"
CAPTION = "a picture on a bad page"
LONG = "a page of more than 16 MiB"
GZIP = "Gzip decompression error: data error"
NO_RECORD = "Invalid WARC header"
ONCE = "{} headers Content-Length and {} WARC-Type, where one of each is meant"
BEYOND = "the record ends before its Content-Length does"
PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + SHOWN
XHTML = "application/xhtml+xml"


def page(
    about: str,
    html: bytes,
    *kept: str,
    dropped: Mapping[str, int] = NONE,
    error: str = "",
    header: str = "text/html",
    more: str = "",
) -> Case:
    """A case that is a page; `it.png` is a good image."""
    return archive(
        about,
        lambda url: gzipped(response(f"{url}/page", html, header, headers=more)) + good(url),
        *kept,
        dropped=dropped,
        error=error,
    )


def archive(
    about: str,
    hostile: Callable[[str], bytes],
    *kept: str,
    dropped: Mapping[str, int] = NONE,
    error: str = "",
    pack: Callable[[bytes], bytes] = gzipped,
    suffix: str = ".warc.gz",
    after: bool = True,
) -> Case:
    """A case of any bytes between the neighbours; `hostile` has the host of its pages."""

    def build(name: str) -> bytes:
        return warc(name, hostile(host(name)), pack=pack, has_after=after)

    return Case(about, "warc", suffix, build, dropped, kept, error=error, after=after)


def no_archive(about: str, data: bytes) -> Case:
    """A file in which is no record."""
    return Case(about, "warc", ".warc.gz", lambda _: data, exit_code=1, error="no WARC record in it")


def block(about: str, data: bytes, *kept: str, dropped: Mapping[str, int] = BROKEN, error: str = "") -> Case:
    """A case that is the block of a metadata record."""
    build = lambda name: wat(name, metadata_of(f"{host(name)}/page", data))  # noqa: E731 - the case has it as a field
    return Case(about, "wat", ".warc.wat.gz", build, dropped, kept, error=error)


def address(about: str, source: bytes, reason: str = "", *, at: str = "") -> Case:
    """A case that is the `src` of an image on a page; a good image is `at` the URL that it should become."""

    def build(name: str) -> bytes:
        shows = response(f"{host(name)}/page", b"<img alt='a picture at an odd address' src='" + source + b"'>")
        image = response(at or f"{host(name)}/unused.png", picture(90), "image/png")
        return warc(name, gzipped(shows), gzipped(image))

    return Case(
        about, "warc", ".warc.gz", build, {reason: 1} if reason else {}, ("a picture at an odd address",) * bool(at)
    )


def caption(about: str, text: str, *kept: str, dropped: Mapping[str, int] = NONE) -> Case:
    """A case that is the caption of a row with a good image."""
    return Case(about, "table", ".jsonl", lambda name: jsonl(name, row(text)), dropped, kept)


def bare(data: bytes) -> bytes:
    """No compression."""
    return data


def good(url: str) -> bytes:
    """The record of `it.png`, which hostile pages show."""
    return gzipped(response(f"{url}/it.png", picture(90), "image/png"))


def _page(url: str) -> bytes:
    return response(f"{url}/page", SHOWN)


def _headed(url: str, lines: str) -> bytes:
    """A response record with these lines instead of a Content-Length."""
    target = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {url}/page\r\n"
    return f"{target}Content-Type: application/http\r\n{lines}\r\n".encode() + PAGE + b"\r\n\r\n"


def _envelope(**envelope: object) -> bytes:
    return json.dumps({"Envelope": envelope}).encode()


PAGES = [
    page("an alt of 17 MiB", b"<img src=it.png alt='" + b"a" * (17 << 20) + b"'>", dropped=BROKEN, error=LONG),
    page("an alt of 5 MB", b"<img src=it.png alt='" + b"word " * 1_000_000 + b"'>", dropped={"text_too_large": 1}),
    page("elements nested 200 deep", b"<svg><g>" * 200 + SHOWN, CAPTION),
    page("a page that ends inside an alt", SHOWN + b"<img src=it.png alt='the page ends here", CAPTION),
    page("NUL in text and in a tag", b"\0" * 99 + b"<img src=it.png alt='a text \0 in it'>", "a text \ufffd in it"),
    page("base href that no parser takes", b"<base href='http://[::1'>" + SHOWN, CAPTION),
    page("an srcset of commas", b"<img srcset='" + b", " * 9_000 + b"' alt='of nothing'>", dropped={"url_invalid": 1}),
    page("image by its other name", b"<image src=it.png alt='a picture by another name'>", "a picture by another name"),
    page("XHTML not well-formed", b"<?xml version='1.0'?><html><p>" + SHOWN + b"</q>", CAPTION, header=XHTML),
    page(
        "XHTML with an entity of its own",
        b"<!DOCTYPE html [<!ENTITY a 'x'>]><html xmlns='http://www.w3.org/1999/xhtml'>" + SHOWN + b"</html>",
        CAPTION,
        header=XHTML,
    ),
    page(
        "UTF-16 that says UTF-8",
        "\ufeff<meta charset=utf-8><img src=it.png alt='Grüße aus dem Süden'>".encode("utf-16-le"),
        "Grüße aus dem Süden",
        header="text/html; charset=utf-8",
    ),
    page(
        "a header that lies about UTF-8",
        "<img src=it.png alt='une forêt très verte'>".encode("latin-1"),
        "une for\ufffdt tr\ufffds verte",
        header="text/html; charset=utf-8",
    ),
    page("a charset of 10 kB", SHOWN, CAPTION, header="text/html; charset=" + "x" * 10_000),
    page("references to references", b"<img src=it.png alt='a &amp;lt;b&amp;gt; here'>", "a &lt;b&gt; here"),
    page(
        "references out of range",
        b"<img src=it.png alt='a &#0; b &#99999999999; c &#xD800; d &copy'>",
        "a \ufffd b \ufffd c \ufffd d \u00a9",
    ),
]

RESPONSES = [
    page("says gzip and is plain", SHOWN, CAPTION, more="Content-Encoding: gzip\r\n"),
    page(
        "a gzip body of a wrong checksum",
        gzipped(SHOWN)[:-8] + b"\0" * 8,
        dropped=BROKEN,
        error="broken content encoding: …",
        more="Content-Encoding: gzip\r\n",
    ),
    page(
        "a brotli body of 20 MB",
        brotli.compress(SHOWN + bytes(20 << 20), quality=1),
        dropped=BROKEN,
        error=LONG,
        more="Content-Encoding: br\r\n",
    ),
    page("an encoding named 99 times", SHOWN, CAPTION, more="Content-Encoding: " + "gzip, " * 98 + "gzip\r\n"),
    page("says chunked and is not", SHOWN, CAPTION, more="Transfer-Encoding: chunked\r\n"),
    page(
        "a second chunk without a length",
        b"%x\r\n%s\r\nzz\r\n" % (len(SHOWN), SHOWN),
        dropped=BROKEN,
        error="broken chunk at byte … of the body",
        more="Transfer-Encoding: chunked\r\n",
    ),
    archive(
        "a response without a status",
        lambda url: gzipped(record(f"{url}/page", b"Content-Type: text/html\r\n\r\n" + SHOWN)),
        dropped=BROKEN,
        error="no HTTP status line",
    ),
    archive(
        "a page at the URL of an image",
        lambda url: gzipped(_page(url)) + gzipped(response(f"{url}/it.png", SHOWN, "image/png")),
        dropped={"image_undecodable": 1},
    ),
    archive(
        "an image of no bytes",
        lambda url: gzipped(_page(url)) + gzipped(response(f"{url}/it.png", b"", "image/png")),
        dropped={"image_undecodable": 1},
    ),
]

ARCHIVES = [
    archive("a gzip member cut in two", lambda url: gzipped(_page(url))[:60], dropped=BROKEN, error=GZIP),
    archive(
        "a gzip member of a wrong checksum",
        lambda url: gzipped(_page(url))[:-8] + b"\0" * 4 + gzipped(_page(url))[-4:],
        dropped=BROKEN,
        error=GZIP,
    ),
    archive(
        "gzip members of nothing",
        lambda url: gzipped(b"") * 3 + gzipped(_page(url)) + gzipped(b"\r\n" * 99) + good(url),
        CAPTION,
    ),
    archive(
        "two records in a member",
        lambda url: gzipped(_page(url) + response(f"{url}/it.png", picture(90), "image/png")),
        CAPTION,
    ),
    archive(
        "20 MB of NUL as a page",
        lambda url: gzipped(response(f"{url}/page", SHOWN + bytes(20 << 20))),
        dropped=BROKEN,
        error=LONG,
    ),
    archive("junk between members", lambda _: b"\x17junk that is no record\xfe" * 40, dropped=BROKEN, error=GZIP),
    archive("beginnings of gzip members", lambda _: b"\x1f\x8b\x08\0" * 1_000, dropped=BROKEN, error=GZIP),
    archive(
        "an archive that ends in a member", lambda url: gzipped(_page(url))[:80], dropped=BROKEN, error="…", after=False
    ),
    archive(
        "a zstd frame cut in two",
        lambda url: zstd(_page(url))[:60],
        dropped=BROKEN,
        error="…; what is behind it is not read, for the archive has no gzip members",
        after=False,
        pack=zstd,
        suffix=".warc.zst",
    ),
    archive("no Content-Length", lambda url: gzipped(_headed(url, "")), dropped=BROKEN, error=ONCE.format(0, 1)),
    archive(
        "a Content-Length below zero",
        lambda url: gzipped(_headed(url, "Content-Length: -1\r\n")),
        dropped=BROKEN,
        error="Content-Length is no number of bytes",
    ),
    archive(
        "500 Content-Lengths of 10^15",
        lambda url: gzipped(_headed(url, f"Content-Length: {10**15}\r\n")) * 500,
        dropped={"record_broken": 500},
        error=BEYOND,
    ),
    archive(
        "a Content-Length too large by one record",
        lambda url: gzipped(_headed(url, "Content-Length: 300\r\n")),
        dropped=BROKEN,
        error=BEYOND,
    ),
    archive(
        "a Content-Length inside a URL",
        lambda url: gzipped(record(f"{url}/page\r\nContent-Length: 7\r\nWARC-Type: metadata", _page(url))),
        dropped=BROKEN,
        error=ONCE.format(2, 2),
    ),
    archive(
        "a record that ends in its head",
        lambda _: gzipped(b"WARC/1.0\r\nWARC-Type: resp"),
        dropped=BROKEN,
        error="the file breaks off in a record",
    ),
    archive(
        "a version that is no number",
        lambda url: gzipped(_page(url).replace(b"WARC/1.0", b"WARC/x.y")),
        dropped=BROKEN,
        error=NO_RECORD,
    ),
    archive(
        "a response without a URL", lambda _: gzipped(response(None, SHOWN)), dropped=BROKEN, error="no WARC-Target-URI"
    ),
    archive(
        "two captures of which the first is cut",
        lambda url: gzipped(_page(url)) + gzipped(response(f"{url}/it.png", picture(90)[:60], "image/png")) + good(url),
        dropped={"image_damaged": 1},
    ),
    no_archive("a page called warc", b"<!DOCTYPE html>" + SHOWN * 99),
    no_archive("an archive cut in its first record", gzipped(_page("http://a.example"))[:50]),
]

METADATA = [
    block("JSON cut in two", _envelope(a=[1, 2, 3])[:-4], error="Expecting value: line 1 column 27 (char 26)"),
    block("JSON nested 100,000 deep", b"[" * 100_000, error="nested too deeply"),
    block("JSON of 17 MiB", b'{"Envelope": "' + b"x" * (17 << 20) + b'"}', error="longer than 16 MiB"),
    block("an envelope that is text", b'{"Envelope": "yes"}', error="a part of the metadata is no object"),
    Case(
        "links with odd values",
        "wat",
        ".warc.wat.gz",
        lambda name: wat(
            name,
            metadata(
                f"{host(name)}/page",
                [
                    {"path": "IMG@/src", "url": 5, "alt": "the URL is a number"},
                    *({"path": "IMG@/src", "url": None, "alt": []}, 7, None, {"path": ["IMG@/src"]}),
                    link("it", "half a \ud83d character here"),
                ],
            ),
        ),
        {"alt_missing": 1, "url_invalid": 1},
        ("half a \ufffd character here",),
    ),
]

TEXTS = [
    caption(
        "escape sequences of a terminal",
        "a cat \x1b[2J\x1b]0;owned\x07 and a dog",
        "a cat [2J]0;owned and a dog",
    ),
    caption("letters turned round", "a cat \u202egnp.exe\u202c and a dog", "a cat \u202egnp.exe\u202c and a dog"),
    caption("every kind of line break", "a cat\r\n\x0b\x0c\x85\u2028\u2029and a dog", "a cat and a dog"),
    caption("words of no width", "\u200b\u200c\u200d\ufeff\u2060", dropped={"text_too_short": 1}),
    caption("a million accents on a letter", "one e" + "\u0301" * 1_000_000, dropped={"text_too_large": 1}),
    address("a data URL of 5 MB", b"data:image/png;base64," + b"A" * 5_000_000, "url_invalid"),
    address("a URL of 100 kB", b"/" + b"p" * 100_000, "url_too_long"),
    address("an IPv6 address that is none", b"http://[::1/it.png", "url_invalid"),
    address("an address in hexadecimal", b"http://0x7f.1/it.png", at="http://127.0.0.1/it.png"),
    address("a host in Cyrillic", "http://пример.example/it.png".encode(), at="http://xn--e1afmkfd.example/it.png"),
    address("control characters in a URL", b"http://c.example/i\x01t\x7f.png", at="http://c.example/i%01t%7F.png"),
]
