"""Pages and bodies under attack: any bytes give images or one of the two errors that readers count."""

import gzip
import re
import zlib
from functools import cache
from pathlib import Path
from random import Random

import brotli

from altalign.demo import archive as demo_archive
from altalign.pipelines.read.pages import body, image_elements
from altalign.reasons import KEPT
from altalign.schema import EXTRACTED
from tests.fuzz.mutate import members_of, mutate
from tests.fuzz.target import MB, Target
from tests.pipelines.read.pages import archives

_EXAMPLE = Path(__file__).parents[2] / "examples" / "handbook" / "handbook-ja-JP.warc.gz"
_IMAGE = re.compile(rb"<ima?ge?", re.IGNORECASE)
_ELEMENTS = (
    *(
        "img",
        "image",
        "div",
        "p",
        "a",
        "b",
        "table",
        "tr",
        "td",
        "template",
        "noscript",
        "svg",
        "math",
        "mi",
        "annotation-xml",
        "foreignObject",
        "title",
        "base",
    ),
    *(
        "script",
        "style",
        "textarea",
        "select",
        "option",
        "frameset",
        "plaintext",
        "xmp",
        "iframe",
        "noembed",
        "body",
        "html",
        "head",
        "form",
        "button",
        "picture",
    ),
)
_TOKENS = (
    *(f"<{name}>".encode() for name in _ELEMENTS),
    *(f"</{name}>".encode() for name in _ELEMENTS),
    *(
        b'<img src="x.png" alt="y">',
        b"<img srcset='a 1x, b 2x' alt>",
        b"<img alt=a alt=b src=data:,x>",
        b'<base href="//b/">',
        b"<!--",
        b"-->",
        b"--!>",
        b"<!-->",
    ),
    *(
        b"<![CDATA[",
        b"]]>",
        b"<!doctype html>",
        b"<?",
        b"</",
        b"<",
        b">",
        b"/>",
        b'"',
        b"'",
        b"=",
        b"&amp;",
        b"&#x0;",
        b"&#1114112;",
        b"&notin",
        b"&",
        b"\0",
    ),
    *(
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"<meta charset=utf-16>",
        b"<meta charset=iso-2022-jp>",
        b"\x1b$B",
        b"\x1b(B",
        b"\r",
        b"\x0c",
    ),
    *(
        b"<meta charset=gb18030>",
        b"<script><!--<script>",
        b"</script>",
        b'<svg><desc><img src=s alt="t"></svg>',
        b"http://[",
        b"javascript:",
        b" data:,",
    ),
)
_PLAIN = b"""<!doctype html><html><head><base href="/b/"><meta charset="utf-8"><title>&lt;img&gt; <img></title><style>p > a {}</style>
<script>document.write("<img src=no alt=no>")</script></head><body><noscript><img src="1.png" alt="in a noscript"></noscript><template><img src=2></template>
<table><tr><td><img data-src="3.webp" alt='a &amp; b'><p>x<img srcset="4.gif 1x, 5.gif 2x" alt=plain></table>
<svg><image href=6/><title><img src=7 alt=seven></title>
</svg><a><b><i><p></a><img src="http://x.example/\xc3\xbc?q=1#f" alt="\xe7\x8a\xac &eacute;"></b><select><option><img src=8 alt=8></select>
<!-- <img src=9> --><textarea><img src=10></textarea><picture><source srcset=11><img src=' 12 ' alt="  "></picture><IMG SRC=13 ALT></body></html>"""  # noqa: E501


@cache
def _pages() -> tuple[bytes, ...]:
    """Our own page in some encodings, and pages of a book, cut."""
    found = [
        _PLAIN,
        *(
            _PLAIN.decode().encode(name, "xmlcharrefreplace")
            for name in ("utf-16", "shift_jis", "windows-1252", "iso2022_jp")
        ),
    ]
    for member in members_of(_EXAMPLE.read_bytes()[: 3 * MB]):
        page = zlib.decompress(member, 31).partition(b"\r\n\r\n")[2].partition(b"\r\n\r\n")
        if b"text/html" in page[0] and len(page[2]) < 40_000:
            found.append(page[2])
        if len(found) == 12:
            break
    return tuple(found)


def _make_page(rng: Random) -> tuple[bytes, bytes]:
    every = _pages()
    original = rng.choice(every)
    return original, mutate(original, rng, tokens=_TOKENS, others=every)


def _check_page(path: Path, _original: bytes) -> str:
    data = path.read_bytes()
    charset = [None, "utf-8", "utf-16le", "shift_jis", "x-user-defined", "nonsense"][len(data) % 6]
    found, error = _images(data, charset)
    assert (found, error) == _images(data, charset), "the same page, and other images"
    if error:
        return "PageError"
    rows = image_elements.verdicts([(image, "http://page.example/") for image in found])
    assert rows.schema == EXTRACTED
    rows.validate(full=True)
    assert rows.num_rows == len(found)
    assert all(image.url is None or image.url.startswith(("http://", "https://")) for image in found)
    for reason, failed in zip(rows["reason"].to_pylist(), rows["failed"].to_pylist(), strict=True):
        assert (reason or KEPT) == (failed[0] if failed else KEPT)
    return "images" if found else "no image"


def _images(data: bytes, charset: str | None) -> tuple[list[image_elements.ImageElement], str]:
    try:
        return list(image_elements.images(data, "http://a.example/dir/page", charset)), ""
    except image_elements.PageError as error:
        return [], str(error)


@cache
def _bodies() -> tuple[tuple[bytes, str, str], ...]:
    squeeze = zlib.compressobj(wbits=-15)
    return (
        (gzip.compress(_PLAIN * 3, mtime=0), "", "gzip"),
        (zlib.compress(_PLAIN), "", "deflate"),
        (squeeze.compress(_PLAIN) + squeeze.flush(), "", "deflate"),
        (brotli.compress(_PLAIN * 2), "", "br"),
        (archives.zstd(_PLAIN * 5), "", "zstd"),
        (demo_archive.chunked(_PLAIN, 300), "chunked", ""),
        (demo_archive.chunked(brotli.compress(gzip.compress(_PLAIN, mtime=0)), 90), "chunked", "gzip, br"),
        (gzip.compress(bytes(8 * MB), mtime=0), "", "gzip"),
        (brotli.compress(bytes(8 * MB)), "", "br"),
        (archives.zstd(bytes(8 * MB)), "", "zstd"),
    )


def _make_body(rng: Random) -> tuple[bytes, bytes]:
    """The first byte tells how the rest is encoded."""
    number = rng.randrange(len(_bodies()))
    original = _bodies()[number][0]
    others = [each[0] for each in _bodies()]
    return bytes([number]) + original, bytes([number]) + mutate(
        original, rng, tokens=(b"\r\n", b"0\r\n", b"ffffffff\r\n", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"), others=others
    )


def _check_body(path: Path, _original: bytes) -> str:
    data = path.read_bytes()
    _, transfer_encoding, content_encoding = _bodies()[data[0] % len(_bodies())]
    outcomes = []
    for limit in (1_000, MB, 1_000):
        try:
            found = body.decoded(
                data[1:], transfer_encoding=transfer_encoding, content_encoding=content_encoding, bytes_at_most=limit
            )
        except body.BodyError as error:
            found = str(error).encode()
            outcomes.append((b"BodyError", found))
            continue
        assert len(found) <= limit + 1, f"{len(found)} bytes, where {limit} + 1 are allowed"
        outcomes.append((b"decoded", found))
    assert outcomes[0] == outcomes[2], "the same body, and something else came out"
    return outcomes[1][0].decode()


TARGETS = {
    "page": Target(".html", _make_page, _check_page),
    "body": Target(".body", _make_body, _check_body, memory=64 * MB),
}
