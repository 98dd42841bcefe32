"""One request over HTTP/1.1, and lookups of names. No other module knows the HTTP library.

Connections go to the addresses that were checked, never to a name. No cookies are kept, no proxy is used (see
`addresses.unused_proxies`), and ~/.netrc is not read.
"""

import asyncio
import errno
import os
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from altalign.data.reasons import DropReason
from altalign.filters.reservations import of_headers
from altalign.pipelines.read.coding import decoded
from altalign.pipelines.web.addresses import Addresses
from altalign.pipelines.web.calls import HEADERS_READ, Answer, Request, Trouble, utc_now
from altalign.pipelines.web.robots import objection
from altalign.pipelines.web.schedule import Budget
from altalign.pipelines.web.signing import Signer

LINE_BYTES_AT_MOST = 32_768  # of a header
HEADERS_AT_MOST = 256
ADDRESSES_AT_MOST = 4  # of a host; they are tried in parallel if the first does not answer soon
PEERS_AT_MOST = 20_000
IDLE_S = 2.0  # how long an idle connection is kept
# of an unwanted body: reading it costs less than another connection
DRAINED_BYTES_AT_MOST, DRAINED_S_AT_MOST = 16_384, 0.5
READ_AHEAD_BYTES = 131_072  # of a body that waits for the budget; up to twice this is read
FIRST_SHARE_BYTES = 262_144  # of the budget, before a body is read

NAME_KEPT_S = 300  # the system reports no time to live; most on the web are between a minute and an hour
NAMES_KEPT = 20_000
LOOKUP_S = 60.0  # longer than any resolver takes by default
# Most lookups take milliseconds, those at dead name servers up to 30 s, and none can be ended. Measured with 2,000
# names, half of them dead for 10 s: the last good image came after 61 s with 192 at once, after 14 s with 512, for 8 MB
# more. Each lookup may have a file open: `Client` has fewer under way where few files may be open.
LOOKUPS_AT_ONCE = 512

NOT_THERE = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})

# The addresses of a host, at least one. It raises an OSError if there are none (a `gaierror` of NOT_THERE), or the
# lookup failed.
Resolve = Callable[[str], Awaitable[Sequence[str]]]


async def system_addresses(host: str) -> Sequence[str]:
    """The addresses that the system has for a name, looked up in a thread: `getaddrinfo` cannot be interrupted.

    The thread is a daemon, so one that hangs at a dead name server (30 s by default) keeps no process alive.
    """
    result = Future[list[str]]()
    result.set_running_or_notify_cancel()  # whoever waits may leave, and the thread still has where to put it

    def look_up() -> None:
        try:
            entries = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
            result.set_result(list(dict.fromkeys(str(entry[4][0]) for entry in entries)))
        except OSError as error:
            result.set_exception(error)
        except UnicodeError:
            result.set_exception(socket.gaierror(socket.EAI_NONAME, "no name"))

    try:
        threading.Thread(target=look_up, name="altalign-names", daemon=True).start()
    except RuntimeError:  # this machine has no more threads
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from None
    return await asyncio.wrap_future(result)


# Requests -------------------------------------------------------------------------------------------------------------

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

# the request of the current asyncio task, for the callbacks of the library
_REQUEST: ContextVar[Request] = ContextVar("request")


class _RefusedError(OSError):
    """None of the host's addresses may be reached."""


class Transport:
    """Makes requests; belongs to one loop."""

    def __init__(
        self,
        resolve: Resolve | None,
        addresses: Addresses,
        budget: Budget,
        user_agent: str,
        connections_at_most: int,
        signer: Signer | None = None,
    ):
        """Must be called in the loop. With `connections_at_most` connections open, none is kept for later."""
        self._addresses, self._budget, self._connections_at_most = addresses, budget, connections_at_most
        self._sockets = set[socket.socket]()  # also some that are closed by now
        self._peers = dict[str, str]()  # the address that was connected to last, by origin
        self._resolver = _CheckedResolver(resolve or system_addresses, addresses, connections_at_most)
        self._user_agent, self._signer = user_agent, signer
        self._keeping = self._session({}, keepalive_timeout=IDLE_S)
        self._closing = self._session({"Connection": "close"}, force_close=True)

    def _session(self, headers: dict[str, str], **connector: Any) -> aiohttp.ClientSession:
        trace = aiohttp.TraceConfig()
        trace.on_dns_cache_hit.append(self._resolver.share)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=self._resolver,
                ttl_dns_cache=NAME_KEPT_S,
                dns_cache_max_size=NAMES_KEPT,
                limit=0,  # the schedule has limits
                socket_factory=self._socket,
                ssl=_tls(),
                **connector,
            ),
            headers={"User-Agent": self._user_agent, "Accept": "*/*", "Accept-Encoding": "identity", **headers},
            cookie_jar=aiohttp.DummyCookieJar(),
            # the schedule ends requests that take too long
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
            auto_decompress=False,
            trust_env=False,
            requote_redirect_url=False,
            max_line_size=LINE_BYTES_AT_MOST,
            max_field_size=LINE_BYTES_AT_MOST,
            max_headers=HEADERS_AT_MOST,
            read_bufsize=READ_AHEAD_BYTES,
            middlewares=(_once,),
            trace_configs=[trace],
        )

    def _socket(self, info: Any) -> socket.socket:
        """The last check, of the address that is connected to. Literal addresses come here without being resolved."""
        family, kind, proto, _, (address, port, *_) = info
        request = _REQUEST.get()
        request.address = address
        if refusal := self._addresses.refusal(address, port):
            raise _RefusedError(f"{address}:{port} ({refusal}) may not be reached (fetch.allow_addresses)")
        opened = socket.socket(family=family, type=kind, proto=proto)
        if len(self._sockets) >= self._connections_at_most:
            self._sockets = _open(self._sockets)
        self._sockets.add(opened)
        if len(self._peers) >= PEERS_AT_MOST:
            self._peers.clear()
        self._peers[request.target.origin] = address
        return opened

    async def close(self) -> None:
        """Closes all connections and lookups."""
        await self._keeping.close()
        await self._closing.close()
        while _open(self._sockets):
            await asyncio.sleep(0)  # they close in the loop's next turns

    async def ask(self, request: Request) -> Answer:
        """Makes a request and returns its answer, which may be a redirect.

        Raises:
            Trouble: there is no answer, or its body is unusable.
        """
        _REQUEST.set(request)
        request.keeps_alive = request.keeps_alive and len(self._sockets) < self._connections_at_most
        session = self._keeping if request.keeps_alive else self._closing
        try:
            headers = self._signer.headers(request.target) if self._signer else None
            url = URL(request.target.url, encoded=True)
            response = await session.get(url, headers=headers, allow_redirects=False)
            try:
                return await self._answer(request, response)
            finally:
                response.close()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failed(error, request) from None

    async def _answer(self, request: Request, response: aiohttp.ClientResponse) -> Answer:
        request.status, length, most = response.status, response.content_length, request.bytes_at_most
        request.address = request.address or self._peers.get(request.target.origin)  # of a kept connection
        answer = Answer(response.status, b"", {name: response.headers.getall(name, []) for name in HEADERS_READ})
        if response.status != 200:
            if request.keeps_alive and length is not None and length <= DRAINED_BYTES_AT_MOST:
                # also a timeout: a body that does not come costs the connection, not the answer
                with suppress(aiohttp.ClientError, OSError):
                    async with asyncio.timeout(DRAINED_S_AT_MOST):
                        await response.content.read()
            return answer
        if request.listener:
            said = of_headers(answer.headers, request.listener.token, "image header", utc_now())
            request.said = [*(request.said or ()), *said]
            if trouble := objection(request.said, request.listener):
                raise trouble
        if length is not None and length > most and not request.is_robots:
            raise Trouble(DropReason.HTTP_TOO_LARGE, f"Content-Length {length:,}")
        encoding = ",".join(response.headers.getall("Content-Encoding", []))
        body = await self._body(request, response.content, length, is_encoded=bool(encoding))
        if encoding:
            body = decoded(body, encoding, most)
            if len(body) > most and not request.is_robots:
                detail = f"more than {most:,} bytes, decoded from {request.bytes:,}"
                raise Trouble(DropReason.HTTP_TOO_LARGE, detail)
            body = body[:most]
        if not body and not request.is_robots:
            raise Trouble(DropReason.HTTP_BROKEN, "empty body")
        return answer._replace(body=body)

    async def _body(
        self, request: Request, content: aiohttp.StreamReader, length: int | None, *, is_encoded: bool
    ) -> bytes:
        """Reads the body as sent, within the request's share of the budget."""
        most, body = request.bytes_at_most, BytesIO()
        needed = min(length or most, most) + most * is_encoded
        await self._budget.take(request, min(FIRST_SHARE_BYTES, needed))
        async for part in content.iter_any():
            request.bytes += len(part)
            if request.bytes > most and not request.is_robots:
                raise Trouble(DropReason.HTTP_TOO_LARGE, f"more than {most:,} bytes")
            if request.share < needed and (is_encoded or request.bytes > request.share):
                await self._budget.take(request, needed - request.share)
            body.write(part)
            if request.bytes > most:
                body.truncate(most)
                break
        return body.getvalue()


def _open(sockets: set[socket.socket]) -> set[socket.socket]:
    return {each for each in sockets if each.fileno() >= 0}


async def _once(
    request: aiohttp.ClientRequest, handler: Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]]
) -> aiohttp.ClientResponse:
    """Keeps the library from silently asking again: a connection may be gone because of the request, nobody knows."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise Trouble(DropReason.HTTP_BROKEN, _in_words(error)) from None


class _CheckedResolver(AbstractResolver):
    """Finds the addresses of a name that may be reached; requests for a name share the lookup, and it is kept."""

    def __init__(self, resolve: Resolve, addresses: Addresses, at_once: int):
        self._resolve, self._addresses = resolve, addresses
        self._turn, self._queued = asyncio.Semaphore(min(at_once, LOOKUPS_AT_ONCE)), set[str]()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        request = _REQUEST.get()
        self._queued.add(host)
        try:
            with request.held_up():  # no server is to blame while others are looked up
                await self._turn.acquire()
        finally:
            self._queued.discard(host)
        try:
            async with asyncio.timeout(LOOKUP_S):
                addresses = await self._resolve(host.rstrip("."))
        finally:
            self._turn.release()
        refusals = {address: self._addresses.refusal(address, port) for address in addresses}
        if all(refusals.values()):
            request.address = next(iter(addresses), None)
            refused = ", ".join(f"{address} ({refusal})" for address, refusal in refusals.items()) or "no address"
            raise _RefusedError(f"{host} is {refused}, which may not be reached (fetch.allow_addresses)")
        results = list[ResolveResult]()
        for address in [address for address, refusal in refusals.items() if not refusal][:ADDRESSES_AT_MOST]:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            flags = socket.AI_NUMERICHOST
            results.append(ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=flags))
        return results

    async def share(self, *call: Any) -> None:
        """Told by the library, in its task, of a request whose host another one looks up, or has looked up."""
        host = call[-1].host
        _REQUEST.get().waits_with = lambda: host in self._queued

    async def close(self) -> None:
        """Does nothing: it holds nothing."""


def _failed(error: Exception, request: Request) -> Trouble:
    """Translates an error of the library for the caller."""
    target = request.target
    where = f"{request.address or target.host}:{target.port}"
    cause: Any = getattr(error, "os_error", None) or error
    unreachable = DropReason.HTTP_UNREACHABLE
    if isinstance(cause, _RefusedError):
        return Trouble(DropReason.HTTP_REFUSED, str(cause))
    if isinstance(cause, socket.gaierror):
        detail = f"{target.host}: {cause.strerror or cause}"
        return Trouble(unreachable, detail, is_certain=cause.errno in NOT_THERE)
    if isinstance(cause, OSError) and cause.errno in _OURS:
        return Trouble(unreachable, f"this machine: {_in_words(cause)}", is_ours=True)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = getattr(error.certificate_error, "verify_message", "") or error.certificate_error
        return Trouble(unreachable, f"{where}: certificate: {why}")
    if isinstance(error, aiohttp.ClientConnectorError):
        tls = "TLS: " if isinstance(error, aiohttp.ClientSSLError) else ""
        return Trouble(unreachable, f"{where}: {tls}{_in_words(cause)}")
    if isinstance(error, (aiohttp.InvalidURL, UnicodeError)):
        return Trouble(unreachable, f"{target.host}: no name that can be looked up", is_certain=True)
    if isinstance(error, TimeoutError):  # of a lookup, which is ended before the request where it takes very long
        return Trouble(DropReason.HTTP_TIMEOUT, f"{target.host}: no address")
    detail = _in_words(error)
    if isinstance(error, aiohttp.ClientPayloadError):
        detail = f"cut or broken after {request.bytes:,} bytes: {_in_words(error.__cause__ or error)}"
    return Trouble(DropReason.HTTP_BROKEN, detail)


def _in_words(error: BaseException) -> str:
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed without an answer"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"no HTTP: {error.message or error}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


@cache
def _tls() -> ssl.SSLContext:
    """The TLS settings of this process. If the system has no certificates (slim containers), certifi's are used."""
    context = ssl.create_default_context()
    folder = ssl.get_default_verify_paths().capath
    if not context.get_ca_certs() and not (folder and any(Path(folder).iterdir())):
        with suppress(ImportError):
            import certifi

            context.load_verify_locations(certifi.where())
    return context
