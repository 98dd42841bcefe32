"""What becomes of an answer: each kind of answer of the server, and what is made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from altalign.data.reasons import DropReason
from tests.web_server.answers import HTML, quoted
from tests.web_server.broken import PICTURE
from tests.web_server.pictures import picture

STATUS, TIMEOUT, UNREACHABLE = DropReason.HTTP_STATUS, DropReason.HTTP_TIMEOUT, DropReason.HTTP_UNREACHABLE
BROKEN, TOO_LARGE, REFUSED = DropReason.HTTP_BROKEN, DropReason.HTTP_TOO_LARGE, DropReason.HTTP_REFUSED
TAG, USAGE, SIGNAL, TDMREP, RSL, ROBOTS = (
    DropReason.OPT_OUT_X_ROBOTS_TAG,
    DropReason.OPT_OUT_CONTENT_USAGE,
    DropReason.OPT_OUT_CONTENT_SIGNAL,
    DropReason.OPT_OUT_TDMREP,
    DropReason.OPT_OUT_RSL,
    DropReason.OPT_OUT_ROBOTS_TXT,
)
TRIED_AGAIN = {TIMEOUT, UNREACHABLE, BROKEN}
CODES_TRIED_AGAIN = {429, *range(500, 600)}


@dataclass(frozen=True)
class Case:
    """A request and what becomes of it.

    Attributes:
        name: of the case; without a host of its own the host NAME.test.
        about: what the server does.
        target: path and query, or a URL; `{port}`, `{tls_port}` and the other ports of the server are
            filled in.
        reason: None: the image is in hand.
        code: status of the last answer.
        body: what is in hand; the picture of `broken` where nothing is said.
        host: asked instead.
        tries: how many; None: one, and those that `fetch.retries` adds where the reason is one that is tried again.
        address: what a name server says of the host.
    """

    name: str
    about: str
    target: str
    reason: DropReason | None = None
    code: int | None = None
    body: bytes = PICTURE
    host: str = ""
    tries: int | None = None
    address: str = "127.0.0.1"

    def url(self, ports: Mapping[str, int]) -> str:
        """Its URL, where the server has these ports."""
        target = self.target.format(**ports)
        return (
            target
            if "://" in target.partition("?")[0] or ":" in target[:6]
            else f"http://{self.host or f'{self.name}.test'}:{ports['port']}{target}"
        )

    @property
    def is_tried_again(self) -> bool:
        """Whether what becomes of it is a reason to try again."""
        return self.reason in TRIED_AGAIN or (self.reason is STATUS and self.code in CODES_TRIED_AGAIN)

    @property
    def outcome(self) -> str:
        """In a few words, for the table."""
        if self.reason is None:
            return "in hand, of the second try" if self.tries == 2 else "in hand"
        code = f" {self.code}" if self.reason is STATUS else ""
        return f"`{self.reason}`{code}{', tried again' if self.is_tried_again else ''}"


def _status(code: int, about: str) -> Case:
    return Case(f"status-{code}", about, f"/status/{code}", STATUS, code)


def _raw(
    name: str, about: str, reason: DropReason | None = BROKEN, code: int | None = 200, body: bytes = PICTURE
) -> Case:
    return Case(name, about, f"/raw/{name}", reason, code, body)


def _to(
    name: str, about: str, url: str, reason: DropReason | None = REFUSED, code: int | None = 302, body: bytes = PICTURE
) -> Case:
    return Case(
        name,
        about,
        f"/redirect-to?url={quoted(url).replace('%7B', '{').replace('%7D', '}')}",
        reason,
        code,
        body,
        tries=1,
    )


def _header(name: str, about: str, header: str, reason: DropReason | None) -> Case:
    return Case(
        name,
        about,
        "/png/a?" + "&".join(f"header={quoted(line)}" for line in header.split("\n")),
        reason,
        200,
        picture("a"),
    )


def _tls(kind: str, about: str, reason: DropReason) -> Case:
    return Case(f"tls-{kind}", about, f"https://tls-{kind}.test:{{handshake_port}}/png/a", reason, tries=0)


def _robots(
    kind: str,
    about: str,
    reason: DropReason | None = None,
    code: int | None = 200,
    target: str = "/png/a",
    body: bytes = picture("a"),
) -> Case:
    return Case(
        f"robots-{kind}", about, target, reason, code, body, f"{kind}.robots.test", tries=None if reason is None else 0
    )


def _reservations(kind: str, about: str, reason: DropReason | None = None, query: str = "") -> Case:
    name = f"tdmrep-{kind}{'-and-header' if query else ''}"
    return Case(name, about, f"/png/a{query}", reason, 200, picture("a"), f"{kind}.tdmrep.test")


_STATUSES = [
    _status(404, "Not found"),
    _status(410, "Gone"),
    _status(401, "A password is wanted"),
    _status(403, "Forbidden"),
    _status(451, "Unavailable for legal reasons"),
    _status(204, "No content"),
    _status(304, "Not modified, though nothing was said of an older copy"),
    _status(300, "Multiple choices, and no address"),
    _status(999, "A status that nobody knows"),
    _status(429, "Too many requests"),
    _status(500, "An error of the server"),
    _status(503, "Unavailable"),
    _raw("part", "206: a part that nobody has asked for", STATUS, 206),
    _raw("upgrade", "101: another protocol from here on", STATUS, 101),
    Case("error-without-end", "500 with a body of 100 MB that stops", "/unfinished-error", STATUS, 500),
    Case("page-instead", "A page with 200: for the rules of images to judge", "/html", None, 200, HTML),
    Case("later", "429, then the image", "/flaky/a?codes=429&retry-after=0", None, 200, picture("a"), tries=2),
    Case(
        "later-in-a-second",
        "503 with Retry-After in seconds, then the image",
        "/flaky/b?codes=503&retry-after=1",
        None,
        200,
        picture("b"),
        tries=2,
    ),
    Case(
        "later-by-date",
        "503 with Retry-After as a date, then the image",
        "/flaky/c?codes=503&retry-after=1&form=date",
        None,
        200,
        picture("c"),
        tries=2,
    ),
    Case(
        "later-in-words",
        "503 with a Retry-After of words, then the image",
        "/flaky/d?codes=503&retry-after=soon",
        None,
        200,
        picture("d"),
        tries=2,
    ),
    Case("cut-then-well", "Half the body, then the image", "/flaky/e?codes=cut", None, 200, picture("e"), tries=2),
    Case("silence-then-well", "No answer, then the image", "/flaky/f?codes=hang", None, 200, picture("f"), tries=2),
]

_REDIRECTS = [
    Case("redirects-10", "10 redirects", "/redirect/10", None, 200, picture("0")),
    Case("redirects-11", "11 redirects", "/redirect/11", STATUS, 302),
    *[
        Case(f"redirect-of-{code}", f"A redirect with {code}", f"/redirect/1?code={code}", None, 200, picture("0"))
        for code in (301, 303, 307, 308)
    ],
    Case("redirect-to-itself", "A redirect to itself", "/loop", STATUS, 302),
    Case("redirects-in-a-ring", "Two redirects to each other", "/loop/ping", STATUS, 302),
    Case("redirect-nowhere", "A redirect without an address", "/redirect-to", STATUS, 302),
    Case(
        "redirect-with-a-body-without-end",
        "A redirect with a body of 100 MB that stops",
        "/redirect-with-a-body",
        None,
        200,
        picture("behind"),
    ),
    _to("redirect-to-a-host", "To another host", "http://other.test:{port}/png/x", None, 200, picture("x")),
    _to("redirect-without-scheme", "To `//HOST/PATH`", "//other.test:{port}/png/x", None, 200, picture("x")),
    _to("redirect-to-a-fragment", "To an address with a fragment", "/png/x#here", None, 200, picture("x")),
    _to("redirect-in-utf-8", "To a path in UTF-8, not escaped", "/png/größe", None, 200, picture("größe")),
    _to("redirect-with-spaces", "To a path with spaces", "/png/a b", None, 200, picture("a b")),
    _to(
        "redirect-with-a-password",
        "To an address with a password, which is not sent",
        "http://me:secret@other.test:{port}/png/x",
        None,
        200,
        picture("x"),
    ),
    _to("redirect-to-loopback", "To another port of this machine", "http://127.0.0.1:22/png/x"),
    _to("redirect-to-loopback-in-ipv6", "To `[::1]`", "http://[::1]:{port}/png/x"),
    _to("redirect-to-loopback-in-decimal", "To loopback as one number", "http://2130706433/png/x"),
    _to("redirect-to-loopback-in-octal", "To loopback in octal and hexadecimal", "http://0177.0x1/png/x"),
    _to("redirect-to-metadata", "To the metadata service of clouds", "http://169.254.169.254/latest/meta-data/"),
    _to("redirect-to-a-private-address", "To a private address", "http://10.0.0.1/png/x"),
    _to("redirect-to-a-mapped-address", "To a private address, mapped to IPv6", "http://[::ffff:192.168.0.1]/png/x"),
    _to("redirect-to-a-shared-address", "To 100.64.0.0/10", "http://100.100.100.200/png/x"),
    _to("redirect-to-a-port", "To a port that is not in the settings", "http://other.test:8443/png/x"),
    _to("redirect-to-ftp", "To `ftp:`", "ftp://other.test/x.png"),
    _to("redirect-to-a-file", "To `file:`", "file:///etc/passwd"),
    _to("redirect-to-data", "To `data:`", "data:image/png;base64,AAAA"),
    _to("redirect-to-no-url", "To what is no URL", "http://[broken/", STATUS, 302),
    _to("redirect-to-no-host", "To a name that does not exist", "http://nowhere.test/png/x", UNREACHABLE),
    _to("redirect-to-opt-out", "To a host whose robots.txt forbids it", "http://deny.robots.test:{port}/png/x", ROBOTS),
    _to("redirect-to-silence", "To a host that never answers", "http://hang-behind.test:{port}/png/x", TIMEOUT),
]

_SLOW = [
    Case(
        "silence",
        "Every request is taken, that for robots.txt too, and nothing comes",
        "/png/a",
        TIMEOUT,
        host="hang-silence.test",
        tries=0,
    ),
    Case("slow-head", "Nothing comes for an hour", "/slow-head", TIMEOUT),
    Case("slow-but-in-time", "Nothing comes for a while", "/slow-head?seconds=0.3", None, 200),
    Case("drip", "A byte of the body now and then, for hours", "/drip", TIMEOUT, 200),
    Case("drip-head", "A byte of the headers now and then, for ever", "/drip-head", TIMEOUT),
    Case("stall", "Half the body, and then nothing", "/stall", TIMEOUT, 200),
    Case("no-connection", "Connections are never taken", "http://127.0.0.1:{full_port}/png/a", TIMEOUT, tries=0),
    _tls("silence", "Connections are taken, and TLS never begins", TIMEOUT),
    _tls("drip", "TLS begins, a byte now and then", TIMEOUT),
    Case("name-hangs", "The name server never answers", "/png/a", TIMEOUT, address="", tries=0),
]

_LARGE = [
    Case("large", "200 MB, as Content-Length says", "/large", TOO_LARGE, 200),
    Case("large-in-chunks", "200 MB in chunks", "/large?how=chunked", TOO_LARGE, 200),
    Case("large-until-close", "200 MB, and no word of it", "/large?how=close", TOO_LARGE, 200),
    Case("body-without-end", "A body that never ends", "/endless/body", TOO_LARGE, 200),
    Case("chunks-without-end", "Small chunks that never end", "/endless/chunks", TOO_LARGE, 200),
    Case("bomb", "200 MB of zeros in 200 kB of gzip", "/bomb/gzip", TOO_LARGE, 200),
    Case("bomb-of-deflate", "The same as deflate", "/bomb/deflate", TOO_LARGE, 200),
    Case("bomb-in-a-bomb", "200 MB in 1 kB, packed twice", "/bomb/gzip?layers=2", TOO_LARGE, 200),
    _raw("length-of-300-mb", "Content-Length of 300 MB above a small body", TOO_LARGE),
    _raw("length-of-1-eb", "Content-Length of 1 EB", TOO_LARGE),
]

_BROKEN = [
    _raw("cut", "Half of what Content-Length says"),
    _raw("cut-in-chunks", "Chunks without the last"),
    _raw("cut-in-a-chunk", "Half a chunk"),
    _raw("cut-in-the-head", "Half the headers", code=None),
    _raw("cut-gzip", "gzip without its end"),
    _raw("nothing", "The connection is closed without a word", code=None),
    Case("reset", "The connection is reset", "/reset", BROKEN),
    Case("reset-in-the-head", "Reset inside the headers", "/reset/head", BROKEN),
    Case("reset-in-the-body", "Reset inside the body", "/reset/body", BROKEN, 200),
    _raw("empty", "200 and no body: Content-Length: 0"),
    _raw("empty-chunks", "The last chunk alone"),
    _raw("empty-until-close", "No length, no body"),
    _raw("empty-gzip", "gzip of nothing"),
    _raw("longer-than-said", "More than Content-Length says, all in one piece", code=None),
    _raw("two-answers", "Two answers to one request: the second is left out", None),
    _raw("length-of-words", "Content-Length: many", code=None),
    _raw("length-below-zero", "Content-Length: -1", code=None),
    _raw("length-of-300-digits", "Content-Length of 300 digits", code=None),
    _raw("lengths-that-differ", "Two Content-Lengths that differ", code=None),
    _raw("length-and-chunks", "Content-Length and chunks", code=None),
    _raw("chunk-of-words", "A chunk of `hello` bytes", code=None),
    _raw("chunk-of-1-eb", "A chunk of 1 EB"),
    _raw("chunk-below-zero", "A chunk of -5 bytes", code=None),
    _raw("chunk-longer-than-said", "A chunk longer than it says", code=None),
    _raw("gzip-that-is-none", "Content-Encoding: gzip on what is none"),
    _raw("gzip-of-a-wrong-sum", "gzip with a wrong checksum"),
    _raw("gzip-and-more", "gzip with something behind it, which is left out", None),
    _raw("encoding-unknown", "A content encoding that nobody knows: the body as it is", None),
    _raw("encodings-of-a-hundred", "A hundred content encodings"),
    _raw("no-http", "Bytes that are no HTTP", code=None),
    _raw("no-head", "A body without a head", code=None),
    _raw("no-status", "A status line without a status", code=None),
    _raw("status-of-words", "A status of letters", code=None),
    _raw("another-protocol", "The greeting of SSH", code=None),
    _raw("http-2", "HTTP/2, which nobody has agreed on", code=None),
    _raw("header-of-1-mb", "A header of 1 MB", code=None),
    _raw("headers-10000", "10,000 headers", code=None),
    _raw("early-hints", "103 before the answer", None),
    _raw("bare-line-feeds", "Lines that end without a carriage return", None),
    _raw("header-without-colon", "A header without a colon", code=None),
    _raw("header-of-nul", "NUL in a header", code=None),
    _raw("header-of-any-bytes", "Bytes that are no text in a header", None),
    Case("head-without-end", "Headers that never end", "/endless/head", BROKEN),
    Case("header-without-end", "A header that never ends", "/endless/header", BROKEN),
    Case("continues-without-end", "`100 Continue` for ever", "/endless/continue", TIMEOUT),
    Case("extension-without-end", "A chunk's extension that never ends", "/endless/extension", TIMEOUT, 200),
    Case("dies-after", "A connection that is said to stay and does not", "/dies/a", None, 200),
    Case("gzipped", "gzip that nobody has asked for", "/encoded/gzip?name=a", None, 200, picture("a")),
    Case("deflated", "deflate with the header of zlib", "/encoded/deflate?name=a", None, 200, picture("a")),
    Case("deflated-raw", "deflate without it", "/encoded/raw-deflate?name=a", None, 200, picture("a")),
    Case("until-close", "No length: the body ends with the connection", "/until-close/a", None, 200, picture("a")),
    Case("in-chunks", "Chunks of 100 bytes", "/chunked/a", None, 200, picture("a")),
]

_OPT_OUTS = [
    _header("noai", "X-Robots-Tag: noai", "X-Robots-Tag: noai", TAG),
    _header("noimageai", "X-Robots-Tag: NoImageAI", "X-Robots-Tag: NoImageAI", TAG),
    _header("noindex", "X-Robots-Tag: nofollow, noindex", "X-Robots-Tag: nofollow, noindex", TAG),
    _header("noimageindex", "The same in a second header", "X-Robots-Tag: nofollow\nX-Robots-Tag: noimageindex", TAG),
    _header("noai-for-us", "X-Robots-Tag: altalign: noai", "X-Robots-Tag: altalign: noai", TAG),
    _header("noai-for-others", "X-Robots-Tag: otherbot: noai", "X-Robots-Tag: otherbot: noai", None),
    _header("nofollow", "X-Robots-Tag: nofollow", "X-Robots-Tag: nofollow", None),
    _header("tdm-reserved", "tdm-reservation: 1", "tdm-reservation: 1", TDMREP),
    _header("tdm-not-reserved", "tdm-reservation: 0", "tdm-reservation: 0", None),
    *(
        _header(name, line, line, reason)
        for name, line, reason in (
            ("usage", "Content-Usage: train-ai=n, search=y", USAGE),
            ("usage-allowed", "Content-Usage: train-ai=y, search=n", None),
            ("usage-of-older-drafts", "Content-Usage: bots=n", USAGE),
            ("usage-malformed", "Content-Usage: train-ai: n", None),
            ("signal", "Content-Signal: search=yes, ai-train=no", SIGNAL),
            ("signal-input", "Content-Signal: ai-input=no", None),
        )
    ),
    Case("noai-on-an-error", "404 with X-Robots-Tag: noai", "/status/404?header=X-Robots-Tag:%20noai", STATUS, 404),
    _robots("none", "No robots.txt: 404"),
    _robots("forbidden", "robots.txt itself is forbidden: 403"),
    _robots("allow", "robots.txt allows everything"),
    _robots("empty", "An empty robots.txt"),
    _robots("html", "A page as robots.txt"),
    _robots("binary", "Any bytes as robots.txt"),
    _robots("deny", "robots.txt forbids everything", ROBOTS, None),
    _robots("deny-us", "robots.txt forbids altalign alone", ROBOTS, None),
    _robots("deny-others", "robots.txt forbids all but altalign"),
    _robots("deny-folder", "robots.txt forbids a folder, and this is outside"),
    Case(
        "robots-deny-folder-inside",
        "The same, and this is inside",
        "/png/private/a",
        ROBOTS,
        None,
        host="deny-folder.robots.test",
        tries=0,
    ),
    Case(
        "robots-deny-pattern",
        "robots.txt forbids `/*.gif$`",
        "/png/a.gif",
        ROBOTS,
        None,
        host="deny-pattern.robots.test",
        tries=0,
    ),
    _robots("usage", "robots.txt allows everything, and has `Content-Usage: train-ai=n`", USAGE, None),
    _robots("usage-of-folder", "The same of a folder, and this is outside"),
    Case(
        "robots-usage-of-folder-inside",
        "The same, and this is inside",
        "/png/private/a",
        USAGE,
        None,
        host="usage-of-folder.robots.test",
        tries=0,
    ),
    _robots("usage-search", "`Content-Usage: search=n, train-ai=y`"),
    _robots("usage-malformed", "Lines of `Content-Usage` that cannot be read: as good as none"),
    _robots("signal", "robots.txt has `Content-Signal: search=yes,ai-train=no`", SIGNAL, None),
    _robots("licence", "robots.txt has `License: https://…`, whose terms are not read", RSL, None),
    _robots("no-newline", "robots.txt without an end of its last line", ROBOTS, None),
    _robots("carriage-returns", "robots.txt with carriage returns alone", ROBOTS, None),
    _robots("with-mark", "robots.txt with a byte order mark", ROBOTS, None),
    _robots("upper-case", "robots.txt in capitals", ROBOTS, None),
    _robots("spaces", "robots.txt with spaces everywhere", ROBOTS, None),
    _robots("latin-1", "robots.txt in Latin-1", ROBOTS, None),
    _robots("gzip", "robots.txt in gzip", ROBOTS, None),
    _robots("redirect", "A redirect to a robots.txt of another name that allows it"),
    _robots("elsewhere", "A redirect to a robots.txt of another host, which forbids it", ROBOTS, None),
    _robots("loop", "A redirect of robots.txt to itself: as good as none"),
    _robots("metadata", "A redirect of robots.txt to the metadata service, which is not followed: the same"),
    _robots("soon", "A ban behind 400 kB of comments", ROBOTS, None),
    _robots("late", "A ban behind 600 kB of comments, which are not read to the end"),
    _robots("long-line", "A ban behind a line of 300 kB", ROBOTS, None),
    _robots("endless", "A robots.txt that never ends: its first 500 KiB count"),
    _robots("large", "A robots.txt of 1 GB, as Content-Length says: the same"),
    _robots("bomb", "A robots.txt of 100 MB in gzip: the same"),
]

_RESERVATIONS = [
    _reservations("all", "tdmrep.json reserves rights in everything", TDMREP),
    _reservations("folder", "tdmrep.json reserves rights in a folder, and this is outside"),
    _reservations("free", "tdmrep.json frees images, and reserves rights in everything else"),
    _reservations("all", "A header of the image frees what tdmrep.json reserves", query="?header=tdm-reservation:%200"),
    _reservations("broken", "What is no JSON: as good as none"),
    _reservations("deep", "Lists in lists: the same"),
    _reservations("error", "tdmrep.json with status 500: the same"),
    _reservations("silent", "tdmrep.json never comes: the same"),
    _reservations("reset", "tdmrep.json resets the connection: the same"),
    _reservations("hidden", "robots.txt forbids tdmrep.json, which is not asked for"),
]

_ROBOTS_FAILS = [
    _robots("error", "robots.txt with status 500: whether it is allowed cannot be known", STATUS, 500),
    _robots("unavailable", "robots.txt with status 503", STATUS, 503),
    _robots("too-many", "robots.txt with status 429", STATUS, 429),
    _robots("hang", "robots.txt never comes", TIMEOUT, None),
    _robots("drip", "robots.txt comes by the byte", TIMEOUT, 200),
    _robots("stall", "Half of robots.txt, and then nothing", TIMEOUT, 200),
    _robots("head-without-end", "robots.txt whose headers never end", BROKEN, None),
    _robots("reset", "robots.txt resets the connection", BROKEN, None),
    _robots("flaky", "robots.txt with 503, and then a ban", ROBOTS, None),
]

_NOBODY = [
    Case("refused", "Connections are refused", "http://127.0.0.1:{refused_port}/png/a", UNREACHABLE, tries=0),
    Case("no-name", "The name does not exist", "http://nowhere.test:{port}/png/a", UNREACHABLE, tries=0),
    Case("no-tls", "A server without TLS behind `https:`", "https://no-tls.test:{port}/png/a", UNREACHABLE, tries=0),
    _tls("endless", "A greeting of TLS that never ends", UNREACHABLE),
    Case(
        "unsigned",
        "A certificate that nobody has signed",
        "https://unsigned.test:{tls_port}/png/a",
        UNREACHABLE,
        tries=0,
    ),
    Case("loopback", "A name that leads to `127.0.0.2`", "/png/a", REFUSED, address="127.0.0.2", tries=0),
    Case("private", "A name that leads to a private address", "/png/a", REFUSED, address="192.168.1.1", tries=0),
    Case(
        "metadata", "A name that leads to the metadata service", "/png/a", REFUSED, address="169.254.169.254", tries=0
    ),
    Case(
        "unique-local", "A name that leads to a private address of IPv6", "/png/a", REFUSED, address="fd00::1", tries=0
    ),
    Case(
        "nat64",
        "A name that leads to a private address behind NAT64",
        "/png/a",
        REFUSED,
        address="64:ff9b::a00:1",
        tries=0,
    ),
    Case(
        "rebound",
        "A name that leads here, and the next time to `127.0.0.2`: the address that was judged is connected to",
        "/png/a",
        None,
        200,
        picture("a"),
    ),
    Case("multicast", "A name that leads to multicast", "/png/a", REFUSED, address="224.0.0.1", tries=0),
    Case("port", "A port that is not in the settings", "http://port.test:22/png/a", REFUSED, tries=0),
    Case("scheme", "Another scheme", "ftp://scheme.test/a.png", REFUSED, tries=0),
    Case("no-url", "What is no URL", "http://[broken/", REFUSED, tries=0),
    Case("blocked", "A domain below one of a block list", "http://www.blocked.test:{port}/png/a", REFUSED, tries=0),
]

CASES: Mapping[str, Sequence[Case]] = {
    "Statuses": _STATUSES,
    "Redirects": _REDIRECTS,
    "Slow answers": _SLOW,
    "Large answers": _LARGE,
    "Broken answers": _BROKEN,
    "Opt-outs": _OPT_OUTS,
    "tdmrep.json": _RESERVATIONS,
    "A robots.txt that cannot be read": _ROBOTS_FAILS,
    "Nobody there, and nobody to be asked": _NOBODY,
}


def every() -> list[Case]:
    """All cases, in the order of the tables."""
    return [case for cases in CASES.values() for case in cases]
