"""Captions and URLs of pages that are made to hurt whoever shows, compares or stores them."""

from collections.abc import Mapping

from tests.hostile.cases import NONE, Case
from tests.hostile.files import Content, gzipped, host, jsonl, made, picture, row, warc
from tests.hostile.pages import page
from tests.pipelines.read.pages.archives import response


def _caption(name: str, about: str, caption: str, *kept: str, dropped: Mapping[str, int] = NONE) -> Case:
    """A case that is the caption of a row with a good image."""
    return Case(name, about, "table", ".jsonl", lambda: jsonl(name, row(caption)), dropped, kept)


def _url(name: str, about: str, src: Content, *, at: str = "", dropped: Mapping[str, int] = NONE) -> Case:
    """A case that is the `src` of an image on a page; a good image is `at` the URL that it should become."""
    caption = "a picture at an odd address"

    def build() -> bytes:
        shows = gzipped(
            response(f"{host(name)}/page", b"<img alt='" + caption.encode() + b"' src='" + made(src) + b"'>")
        )
        return warc(name, shows, gzipped(response(at or f"{host(name)}/unused.png", picture(90), "image/png")))

    return Case(name, about, "warc", ".warc.gz", build, dropped, (caption,) if at else ())


INVALID: Mapping[str, int] = {"url_invalid": 1}

_CAPTIONS = [
    _caption(
        "escape-sequences",
        "Sequences that clear a terminal and rename its window: control characters go",
        "a cat \x1b[2J\x1b]0;owned\x07 and a dog",
        "a cat [2J]0;owned and a dog",
    ),
    _caption(
        "right-to-left",
        "Overrides that turn the order of letters round",
        "a cat \u202egnp.exe\u202c and a dog",
        "a cat \u202egnp.exe\u202c and a dog",
    ),
    _caption(
        "line-breaks",
        "Every kind of line break is one space",
        "a cat\r\n\x0b\x0c\x85\u2028\u2029and a dog",
        "a cat and a dog",
    ),
    _caption(
        "a-million-marks",
        "A million accents on one letter",
        "one e" + "\u0301" * 1_000_000 + " here",
        dropped={"text_too_large": 1},
    ),
    _caption(
        "nothing-to-see",
        "Zero-width characters alone: a caption without words",
        "\u200b\u200c\u200d\ufeff\u2060",
        dropped={"text_too_short": 1},
    ),
    _caption("white-space-alone", "White space of every kind", " \t\u00a0\u2003\u3000\n", dropped={"text_empty": 1}),
    _caption(
        "control-characters-alone", "Control characters alone", "\x00\x01\x02\x1b\x7f\x9f", dropped={"text_empty": 1}
    ),
    _caption("a-million-words", "A million words", "cat " * 1_000_000, dropped={"text_too_large": 1}),
    _caption("one-word-of-5-mb", "One word of 5 MB", "a cat " + "x" * 5_000_000, dropped={"text_too_large": 1}),
    _caption(
        "noncharacters",
        "Code points that are no characters, and private ones",
        "a \ufffe cat \U0010ffff and \ue000 dog",
        "a \ufffe cat \U0010ffff and \ue000 dog",
    ),
    _caption(
        "letters-that-grow",
        "Letters that become three when normalised",
        "\u1d160 the clef \U0001d160 here",
        "\u1d160 the clef \U0001d158\U0001d165\U0001d16e here",
    ),
    _caption(
        "digits-of-every-script", "Digits of four scripts are words", "1 \u0661 \u0967 \uff11", "1 \u0661 \u0967 \uff11"
    ),
    _caption(
        "markup-in-a-caption",
        "Markup in a table's caption is text",
        "<script>alert(1)</script> & <b>bold</b>",
        "<script>alert(1)</script> & <b>bold</b>",
    ),
    page(
        "references-in-a-caption",
        "Character references that are huge, of NUL, and without an end",
        b"<img src=it.png alt='a &#0; b &#99999999999; c &#xD800; d &amp d &copy'>",
        "a \ufffd b \ufffd c \ufffd d & d \u00a9",
    ),
    page(
        "references-twice",
        "References to references are decoded once",
        b"<img src=it.png alt='a &amp;lt;b&amp;gt; here'>",
        "a &lt;b&gt; here",
    ),
    page(
        "caption-like-json",
        "Quotes, braces and backslashes",
        b'<img src=it.png alt=\'{"a": "\\u0000\\n"} it is\'>',
        '{"a": "\\u0000\\n"} it is',
    ),
]

_URLS = [
    _url("url-of-javascript", "`javascript:`", b"javascript:alert(1)", dropped=INVALID),
    _url(
        "url-of-data",
        "`data:`, which is passed over: nothing else is there",
        b"data:image/png;base64,AAAA",
        dropped=INVALID,
    ),
    _url(
        "url-of-data-of-5-mb", "`data:` of 5 MB", lambda: b"data:image/png;base64," + b"A" * 5_000_000, dropped=INVALID
    ),
    _url("url-of-a-file", "`file:`", b"file:///etc/passwd", dropped=INVALID),
    _url("url-of-gopher", "`gopher:`, `ftp:` and the like", b"gopher://a.example/it.png", dropped=INVALID),
    _url("url-of-blob", "`blob:` of an http URL", b"blob:http://a.example/it.png", dropped=INVALID),
    _url(
        "url-of-a-unicode-host",
        "A host in Cyrillic is the same as its Punycode",
        "http://\u043f\u0440\u0438\u043c\u0435\u0440.example/it.png".encode(),
        at="http://xn--e1afmkfd.example/it.png",
    ),
    _url(
        "url-of-a-host-too-long",
        "A host of 10,000 letters, which a URL may have and no server has",
        lambda: b"http://" + b"h" * 10_000 + b"/it.png",
        dropped={"url_too_long": 1},
    ),
    _url(
        "url-of-a-soft-hyphen",
        "A host of a soft hyphen, of which nothing is left",
        "http://\u00ad/it.png".encode(),
        dropped=INVALID,
    ),
    _url(
        "url-with-a-password",
        "A name and a password",
        b"http://me:secret@pass.example/it.png",
        at="http://me:secret@pass.example/it.png",
    ),
    _url(
        "url-of-backslashes",
        "Backslashes, which are slashes to browsers",
        b"http:\\\\slash.example\\it.png",
        at="http://slash.example/it.png",
    ),
    _url(
        "url-without-slashes",
        "`http:` without slashes, relative to a page of `http:`",
        b"http:it.png",
        at="http://url-without-slashes.example/it.png",
    ),
    _url(
        "url-of-bad-percents",
        "`%` without digits behind it stays",
        b"%zz%.png",
        at="http://url-of-bad-percents.example/%zz%.png",
    ),
    _url(
        "url-with-line-breaks",
        "Line breaks and tabs inside a URL go",
        b"it\r\n\t.png",
        at="http://url-with-line-breaks.example/it.png",
    ),
    _url(
        "url-with-control-characters",
        "Control characters and NUL inside a URL",
        b"i\x01t\x7f.png",
        at="http://url-with-control-characters.example/i%01t%7F.png",
    ),
    _url(
        "url-upwards", "More `..` than there are folders", b"../../../../it.png", at="http://url-upwards.example/it.png"
    ),
    _url("url-of-a-bad-port", "A port above 65,535", b"http://a.example:99999/it.png", dropped=INVALID),
    _url("url-of-a-bad-address", "An IPv6 address that is none, and no host", b"http://[::1/it.png", dropped=INVALID),
    _url(
        "url-of-odd-numbers",
        "An IPv4 address in octal and hexadecimal is the same as in decimal",
        b"http://0x7f.1/it.png",
        at="http://127.0.0.1/it.png",
    ),
    _url("url-without-a-host", "No host", b"http:///", dropped=INVALID),
    _url("url-of-100-kb-on-a-page", "A URL of 100 kB", lambda: b"/" + b"p" * 100_000, dropped={"url_too_long": 1}),
    _url(
        "url-of-any-bytes",
        "Bytes that mean nothing in the page's charset",
        b"i\xff\xfet.png",
        dropped={"not_in_archive": 1},
    ),
    _url("url-of-spaces", "Nothing but spaces", b"   ", dropped=INVALID),
]

CASES = [*_CAPTIONS, *_URLS]
