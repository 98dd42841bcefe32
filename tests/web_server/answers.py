"""Answers as they should be: pictures, statuses, redirects, encodings, a demo web."""

import gzip
import hashlib
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.parser import Parser
from email.utils import format_datetime
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from altalign.demo.archive import chunked, read_index, read_record
from tests.support.marks import packet
from tests.support.pictures import chunk
from tests.web_server.exchange import Client, Request, State, head
from tests.web_server.pictures import picture

HTML = b"<!DOCTYPE html><title>Not here any more</title><p>This picture is not here any more."


def more(request: Request) -> list[str]:
    """The headers that the query asks for: `header=NAME:%20VALUE`."""
    return request.all("header")


@lru_cache(maxsize=64)
def drawn(name: str, bytes_at_least: int) -> bytes:
    """A picture, kept."""
    return picture(name, bytes_at_least=bytes_at_least)


async def png(request: Request, client: Client, _: State) -> None:
    """`/png/NAME?bytes=N&mining=DMI`: a picture, of so many bytes or more, with a value of plus:DataMining in it."""
    data = drawn(request.rest, int(request.number_of("bytes", 0)))
    if mining := request.text("mining"):
        data = (
            data[:33]
            + chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + packet(f'plus:DataMining="{mining}"'))
            + data[33:]
        )
    await client.respond(200, data, "Content-Type: image/png", *more(request))


async def file(request: Request, client: Client, state: State) -> None:
    """`/file/NAME`: a file of the folder."""
    path = state.folder / request.rest
    await client.respond(200, path.read_bytes(), *more(request)) if path.is_file() else await not_found(
        request, client, state
    )


async def not_found(request: Request, client: Client, _: State) -> None:
    """404."""
    await client.respond(404, b"<title>Not found</title>", "Content-Type: text/html", *more(request))


async def status(request: Request, client: Client, _: State) -> None:
    """`/status/CODE?retry-after=SECONDS&form=date`: a status, with a body where it may have one."""
    code = int(request.rest)
    await client.respond(
        code, b"" if code in (204, 304) else HTML, "Content-Type: text/html", *retry_after(request), *more(request)
    )


def retry_after(request: Request) -> list[str]:
    """A Retry-After of the query's `retry-after`, in seconds or as a date."""
    value = request.text("retry-after")
    if value and request.text("form") == "date":
        value = format_datetime(datetime.now(UTC) + timedelta(seconds=float(value)), usegmt=True)
    return [f"Retry-After: {value}"] if value else []


async def flaky(request: Request, client: Client, state: State) -> None:
    """`/flaky/NAME?codes=429,reset,503`: at each request what is next, then a picture.

    `hang`, `reset`, `close` and `cut` are no codes.
    """
    codes = request.text("codes").split(",")
    state.seen[request.target] += 1
    if state.seen[request.target] > len(codes):
        await png(request, client, state)
        return
    match codes[state.seen[request.target] - 1]:
        case "hang":
            await client.wait(None)
        case "reset":
            client.reset()
        case "close":
            client.close()
        case "cut":
            await client.send(head(200, f"Content-Length: {len(HTML) + 1}") + HTML)
            client.close()
        case code:
            await client.respond(int(code), b"later", *retry_after(request), *more(request))


async def redirect(request: Request, client: Client, state: State) -> None:
    """`/redirect/N?code=302`: N redirects, then a picture."""
    left = int(request.rest)
    if left == 0:
        await png(request, client, state)
        return
    code = request.text("code", "302")
    await client.respond(int(code), b"", f"Location: /redirect/{left - 1}?code={code}", *more(request))


async def redirect_to(request: Request, client: Client, _: State) -> None:
    """`/redirect-to?url=URL&code=302`: a redirect to any address, whose bytes are sent as they are; without `url` to
    none.
    """
    location = [f"Location: {request.text('url')}"] if request.all("url") else []
    await client.respond(int(request.text("code", "302")), b"elsewhere", *location, *more(request))


async def loop(request: Request, client: Client, _: State) -> None:
    """`/loop`: a redirect to itself. `/loop/ping` and `/loop/pong`: to each other."""
    await client.respond(
        302, b"", "Location: " + {"ping": "/loop/pong", "pong": "/loop/ping"}.get(request.rest, "/loop")
    )


async def html(request: Request, client: Client, _: State) -> None:
    """`/html`: a page where a picture should be, with 200."""
    await client.respond(200, HTML, "Content-Type: text/html", *more(request))


async def encoded(request: Request, client: Client, _: State) -> None:
    """`/encoded/gzip`, `/encoded/deflate`, `/encoded/raw-deflate`, `/encoded/x-gzip`, `/encoded/identity`: a picture in
    a content encoding.
    """
    squeeze: dict[str, Callable[[bytes], bytes]] = {
        "gzip": gzip.compress,
        "x-gzip": gzip.compress,
        "deflate": zlib.compress,
        "raw-deflate": _raw_deflate,
    }
    body = squeeze.get(request.rest, bytes)(drawn(request.text("name"), 0))
    await client.respond(200, body, f"Content-Encoding: {request.rest.removeprefix('raw-')}", *more(request))


def _raw_deflate(data: bytes) -> bytes:
    """What some servers send as deflate: without the header of zlib."""
    squeeze = zlib.compressobj(wbits=-15)
    return squeeze.compress(data) + squeeze.flush()


async def in_chunks(request: Request, client: Client, _: State) -> None:
    """`/chunked/NAME`: a picture in chunks of 100 bytes."""
    await client.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(drawn(request.rest, 0), 100))


async def until_close(request: Request, client: Client, _: State) -> None:
    """`/until-close/NAME`: a picture without a length, which ends where the connection does."""
    await client.send(b"HTTP/1.0 200 OK\r\n\r\n" + drawn(request.rest, 0))
    client.close()


async def cookies(request: Request, client: Client, _: State) -> None:
    """`/cookies/NAME`: a picture and a cookie; without one where a cookie comes back."""
    if "cookie" in request.headers:
        await client.respond(403, b"a cookie")
    else:
        await client.respond(200, drawn(request.rest, 0), "Set-Cookie: seen=1; Path=/")


def of_demo(folder: Path) -> Callable[[Request], tuple[object, ...] | None]:
    """Answers of a demo web, by host and path: arguments of `respond`, or None where it has no such host."""
    captures = {}
    for capture in sorted(read_index(folder / "index.cdxj"), key=lambda capture: (capture.file, capture.offset)):
        captures.setdefault(capture.url.partition("://")[2], capture)
    hosts = {name.partition("/")[0] for name in captures}

    def answer(request: Request) -> tuple[object, ...] | None:
        if request.host not in hosts:
            return None
        capture = captures.get(request.host + request.target)
        if capture is None:
            return (404, b"<title>Not found</title>")
        record, block = read_record(folder, capture)
        if "WARC-Type: response" not in record:
            return (200, block, f"Content-Type: {capture.media_type}")
        message, _, body = block.partition(b"\r\n\r\n")
        headers = Parser().parsestr(message.decode("latin-1").partition("\r\n")[2]).items()
        return (
            capture.status,
            body,
            *(f"{name}: {value}" for name, value in headers if name not in ("Content-Length", "Transfer-Encoding")),
        )

    return answer


def quoted(url: str) -> str:
    """A URL as the value of a query's field."""
    return quote(url, safe="", errors="surrogateescape")


def digest(name: str) -> str:
    """SHA-256 of the picture of a name, in hex."""
    return hashlib.sha256(picture(name)).hexdigest()


ANSWERS = {
    "png": png,
    "file": file,
    "status": status,
    "flaky": flaky,
    "redirect": redirect,
    "redirect-to": redirect_to,
    "loop": loop,
    "html": html,
    "encoded": encoded,
    "chunked": in_chunks,
    "until-close": until_close,
    "cookies": cookies,
}
