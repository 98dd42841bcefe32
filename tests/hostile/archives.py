"""Web archives with broken members, lying lengths, and records that are none."""

from collections.abc import Callable, Mapping

from tests.hostile.cases import BROKEN, NONE, Case
from tests.hostile.files import Content, good_image, gzipped, host, made, picture, record_bomb, warc
from tests.hostile.pages import CAPTION, SHOWN
from tests.pipelines.read.pages.archives import record, response, zstd

GZIP = "Gzip decompression error: data error"
NO_RECORD = "Invalid WARC header"
NO_NUMBER = "Content-Length is no number of bytes"
ONCE = "{} headers Content-Length and {} WARC-Type, where one of each is meant"
BEYOND = "Content-Length goes beyond the end of its compressed member"
PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + SHOWN
JUNK = b"\x17junk that is no record\xfe" * 40


def _case(
    name: str,
    about: str,
    hostile: Callable[[str], Content],
    *kept: str,
    dropped: Mapping[str, int] = NONE,
    error: str = "",
    pack: Callable[[bytes], bytes] = gzipped,
    after: bool = True,
    has_after: bool = True,
    suffix: str = ".warc.gz",
) -> Case:
    """A case of any bytes between the neighbours; `hostile` gets the host of its pages."""
    build = lambda: warc(name, made(hostile(host(name))), pack=pack, has_after=has_after)  # noqa: E731 - the case has it as a field
    return Case(name, about, "warc", suffix, build, dropped, kept, error=error, after=after)


def bare(data: bytes) -> bytes:
    """No compression."""
    return data


def _page(url: str) -> bytes:
    return response(f"{url}/page", SHOWN)


def _headed(url: str, lines: str) -> bytes:
    """A response record with these lines instead of a Content-Length."""
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {url}/page\r\nContent-Type: "
        f"application/http\r\n{lines}\r\n"
    )
    return head.encode() + PAGE + b"\r\n\r\n"


def _zstd_frame(data: bytes, *, dictionary: bool = False, window: int = 0) -> bytes:
    """A zstd frame of one raw block, by hand: it may need a dictionary that is not there, or a window of 2^`window`
    bytes.
    """
    descriptor = bytes([(0x00 if window else 0x20 | 0x40) | dictionary])
    size = (len(data) - 256).to_bytes(2, "little")
    head = (
        descriptor
        + (bytes([(window - 10) << 3]) if window else b"")
        + (b"\x07" if dictionary else b"")
        + (b"" if window else size)
    )
    return b"\x28\xb5\x2f\xfd" + head + (len(data) << 3 | 1).to_bytes(3, "little") + data


_MEMBERS = [
    _case(
        "member-cut",
        "A gzip member cut in two, more behind it",
        lambda url: gzipped(_page(url))[:60],
        dropped=BROKEN,
        error=GZIP,
    ),
    _case(
        "member-with-a-wrong-checksum",
        "A gzip member whose checksum is wrong",
        lambda url: gzipped(_page(url))[:-8] + b"\0" * 4 + gzipped(_page(url))[-4:],
        dropped=BROKEN,
        error=GZIP,
    ),
    _case(
        "member-with-a-wrong-length",
        "A gzip member whose length is wrong",
        lambda url: gzipped(_page(url))[:-4] + b"\xff" * 4,
        dropped=BROKEN,
        error=GZIP,
    ),
    _case(
        "member-damaged",
        "A gzip member with damage in its middle",
        lambda url: gzipped(_page(url))[:90] + b"\xff" * 40 + gzipped(_page(url))[130:],
        dropped=BROKEN,
        error=GZIP,
    ),
    _case(
        "member-of-an-unknown-method",
        "A gzip member of an unknown method",
        lambda url: b"\x1f\x8b\x07" + gzipped(_page(url))[3:],
        dropped=BROKEN,
        error=GZIP,
    ),
    _case(
        "member-of-nothing",
        "Gzip members without a byte in them, between records",
        lambda url: gzipped(b"") * 3 + gzipped(_page(url)) + gzipped(b"") + good_image("member-of-nothing"),
        CAPTION,
    ),
    _case(
        "member-of-white-space",
        "A gzip member of empty lines",
        lambda url: gzipped(b"\r\n" * 1_000) + gzipped(_page(url)) + good_image("member-of-white-space"),
        CAPTION,
    ),
    _case(
        "member-with-a-long-name",
        "A gzip member whose header has a name of 1 MB",
        lambda url: (
            b"\x1f\x8b\x08\x08\0\0\0\0\0\xff"
            + b"n" * (1 << 20)
            + b"\0"
            + gzipped(_page(url))[10:]
            + good_image("member-with-a-long-name")
        ),
        CAPTION,
    ),
    _case(
        "member-of-two-records",
        "Two records in one gzip member",
        lambda url: gzipped(_page(url) + response(f"{url}/it.png", picture(90), "image/png")),
        CAPTION,
    ),
    _case(
        "member-of-a-bomb",
        "512 MB of NUL as a page, in a member of 500 kB",
        lambda url: record_bomb(f"{url}/page", b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + SHOWN, 512),
        dropped=BROKEN,
        error="a page of more than 16 MiB",
    ),
    _case(
        "member-of-an-image-bomb",
        "512 MB of NUL as an image",
        lambda url: (
            gzipped(_page(url))
            + record_bomb(f"{url}/it.png", b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n\x89PNG\r\n\x1a\n", 512)
        ),
        dropped={"image_damaged": 1},
    ),
    _case(
        "member-in-a-member",
        "A record compressed twice",
        lambda url: gzipped(gzipped(_page(url))),
        dropped=BROKEN,
        error="compressed twice",
    ),
    _case("junk-between-members", "1 kB of junk between members", lambda _: JUNK, dropped=BROKEN, error=GZIP),
    _case(
        "junk-that-looks-like-members",
        "A thousand beginnings of gzip members",
        lambda _: b"\x1f\x8b\x08\0" * 1_000,
        dropped=BROKEN,
        error=GZIP,
    ),
    _case(
        "nul-between-members",
        "1 MB of NUL between members, as a disk leaves it",
        lambda _: b"\0" * (1 << 20),
        dropped=BROKEN,
        error=GZIP,
    ),
    _case(
        "archive-cut",
        "An archive that ends inside a member",
        lambda url: gzipped(_page(url))[:80],
        dropped=BROKEN,
        error=ONCE.format(0, 1),
        after=False,
        has_after=False,
    ),
    _case(
        "page-in-no-member",
        "A record that is not compressed, between members",
        lambda url: _page(url),
        dropped=BROKEN,
        error=GZIP,
    ),
]

_ZSTD = [
    _case(
        "zstd-dictionary-missing",
        "A zstd frame whose dictionary is not there",
        lambda url: _zstd_frame(_page(url), dictionary=True),
        dropped=BROKEN,
        error="Dictionary mismatch",
        pack=zstd,
        suffix=".warc.zst",
    ),
    _case(
        "zstd-window-of-2-tib",
        "A zstd frame that asks for a window of 2 TiB",
        lambda url: _zstd_frame(_page(url), window=41),
        dropped=BROKEN,
        error="Frame requires too much memory for decoding",
        pack=zstd,
        suffix=".warc.zst",
    ),
    _case(
        "zstd-frame-cut",
        "A zstd frame cut in two, more behind it",
        lambda url: zstd(_page(url))[:60],
        dropped=BROKEN,
        error="Data corruption detected",
        pack=zstd,
        suffix=".warc.zst",
    ),
    _case(
        "zstd-frame-to-skip",
        "A frame that zstd readers skip, of 1 MB",
        lambda _: b"\x50\x2a\x4d\x18" + (1 << 20).to_bytes(4, "little") + bytes(1 << 20),
        pack=zstd,
        suffix=".warc.zst",
    ),
    _case(
        "zstd-with-gzip-between",
        "A gzip member between zstd frames",
        lambda url: gzipped(_page(url)),
        dropped=BROKEN,
        error="Unknown frame descriptor",
        pack=zstd,
        suffix=".warc.zst",
    ),
]

_HEADS = [
    _case(
        "length-negative",
        "`Content-Length: -1`",
        lambda url: gzipped(_headed(url, "Content-Length: -1\r\n")),
        dropped=BROKEN,
        error=NO_NUMBER,
    ),
    _case(
        "length-missing",
        "No `Content-Length`",
        lambda url: gzipped(_headed(url, "")),
        dropped=BROKEN,
        error=ONCE.format(0, 1),
    ),
    _case(
        "length-huge",
        "`Content-Length` of 10^15",
        lambda url: gzipped(_headed(url, f"Content-Length: {10**15}\r\n")),
        dropped=BROKEN,
        error=BEYOND,
    ),
    _case(
        "length-beyond-64-bits",
        "`Content-Length` of 10^30",
        lambda url: gzipped(_headed(url, f"Content-Length: {10**30}\r\n")),
        dropped=BROKEN,
        error=NO_NUMBER,
    ),
    _case(
        "length-no-number",
        "`Content-Length: many`",
        lambda url: gzipped(_headed(url, "Content-Length: many\r\n")),
        dropped=BROKEN,
        error=NO_NUMBER,
    ),
    _case(
        "lengths-huge-by-the-thousand",
        "500 records of 200 bytes that say they have 10^15",
        lambda url: gzipped(_headed(url, f"Content-Length: {10**15}\r\n")) * 500,
        dropped={"record_broken": 500},
        error=BEYOND,
    ),
    _case(
        "length-of-nothing",
        "`Content-Length: 0` and a body all the same: a response without a byte, and what is behind it",
        lambda url: gzipped(_headed(url, "Content-Length: 0\r\n")),
        dropped={"record_broken": 2},
        error="…",
    ),
    _case(
        "length-too-small",
        "`Content-Length` short of its body",
        lambda url: gzipped(_headed(url, "Content-Length: 60\r\n")),
        dropped=BROKEN,
        error=NO_RECORD,
    ),
    _case(
        "length-a-little-too-large",
        "`Content-Length` that takes in the next record",
        lambda url: gzipped(_headed(url, "Content-Length: 300\r\n")),
        dropped=BROKEN,
        error=BEYOND,
    ),
    _case(
        "bare-length-huge",
        "`Content-Length` of 10^15, without compression",
        lambda url: _headed(url, f"Content-Length: {10**15}\r\n"),
        dropped=BROKEN,
        error="Content-Length goes beyond the end of the file",
        pack=bare,
        suffix=".warc",
    ),
    _case(
        "bare-length-negative",
        "`Content-Length: -1`, without compression",
        lambda url: _headed(url, "Content-Length: -1\r\n"),
        dropped=BROKEN,
        error=NO_NUMBER,
        pack=bare,
        suffix=".warc",
    ),
    _case(
        "bare-length-too-small",
        "`Content-Length` short of its body, without compression",
        lambda url: _headed(url, "Content-Length: 60\r\n"),
        dropped=BROKEN,
        error=NO_RECORD,
        pack=bare,
        suffix=".warc",
    ),
    _case(
        "bare-junk",
        "1 kB of junk between records, without compression",
        lambda _: JUNK,
        dropped=BROKEN,
        error=NO_RECORD,
        pack=bare,
        suffix=".warc",
    ),
    _case(
        "head-of-10-mb",
        "A WARC header of 10 MB",
        lambda url: gzipped(_headed(url, "WARC-Junk: " + "x" * 10_000_000 + "\r\nContent-Length: 90\r\n")),
        dropped=BROKEN,
        error="Maximum header length exceeded.",
    ),
    _case(
        "head-without-end",
        "A record of 5 MB of headers, no empty line behind them",
        lambda _: gzipped(b"WARC/1.0\r\n" + b"WARC-Junk: x\r\n" * 400_000),
        dropped=BROKEN,
        error="Maximum header length exceeded.",
    ),
    _case(
        "head-cut",
        "A record that ends inside its headers",
        lambda _: gzipped(b"WARC/1.0\r\nWARC-Type: resp"),
        dropped=BROKEN,
        error="the record breaks off in its head",
    ),
    _case(
        "head-injected",
        "A URL with a line break and another `Content-Length` in it",
        lambda url: gzipped(record(f"{url}/page\r\nContent-Length: 7\r\nWARC-Type: metadata", _page(url))),
        dropped=BROKEN,
        error=ONCE.format(2, 2),
    ),
    _case(
        "head-of-any-bytes",
        "NUL and bytes above 127 in the header",
        lambda url: (
            gzipped(_headed(url, f"X\0\xff\xe9: \0\r\nContent-Length: {len(PAGE)}\r\n"))
            + good_image("head-of-any-bytes")
        ),
        CAPTION,
    ),
    _case(
        "version-2-0",
        "`WARC/2.0`",
        lambda url: gzipped(_page(url).replace(b"WARC/1.0", b"WARC/2.0")),
        dropped=BROKEN,
        error=NO_RECORD,
    ),
    _case(
        "version-0-18",
        "`WARC/0.18`, a draft of 2008",
        lambda url: gzipped(_page(url).replace(b"WARC/1.0", b"WARC/0.18")) + good_image("version-0-18"),
        CAPTION,
    ),
    _case(
        "version-unreadable",
        "`WARC/x.y`",
        lambda url: gzipped(_page(url).replace(b"WARC/1.0", b"WARC/x.y")),
        dropped=BROKEN,
        error=NO_RECORD,
    ),
    _case(
        "arc-record",
        "A record of ARC, the format before WARC",
        lambda _: gzipped(b"http://a.example/ 1.2.3.4 20050101000000 text/html 20\n" + SHOWN),
        dropped=BROKEN,
        error=NO_RECORD,
    ),
]

_RECORDS = [
    _case(
        "url-missing",
        "A response without a URL",
        lambda _: gzipped(response(None, SHOWN)),
        dropped=BROKEN,
        error="no WARC-Target-URI",
    ),
    _case(
        "url-empty",
        "A response with an empty URL",
        lambda _: gzipped(response("", SHOWN)),
        dropped=BROKEN,
        error="no WARC-Target-URI",
    ),
    _case(
        "url-in-brackets",
        "A URL in angle brackets, as WARC 1.0 has it",
        lambda url: gzipped(response(f"<{url}/page>", SHOWN)) + good_image("url-in-brackets"),
        CAPTION,
    ),
    _case(
        "url-of-a-page-invalid",
        "A page at a URL that no parser takes: its relative URLs lead nowhere",
        lambda _: gzipped(response("http://[broken/", SHOWN)),
        dropped={"url_invalid": 1},
    ),
    _case(
        "url-of-100-kb",
        "A page at a URL of 100 kB",
        lambda url: gzipped(response(f"{url}/" + "p" * 100_000, SHOWN)),
        dropped=BROKEN,
        error="Maximum header length exceeded.",
    ),
    _case(
        "type-unknown",
        "A record of a type that does not exist",
        lambda url: gzipped(record(f"{url}/page", SHOWN, kind="frobnicate")),
    ),
    _case(
        "type-missing",
        "A record without a type",
        lambda url: gzipped(_page(url).replace(b"WARC-Type: response\r\n", b"")),
        dropped=BROKEN,
        error=ONCE.format(1, 0),
    ),
    _case(
        "record-of-nothing",
        "Records without a block",
        lambda url: (
            gzipped(record(f"{url}/a", b"", kind="resource")) + gzipped(record(f"{url}/b", b"", kind="metadata"))
        ),
    ),
    _case(
        "records-a-hundred-thousand",
        "20,000 records without a block in one member",
        lambda url: gzipped(record(f"{url}/a", b"", kind="request") * 20_000),
    ),
    _case(
        "capture-first-is-bad",
        "Two captures of an image, the first of them cut: the first counts",
        lambda url: (
            gzipped(_page(url))
            + gzipped(response(f"{url}/it.png", picture(90)[:60], "image/png"))
            + good_image("capture-first-is-bad")
        ),
        dropped={"image_damaged": 1},
    ),
    _case(
        "archive-in-a-record",
        "An archive as the body of a record",
        lambda url: gzipped(
            record(f"{url}/a.warc.gz", gzipped(_page(url)) * 3, kind="resource", content_type="application/warc")
        ),
    ),
    _case(
        "archive-in-a-bare-record",
        "An archive without compression in another one's record",
        lambda url: record(f"{url}/a.warc", _page(url) * 3, kind="resource", content_type="application/warc"),
        pack=bare,
        suffix=".warc",
    ),
]

_FILES = [
    Case(
        "file-of-html",
        "A page called `.warc.gz`",
        "warc",
        ".warc.gz",
        lambda: b"<!DOCTYPE html>" + SHOWN * 99,
        exit_code=1,
        error="no WARC record in it",
    ),
    Case(
        "file-of-junk",
        "1 MB of any bytes",
        "warc",
        ".warc.gz",
        lambda: bytes(range(256)) * 4096,
        exit_code=1,
        error="no WARC record in it",
    ),
    Case(
        "file-compressed-twice",
        "An archive compressed twice",
        "warc",
        ".warc.gz",
        lambda: gzipped(warc("file-compressed-twice")),
        exit_code=1,
        error="no WARC record in it",
    ),
    Case(
        "file-of-a-cut-record",
        "An archive cut inside its first record",
        "warc",
        ".warc.gz",
        lambda: warc("file-of-a-cut-record")[:50],
        exit_code=1,
        error="no WARC record in it",
    ),
    Case(
        "file-of-an-arc",
        "An ARC file",
        "warc",
        ".warc.gz",
        lambda: gzipped(b"filedesc://a.arc 0.0.0.0 20050101000000 text/plain 20\n1 0 archive\n"),
        exit_code=1,
        error="no WARC record in it",
    ),
    Case(
        "file-of-nothing",
        "A file without a byte beside one with some",
        "warc",
        ".warc.gz",
        lambda: b"",
        beside=lambda: warc("file-of-nothing"),
    ),
]

CASES = [*_MEMBERS, *_ZSTD, *_HEADS, *_RECORDS, *_FILES]
