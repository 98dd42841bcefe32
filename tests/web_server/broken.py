"""Answers as they should not be: slow, endless, too large, cut, lying, and no HTTP at all."""

import asyncio
import gzip
from collections.abc import Mapping
from functools import lru_cache

from altalign.demo.archive import chunked
from tests.web_server.answers import HTML, more, png
from tests.web_server.exchange import Client, Request, State, chunk, head, packed
from tests.web_server.pictures import picture

PICTURE = picture("broken")
HALF = PICTURE[: len(PICTURE) // 2]
ZIPPED = gzip.compress(PICTURE, mtime=0)
LENGTH = f"Content-Length: {len(PICTURE)}"
PIECE = bytes(1 << 16)

# Sent as it stands here; then the connection is closed.
RAW: Mapping[str, bytes] = {
    "cut": head(200, LENGTH) + HALF,
    "cut-in-the-head": b"HTTP/1.1 200 OK\r\nContent-Ty",
    "cut-in-chunks": head(200, "Transfer-Encoding: chunked") + chunk(HALF),
    "cut-in-a-chunk": head(200, "Transfer-Encoding: chunked") + b"%x\r\n" % len(PICTURE) + HALF,
    "cut-gzip": head(200, "Content-Encoding: gzip", f"Content-Length: {len(ZIPPED) - 50}") + ZIPPED[:-50],
    "longer-than-said": head(200, LENGTH) + PICTURE + b"and more" * 100,
    "length-of-words": head(200, "Content-Length: many") + PICTURE,
    "length-below-zero": head(200, "Content-Length: -1") + PICTURE,
    "length-of-300-mb": head(200, "Content-Length: 300000000") + HALF,
    "length-of-1-eb": head(200, "Content-Length: 1000000000000000000") + HALF,
    "length-of-300-digits": head(200, "Content-Length: " + "9" * 300) + HALF,
    "lengths-that-differ": head(200, LENGTH, "Content-Length: 10") + PICTURE,
    "lengths-that-agree": head(200, LENGTH, LENGTH) + PICTURE,
    "length-and-chunks": head(200, "Content-Length: 10", "Transfer-Encoding: chunked") + chunked(PICTURE),
    "chunk-of-words": head(200, "Transfer-Encoding: chunked") + b"hello\r\n" + PICTURE,
    "chunk-of-1-eb": head(200, "Transfer-Encoding: chunked") + b"de0b6b3a7640000\r\n" + PICTURE,
    "chunk-below-zero": head(200, "Transfer-Encoding: chunked") + b"-5\r\nhello\r\n0\r\n\r\n",
    "chunk-longer-than-said": head(200, "Transfer-Encoding: chunked") + b"5\r\nhello and more\r\n0\r\n\r\n",
    "gzip-that-is-none": head(200, "Content-Encoding: gzip", LENGTH) + PICTURE,
    "gzip-of-a-wrong-sum": head(200, "Content-Encoding: gzip", f"Content-Length: {len(ZIPPED)}")
    + ZIPPED[:-8]
    + bytes(8),
    "gzip-and-more": head(200, "Content-Encoding: gzip", f"Content-Length: {len(ZIPPED) + 5}") + ZIPPED + b"extra",
    "encoding-unknown": head(200, "Content-Encoding: middle-out", LENGTH) + PICTURE,
    "encodings-of-a-hundred": head(200, "Content-Encoding: " + ", ".join(["gzip"] * 100), LENGTH) + PICTURE,
    "empty": head(200, "Content-Length: 0"),
    "empty-chunks": head(200, "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "empty-until-close": b"HTTP/1.0 200 OK\r\n\r\n",
    "empty-gzip": head(200, "Content-Encoding: gzip", f"Content-Length: {len(gzip.compress(b''))}")
    + gzip.compress(b""),
    "nothing": b"",
    "no-http": bytes(range(256)) * 8,
    "no-status": b"HTTP/1.1\r\n\r\n" + PICTURE,
    "status-of-words": b"HTTP/1.1 fine OK\r\n\r\n" + PICTURE,
    "status-of-0": b"HTTP/1.1 000 Nothing\r\nContent-Length: 0\r\n\r\n",
    "status-of-9-digits": b"HTTP/1.1 200000000 OK\r\nContent-Length: 0\r\n\r\n",
    "no-head": PICTURE,
    "another-protocol": b"SSH-2.0-OpenSSH_9.9\r\n",
    "http-2": b"\0\0\x12\4\0\0\0\0\0\0\3\0\0\0d",
    "http-9": b"HTTP/9.9 200 OK\r\n" + LENGTH.encode() + b"\r\n\r\n" + PICTURE,
    "bare-line-feeds": b"HTTP/1.1 200 OK\n" + LENGTH.encode() + b"\n\n" + PICTURE,
    "header-without-colon": head(200, LENGTH, "this is no header") + PICTURE,
    "header-folded": head(200, LENGTH, "X-Folded: one\r\n two") + PICTURE,
    "header-of-nul": head(200, LENGTH, "X-Nul: a\0b") + PICTURE,
    "header-of-any-bytes": b"HTTP/1.1 200 OK\r\nX-Any: \xff\xfe\x80\r\n" + LENGTH.encode() + b"\r\n\r\n" + PICTURE,
    "header-of-1-mb": head(200, LENGTH, "X-Long: " + "x" * 1_000_000) + PICTURE,
    "headers-10000": head(200, LENGTH, *[f"X-{number}: {number}" for number in range(10_000)]) + PICTURE,
    "continues-100": b"HTTP/1.1 100 Continue\r\n\r\n" * 100 + head(200, LENGTH) + PICTURE,
    "early-hints": b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n" + head(200, LENGTH) + PICTURE,
    "upgrade": head(101, "Upgrade: websocket", "Connection: upgrade"),
    "two-answers": head(200, LENGTH) + PICTURE + head(200, "Content-Length: 6") + b"forged",
    "part": head(206, f"Content-Range: bytes 0-{len(HALF) - 1}/{len(PICTURE)}", f"Content-Length: {len(HALF)}") + HALF,
    "type-of-html": head(200, LENGTH, "Content-Type: text/html") + PICTURE,
}


async def raw(request: Request, client: Client, _: State) -> None:
    """`/raw/NAME`: one of `RAW`."""
    await client.send(RAW[request.rest])
    client.close()


async def slow_head(request: Request, client: Client, _: State) -> None:
    """`/slow-head?seconds=S`: nothing for so long, then a picture."""
    await client.wait(request.number_of("seconds", 3600))
    await client.respond(200, PICTURE)


async def gated(request: Request, client: Client, state: State) -> None:
    """`/gated/NAME?file=FILE`: nothing until the folder has this file, then a picture."""
    while not (state.folder / request.text("file")).exists():
        await client.wait(0.01)
    await png(request, client, state)


async def drip(request: Request, client: Client, _: State) -> None:
    """`/drip?every=S`: a body of which a byte comes each S seconds, and never the last."""
    await client.send(head(200, "Content-Length: 1000000", *more(request)))
    while True:
        await client.send(b"x")
        await client.wait(request.number_of("every", 0.05))


async def drip_head(request: Request, client: Client, _: State) -> None:
    """`/drip-head?every=S`: headers of which a byte comes each S seconds, without end."""
    await client.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        for byte in b"X-Slow: yes\r\n":
            await client.send(bytes([byte]))
            await client.wait(request.number_of("every", 0.05))


async def stall(_request: Request, client: Client, _: State) -> None:
    """`/stall`: half a picture, then nothing."""
    await client.send(head(200, LENGTH) + HALF)
    await client.wait(None)


async def large(request: Request, client: Client, _: State) -> None:
    """`/large?bytes=N&how=length|chunked|close`: a body of so many bytes, 200 MB where nothing is said."""
    left, how = int(request.number_of("bytes", 200_000_000)), request.text("how", "length")
    line = {
        "length": [f"Content-Length: {left}"],
        "chunked": ["Transfer-Encoding: chunked"],
        "close": ["Connection: close"],
    }[how]
    await client.send(head(200, *line))
    while left > 0:
        piece = PIECE[:left]
        await client.send(chunk(piece) if how == "chunked" else piece)
        left -= len(piece)
    if how == "chunked":
        await client.send(chunk(b""))
    if how == "close":
        client.close()


async def endless(request: Request, client: Client, _: State) -> None:
    """`/endless/head`, `/endless/header`, `/endless/continue`, `/endless/body`, `/endless/chunks`, `/endless/trailers`,
    `/endless/extension`.
    """
    begin, again = {
        "head": (b"HTTP/1.1 200 OK\r\n", b"X-Header: " + b"x" * 100 + b"\r\n"),
        "header": (b"HTTP/1.1 200 OK\r\nX-Header: ", b"x" * 1_000),
        "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
        "body": (head(200), PIECE),
        "chunks": (head(200, "Transfer-Encoding: chunked"), chunk(bytes(100)) * 100),
        "trailers": (
            head(200, "Transfer-Encoding: chunked") + chunk(PICTURE) + b"0\r\n",
            b"X-Trailer: " + b"x" * 100 + b"\r\n",
        ),
        "extension": (head(200, "Transfer-Encoding: chunked") + b"5;name=", b"x" * 1_000),
    }[request.rest]
    await client.send(begin)
    while True:
        await client.send(again * (1 + 10_000 // len(again)))
        await asyncio.sleep(0.001)


@lru_cache(maxsize=4)
def zeros(encoding: str, size: int) -> bytes:
    """So many zeros, small."""
    return packed(bytes(1_000_000), size // 1_000_000, encoding)


async def bomb(request: Request, client: Client, _state: State) -> None:
    """`/bomb/gzip?bytes=N&layers=1`: a body that grows to 200 MB or N bytes when it is decompressed; packed several
    times over with more layers.
    """
    body, layers = (
        zeros(request.rest, int(request.number_of("bytes", 200_000_000))),
        int(request.number_of("layers", 1)),
    )
    for _ in range(layers - 1):
        body = gzip.compress(body)
    await client.respond(200, body, "Content-Encoding: " + ", ".join([request.rest] + ["gzip"] * (layers - 1)))


async def reset(request: Request, client: Client, _: State) -> None:
    """`/reset` before the status, `/reset/head` inside the head, `/reset/body` inside the body."""
    sent = {"head": b"HTTP/1.1 200 OK\r\nContent-Ty", "body": head(200, LENGTH) + HALF}.get(request.rest, b"")
    if sent:
        await client.send(sent)
        await client.wait(0.05)  # a reset would overtake it
    client.reset()


async def dies(request: Request, client: Client, _: State) -> None:
    """`/dies/NAME?how=close|reset`: a picture, and the promise of a connection that stays; then it is gone."""
    await client.respond(200, PICTURE, "Connection: keep-alive", "Keep-Alive: timeout=60")
    if request.text("how") == "reset":
        await client.wait(0.05)
        client.reset()
    client.close()


async def refuses_reuse(request: Request, client: Client, _: State) -> None:
    """`/refuses-reuse/NAME`: a picture; at the second request of a connection it is closed without an answer."""
    if client.requests > 1:
        client.close()
    await client.respond(200, picture(request.rest), *more(request))


async def error_page(_request: Request, client: Client, _: State) -> None:
    """`/unfinished-error`: 500, with a body that never ends."""
    await client.send(head(500, "Content-Length: 100000000") + HTML)
    await client.wait(None)


async def endless_redirect(_request: Request, client: Client, _: State) -> None:
    """`/redirect-with-a-body`: a redirect whose body never ends."""
    await client.send(head(302, "Location: /png/behind", "Content-Length: 100000000") + HTML)
    await client.wait(None)


ANSWERS = {
    "raw": raw,
    "slow-head": slow_head,
    "gated": gated,
    "drip": drip,
    "drip-head": drip_head,
    "stall": stall,
    "large": large,
    "endless": endless,
    "bomb": bomb,
    "reset": reset,
    "dies": dies,
    "refuses-reuse": refuses_reuse,
    "unfinished-error": error_page,
    "redirect-with-a-body": endless_redirect,
}
