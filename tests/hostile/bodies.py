"""HTTP responses whose heads are endless or lie, and bodies that are not encoded as they say."""

import zlib
from collections.abc import Mapping

import brotli

from tests.hostile.cases import BROKEN, NONE, Case
from tests.hostile.files import Content, good_image, gzip_bomb, gzipped, host, made, picture, warc
from tests.hostile.pages import CAPTION, SHOWN, page
from tests.pipelines.read.pages.archives import record, response, zstd

LONG = "a page of more than 16 MiB"
GZIP = "Content-Encoding: gzip\r\n"


def head(name: str, about: str, block: Content, *kept: str, dropped: Mapping[str, int] = NONE, error: str = "") -> Case:
    """A case that is a whole block of a response, its HTTP head too."""

    def build() -> bytes:
        return warc(name, gzipped(record(f"{host(name)}/page", made(block))), good_image(name))

    return Case(name, about, "warc", ".warc.gz", build, dropped, kept, error=error)


def _other(
    name: str,
    about: str,
    body: bytes,
    kind: str,
    dropped: Mapping[str, int] = NONE,
    *kept: str,
    status: str = "200 OK",
    more: str = "",
) -> Case:
    """A case that is the response of an image, which a good page shows."""

    def build() -> bytes:
        shows = gzipped(response(f"{host(name)}/page", SHOWN))
        return warc(name, shows, gzipped(response(f"{host(name)}/it.png", body, kind, status=status, headers=more)))

    return Case(name, about, "warc", ".warc.gz", build, dropped, kept)


_HEADS = [
    head(
        "http-header-of-10-mb",
        "An HTTP header of 10 MB",
        lambda: b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-Junk: " + b"x" * 10_000_000 + b"\r\n\r\n" + SHOWN,
        dropped=BROKEN,
        error="Maximum header length exceeded.",
    ),
    head(
        "http-headers-a-hundred-thousand",
        "100,000 HTTP headers",
        lambda: b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n" + b"X: y\r\n" * 100_000 + b"\r\n" + SHOWN,
        dropped=BROKEN,
        error="Maximum header length exceeded.",
    ),
    head(
        "http-head-without-end",
        "An HTTP head without an empty line behind it",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-More: " + SHOWN,
    ),
    head("http-head-of-nothing", "A response without a byte", b"", dropped=BROKEN, error="no HTTP status line"),
    head(
        "http-status-missing",
        "A response that begins with its headers",
        b"Content-Type: text/html\r\n\r\n" + SHOWN,
        dropped=BROKEN,
        error="no HTTP status line",
    ),
    head(
        "http-status-in-words",
        "A status that is no number",
        b"HTTP/1.1 two hundred\r\nContent-Type: text/html\r\n\r\n" + SHOWN,
        dropped=BROKEN,
        error="no HTTP status line",
    ),
    head(
        "http-status-beyond-count",
        "A status of 30 digits",
        b"HTTP/1.1 " + b"2" * 30 + b" OK\r\nContent-Type: text/html\r\n\r\n" + SHOWN,
        dropped=BROKEN,
        error="no HTTP status line",
    ),
    head("http-0-9", "A body without any head, as HTTP/0.9 has it", SHOWN, dropped=BROKEN, error="no HTTP status line"),
    head(
        "http-lines-of-lf",
        "Lines that end in LF alone",
        b"HTTP/1.1 200 OK\nContent-Type: text/html\n\n" + SHOWN,
        CAPTION,
    ),
    head(
        "http-head-of-nul",
        "NUL and bytes above 127 in names and values",
        b"HTTP/1.1 200 OK\r\nX\0\xff: \0\xfe\r\nContent-Type: text/html\r\n\r\n" + SHOWN,
        CAPTION,
    ),
    head(
        "http-length-lies",
        "An HTTP `Content-Length` of minus one and one of 10^30: the record's counts",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: -1\r\nContent-Length: 1"
        + b"0" * 30
        + b"\r\n\r\n"
        + SHOWN,
        CAPTION,
    ),
]

_ENCODINGS = [
    page("gzip-that-is-plain", "Says gzip and is plain", SHOWN, CAPTION, more=GZIP),
    page(
        "gzip-cut",
        "A gzip body that is cut: as long as it is",
        lambda: gzipped(SHOWN + bytes(range(256)) * 99)[:400],
        CAPTION,
        more=GZIP,
    ),
    page(
        "gzip-with-a-wrong-checksum",
        "A gzip body whose checksum is wrong",
        lambda: gzipped(SHOWN)[:-8] + b"\0" * 8,
        dropped=BROKEN,
        error="broken content encoding: …",
        more=GZIP,
    ),
    page(
        "gzip-damaged",
        "A gzip body whose blocks are damaged",
        lambda: gzipped(SHOWN)[:10] + b"\xff" * 40,
        dropped=BROKEN,
        error="broken content encoding: …",
        more=GZIP,
    ),
    page(
        "gzip-twice",
        "Encoded twice, and says so",
        lambda: gzipped(gzipped(SHOWN)),
        CAPTION,
        more="Content-Encoding: gzip, gzip\r\n",
    ),
    page(
        "gzip-twice-said-once",
        "Encoded twice, and says it once: no page is in it",
        lambda: gzipped(gzipped(SHOWN)),
        more=GZIP,
    ),
    page(
        "gzip-bomb-in-a-body",
        "256 MB of NUL in a gzip body of 250 kB",
        lambda: gzip_bomb(SHOWN, 256),
        dropped=BROKEN,
        error=LONG,
        more=GZIP,
    ),
    page(
        "gzip-a-hundred-times",
        "A hundred encodings named, of a plain page",
        SHOWN,
        CAPTION,
        more="Content-Encoding: " + "gzip, " * 99 + "gzip\r\n",
    ),
    page(
        "deflate-bomb",
        "128 MB of NUL in a deflate body",
        lambda: zlib.compress(SHOWN + bytes(128 << 20), 1),
        dropped=BROKEN,
        error=LONG,
        more="Content-Encoding: deflate\r\n",
    ),
    page(
        "brotli-bomb",
        "128 MB of NUL in a brotli body of 150 bytes",
        lambda: brotli.compress(SHOWN + bytes(128 << 20), quality=1),
        dropped=BROKEN,
        error=LONG,
        more="Content-Encoding: br\r\n",
    ),
    page(
        "brotli-broken",
        "A brotli body that is damaged",
        lambda: brotli.compress(SHOWN * 9)[:20] + b"\xff" * 60,
        dropped=BROKEN,
        error="broken content encoding: …",
        more="Content-Encoding: br\r\n",
    ),
    page("brotli-that-is-plain", "Says br and is plain", SHOWN, CAPTION, more="Content-Encoding: br\r\n"),
    page(
        "zstd-bomb",
        "128 MB of NUL in a zstd body",
        lambda: zstd(SHOWN + bytes(128 << 20)),
        dropped=BROKEN,
        error=LONG,
        more="Content-Encoding: zstd\r\n",
    ),
    page(
        "zstd-damaged",
        "A zstd body that is damaged",
        lambda: zstd(SHOWN)[:12] + b"\xff" * 60,
        dropped=BROKEN,
        error="broken content encoding: …",
        more="Content-Encoding: zstd\r\n",
    ),
    page(
        "encoding-unknown",
        "An encoding that nobody knows: the body as it is",
        SHOWN,
        CAPTION,
        more="Content-Encoding: exi, pack200-gzip\r\n",
    ),
    page("chunks-that-are-none", "Says chunked and is not", SHOWN, CAPTION, more="Transfer-Encoding: chunked\r\n"),
    page(
        "chunks-broken",
        "A second chunk without a length",
        b"%x\r\n%s\r\nzz\r\n" % (len(SHOWN), SHOWN),
        dropped=BROKEN,
        error="broken chunk at byte … of the body",
        more="Transfer-Encoding: chunked\r\n",
    ),
    page(
        "chunk-beyond-its-end",
        "A chunk of 2^60 bytes, and an end before",
        b"fffffffffffffff\r\n" + SHOWN,
        CAPTION,
        more="Transfer-Encoding: chunked\r\n",
    ),
    page(
        "chunk-of-a-huge-number",
        "A chunk length of 10,000 digits: no chunks",
        b"f" * 10_000 + b"\r\n" + SHOWN,
        CAPTION,
        more="Transfer-Encoding: chunked\r\n",
    ),
    page(
        "chunks-of-one-byte",
        "100,000 chunks of one byte",
        lambda: b"".join(b"1\r\n%c\r\n" % byte for byte in SHOWN + b" " * 100_000) + b"0\r\n\r\n",
        CAPTION,
        more="Transfer-Encoding: chunked\r\n",
    ),
]

_KINDS = [
    _other("png-that-is-a-page", "An image's URL shows a page", SHOWN, "image/png", {"image_undecodable": 1}),
    _other("page-that-is-a-png", "An image with the content type of a page", picture(70), "text/html", NONE, CAPTION),
    _other(
        "image-not-found",
        "An image's URL with status 404",
        picture(70),
        "image/png",
        {"not_in_archive": 1},
        status="404 Not Found",
    ),
    _other(
        "image-moved",
        "An image's URL with status 302",
        b"",
        "image/png",
        {"not_in_archive": 1},
        status="302 Found",
        more="Location: /else.png\r\n",
    ),
    _other("image-of-nothing", "An image without a byte", b"", "image/png", {"image_undecodable": 1}),
    _other(
        "image-whose-gzip-is-damaged",
        "An image in a gzip body that is damaged",
        gzipped(picture(70))[:30] + b"\xff" * 9,
        "image/png",
        {"image_undecodable": 1},
        more=GZIP,
    ),
]

CASES = [*_HEADS, *_ENCODINGS, *_KINDS]
