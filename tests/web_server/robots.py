"""robots.txt and tdmrep.json of each kind: those of the hosts NAME.robots.anything and NAME.tdmrep.anything."""

import gzip
from collections.abc import Awaitable, Callable

from tests.web_server.exchange import Client, Request, State, head, packed

DENY = b"User-agent: *\nDisallow: /\n"
ALLOW = b"User-agent: *\nDisallow:\n"
COMMENT = b"# " + b"x" * 97 + b"\n"

# What is sent with status 200.
TEXTS = {
    "allow": ALLOW,
    "deny": DENY,
    "deny-us": b"User-agent: altalign\nDisallow: /\n\nUser-agent: *\nDisallow:\n",
    "deny-others": b"User-agent: *\nDisallow: /\n\nUser-agent: altalign\nDisallow:\n",
    "deny-folder": b"User-agent: *\nDisallow: /png/private\nAllow: /png/private/but-not-this\n",
    "deny-pattern": b"User-agent: *\nDisallow: /*.gif$\n",
    "deny-query": b"User-agent: *\nDisallow: /*?*secret=\n",
    "no-newline": b"User-agent: *\nDisallow: /",
    "carriage-returns": b"User-agent: *\rDisallow: /\r",
    "with-mark": b"\xef\xbb\xbfUser-agent: *\nDisallow: /\n",
    "upper-case": b"USER-AGENT: *\nDISALLOW: /\n",
    "spaces": b"  User-agent :  *  \n  Disallow :  /  # all\n",
    "empty": b"",
    "html": b"<!DOCTYPE html><title>Welcome</title><p>User-agent: * Disallow: /",
    "binary": bytes(range(256)) * 40,
    "latin-1": b"# r\xe8gles\nUser-agent: *\nDisallow: /\n",
    "late": COMMENT * 6_000 + DENY,  # behind 600 kB of comments: more than anybody has to read
    "soon": COMMENT * 4_000 + DENY,  # behind 400 kB
    "long-line": b"User-agent: *\nDisallow: /" + b"a" * 300_000 + b"\nDisallow: /\n",
    "usage": b"User-agent: *\nAllow: /\nContent-Usage: train-ai=n\n",
    "usage-of-folder": b"User-agent: *\nContent-Usage: /png/private train-ai=n\n",
    "usage-malformed": b"User-agent: *\nContent-Usage: / train-ai: n\nContent-Usage: png train-ai=n\n",
    "usage-search": b"User-agent: *\nContent-Usage: search=n, train-ai=y\n",
    "signal": b"User-agent: *\nContent-Signal: search=yes,ai-train=no\nAllow: /\n",
    "licence": b"License: https://a.test/license.xml\n\nUser-agent: *\nAllow: /\n",
    "crawl-delay": b"User-agent: *\nCrawl-delay: 0.5\nDisallow: /nothing\n",
    "crawl-delay-of-a-day": b"User-agent: *\nCrawl-delay: 86400\n",
}
# tdmrep.json, with status 200.
RESERVATIONS = {
    "all": b'[{"location": "/", "tdm-reservation": 1}]',
    "folder": b'[{"location": "/private/", "tdm-reservation": 1}]',
    "free": b'[{"location": "/png/*", "tdm-reservation": 0}, {"location": "/", "tdm-reservation": 1}]',
    "broken": b'[{"location": "/", "tdm-reservation": 1}',
    "deep": b"[" * 100_000,
    "hidden": b'[{"location": "/", "tdm-reservation": 1}]',
}
BOMB = packed(COMMENT * 10_000, 100, "gzip")  # 100 MB
# What is sent with another status.
STATUSES = {
    "none": 404,
    "gone": 410,
    "unauthorised": 401,
    "forbidden": 403,
    "too-many": 429,
    "error": 500,
    "unavailable": 503,
}


async def answer(request: Request, client: Client, state: State) -> None:
    """robots.txt of the host that is asked."""
    kind, _, domain = request.host.partition(".")
    if (kind, domain.partition(".")[0]) == ("hidden", "tdmrep"):
        await client.respond(200, b"User-agent: *\nDisallow: /.well-known/\n")
        return
    kind = kind if domain.partition(".")[0] == "robots" else ""
    if kind in TEXTS:
        await client.respond(200, TEXTS[kind], "Content-Type: text/plain")
    elif kind in STATUSES:
        await client.respond(STATUSES[kind], DENY)
    elif kind in ANSWERS:
        await ANSWERS[kind](request, client, state)
    else:
        await client.respond(404, b"none")


async def reservations(request: Request, client: Client, state: State) -> None:
    """tdmrep.json of the host that is asked."""
    kind, _, domain = request.host.partition(".")
    kind = kind if domain.partition(".")[0] == "tdmrep" else ""
    if kind in RESERVATIONS:
        await client.respond(200, RESERVATIONS[kind], "Content-Type: application/json")
    elif kind in ("silent", "reset"):
        await ANSWERS["hang" if kind == "silent" else kind](request, client, state)
    else:
        await client.respond(500 if kind == "error" else 404, b"none")


async def _hang(_request: Request, client: Client, _state: State) -> None:
    await client.wait(None)


async def _reset(_request: Request, client: Client, _state: State) -> None:
    client.reset()


async def _drip(_request: Request, client: Client, _state: State) -> None:
    await client.send(head(200, "Content-Length: 1000000"))
    while True:
        await client.send(b"#")
        await client.wait(0.05)


async def _stall(_request: Request, client: Client, _state: State) -> None:
    await client.send(head(200, f"Content-Length: {2 * len(DENY)}") + DENY)
    await client.wait(None)


async def _head_without_end(_request: Request, client: Client, _state: State) -> None:
    await client.send(head(200)[:-2])
    while True:
        await client.send(b"X-Header: " + b"x" * 100 + b"\r\n")


async def _large(_request: Request, client: Client, _state: State) -> None:
    await client.send(head(200, "Content-Length: 1000000000"))
    for _ in range(10_000):
        await client.send(COMMENT * 1_000)


async def _endless(_request: Request, client: Client, _state: State) -> None:
    await client.send(head(200))
    while True:
        await client.send(COMMENT * 100)


async def _cut(_request: Request, client: Client, _state: State) -> None:
    await client.send(head(200, f"Content-Length: {len(DENY) + 100}") + DENY)
    client.close()


async def _redirected(_request: Request, client: Client, _state: State) -> None:
    await client.respond(301, b"", "Location: /file/robots-elsewhere.txt")


async def _looping(_request: Request, client: Client, _state: State) -> None:
    await client.respond(302, b"", "Location: /robots.txt")


async def _to_another_host(request: Request, client: Client, _state: State) -> None:
    port = request.headers["host"].rpartition(":")[2]
    await client.respond(302, b"", f"Location: http://deny.robots.test:{port}/robots.txt")


async def _to_metadata(_request: Request, client: Client, _state: State) -> None:
    await client.respond(302, b"", "Location: http://169.254.169.254/robots.txt")


async def _gzip(_request: Request, client: Client, _state: State) -> None:
    await client.respond(200, gzip.compress(DENY), "Content-Encoding: gzip")


async def _bomb(_request: Request, client: Client, _state: State) -> None:
    await client.respond(200, BOMB, "Content-Encoding: gzip")


async def _flaky(request: Request, client: Client, state: State) -> None:
    """503 the first time, then a ban."""
    state.seen[request.host] += 1
    if state.seen[request.host] == 1:
        await client.respond(503, b"later", "Retry-After: 0")
    else:
        await client.respond(200, DENY)


ANSWERS: dict[str, Callable[[Request, Client, State], Awaitable[None]]] = {
    "hang": _hang,
    "reset": _reset,
    "drip": _drip,
    "stall": _stall,
    "head-without-end": _head_without_end,
    "large": _large,
    "endless": _endless,
    "cut": _cut,
    "redirect": _redirected,
    "loop": _looping,
    "elsewhere": _to_another_host,
    "metadata": _to_metadata,
    "gzip": _gzip,
    "bomb": _bomb,
    "flaky": _flaky,
}
