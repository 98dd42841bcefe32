"""Makes one request over HTTP/1.1. No other module knows the HTTP library, of which only the public interface is used.

Connections go to the addresses that were checked, never to a name. No cookies are kept, no proxy is used (see
`policy.proxies`), and ~/.netrc is not read.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
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
from altalign.pipelines.read.coding import CodingError, decoded
from altalign.pipelines.web.http.names import NOT_THERE, Names
from altalign.pipelines.web.http.request import HEADERS_READ, Answer, Request, RequestError
from altalign.pipelines.web.policy.addresses import Addresses
from altalign.pipelines.web.schedule.budget import Budget

LINE_BYTES_AT_MOST = 32_768  # of a header
HEADERS_AT_MOST = 256
ADDRESSES_AT_MOST = 4  # of a host; they are tried in parallel if the first does not answer soon
PEERS_AT_MOST = 20_000
IDLE_S = 2.0  # how long an idle connection is kept
# of an unwanted body: reading it costs less than another connection
DRAINED_BYTES_AT_MOST, DRAINED_S_AT_MOST = 16_384, 0.5
READ_AHEAD_BYTES = 131_072  # of a body that waits for the budget; up to twice this is read
FIRST_SHARE_BYTES = 262_144  # of the budget, before a body is read

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

# the request of the current asyncio task, for the callbacks of the library
_REQUEST: ContextVar[Request] = ContextVar("request")


class _RefusedError(OSError):
    """None of the host's addresses may be reached."""


class _GoneError(Exception):
    """The connection was lost before an answer came; the library would silently ask again."""


class Transport:
    """Makes requests; belongs to one loop."""

    def __init__(
        self, *, names: Names, addresses: Addresses, budget: Budget, user_agent: str, connections_at_most: int
    ):
        """Must be called in the loop. With `connections_at_most` connections open, none is kept for later."""
        self._addresses, self._budget, self._connections_at_most = addresses, budget, connections_at_most
        self._sockets = set[socket.socket]()  # also some that are closed by now
        self._peers = dict[str, str]()  # the address that was connected to last, by origin
        self._resolver, self._user_agent = _CheckedResolver(names, addresses), user_agent
        self._keeping = self._session({}, keepalive_timeout=IDLE_S)
        self._closing = self._session({"Connection": "close"}, force_close=True)

    def _session(self, headers: dict[str, str], **connector: Any) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=self._resolver,
                use_dns_cache=False,  # Names keeps them
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

    @property
    def connections(self) -> int:
        """How many connections are open, including idle ones."""
        return len(_open(self._sockets))

    async def close(self) -> None:
        """Closes all connections."""
        await self._keeping.close()
        await self._closing.close()
        while self.connections:
            await asyncio.sleep(0)  # they close in the loop's next turns

    async def ask(self, request: Request) -> Answer:
        """Makes a request and returns its answer, which may be a redirect.

        Raises:
            RequestError: there is no answer, or its body is unusable.
        """
        _REQUEST.set(request)
        request.keeps_alive = request.keeps_alive and len(self._sockets) < self._connections_at_most
        session = self._keeping if request.keeps_alive else self._closing
        try:
            response = await session.get(URL(request.target.url, encoded=True), allow_redirects=False)
            try:
                return await self._answer(request, response)
            finally:
                response.close()
        except _GoneError as gone:
            # a kept connection may have been closed meanwhile, or because of the request: nobody knows
            raise RequestError(DropReason.HTTP_BROKEN, _in_words(gone.__cause__)) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failed(error, request) from None

    async def _answer(self, request: Request, response: aiohttp.ClientResponse) -> Answer:
        request.status = response.status
        request.address = request.address or self._peers.get(request.target.origin)  # of a kept connection
        answer = Answer(response.status, b"", {name: response.headers.getall(name, []) for name in HEADERS_READ})
        length = response.content_length
        if response.status != 200:
            if request.keeps_alive and length is not None and length <= DRAINED_BYTES_AT_MOST:
                # also a timeout: a body that does not come costs the connection, not the answer
                with suppress(aiohttp.ClientError, OSError):
                    async with asyncio.timeout(DRAINED_S_AT_MOST):
                        await response.content.read()
            return answer
        request.check(answer)
        if length is not None and length > request.bytes_at_most and not request.is_cut:
            raise RequestError(DropReason.HTTP_TOO_LARGE, f"Content-Length {length:,}")
        encoding = ",".join(response.headers.getall("Content-Encoding", []))
        body = await self._body(request, response.content, length, is_encoded=bool(encoding))
        if encoding:
            body = _decoded(request, body, encoding)
        if not body and not request.is_cut:
            raise RequestError(DropReason.HTTP_BROKEN, "empty body")
        return answer._replace(body=body)

    async def _body(
        self, request: Request, content: aiohttp.StreamReader, length: int | None, *, is_encoded: bool
    ) -> bytes:
        """Reads the body as sent, within the request's share of the budget."""
        most, body, share = request.bytes_at_most, BytesIO(), request.share
        needed = min(length or most, most) + most * is_encoded
        await self._take(request, min(FIRST_SHARE_BYTES, needed))
        async for part in content.iter_any():
            request.bytes += len(part)
            if request.bytes > most and not request.is_cut:
                raise RequestError(DropReason.HTTP_TOO_LARGE, f"more than {most:,} bytes")
            if share.bytes < needed and (is_encoded or request.bytes > share.bytes):
                await self._take(request, needed - share.bytes)
            body.write(part)
            if request.bytes > most:
                body.truncate(most)
                break
        return body.getvalue()

    async def _take(self, request: Request, count: int) -> None:
        if not self._budget.takes(request.share, count):
            with request.held_up():
                await self._budget.take(request.share, count)


def _decoded(request: Request, body: bytes, encoding: str) -> bytes:
    most = request.bytes_at_most
    body = decoded(body, encoding, most)
    if len(body) > most and not request.is_cut:
        raise RequestError(DropReason.HTTP_TOO_LARGE, f"more than {most:,} bytes, decoded from {request.bytes:,}")
    return body[:most]


def _open(sockets: set[socket.socket]) -> set[socket.socket]:
    return {each for each in sockets if each.fileno() >= 0}


async def _once(
    request: aiohttp.ClientRequest, handler: Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]]
) -> aiohttp.ClientResponse:
    """Keeps the library from asking again after a request was lost."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _GoneError from error


class _CheckedResolver(AbstractResolver):
    """Finds the addresses of a name that may be reached."""

    def __init__(self, names: Names, addresses: Addresses):
        self._names, self._addresses = names, addresses

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002
    ) -> list[ResolveResult]:
        request = _REQUEST.get()
        found = await self._names.addresses(host.rstrip("."), request.held_up)
        refusals = {address: self._addresses.refusal(address, port) for address in found}
        if all(refusals.values()):
            request.address = next(iter(found), None)
            refused = ", ".join(f"{address} ({refusal})" for address, refusal in refusals.items()) or "no address"
            raise _RefusedError(f"{host} is {refused}, which may not be reached (fetch.allow_addresses)")
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in [address for address, refusal in refusals.items() if not refusal][:ADDRESSES_AT_MOST]
        ]

    async def close(self) -> None:
        """Does nothing: the names belong to the client."""


def _failed(error: Exception, request: Request) -> RequestError:
    """Translates an error of the library for the caller."""
    target = request.target
    where = f"{request.address or target.host}:{target.port}"
    cause: Any = getattr(error, "os_error", None) or error
    if isinstance(cause, _RefusedError):
        return RequestError(DropReason.HTTP_REFUSED, str(cause))
    if isinstance(cause, OSError) and cause.errno in _OURS and not isinstance(cause, socket.gaierror):
        return RequestError(DropReason.HTTP_UNREACHABLE, f"this machine: {_in_words(cause)}", is_ours=True)
    if isinstance(cause, socket.gaierror):
        detail = f"{target.host}: {cause.strerror or cause}"
        return RequestError(DropReason.HTTP_UNREACHABLE, detail, is_certain=cause.errno in NOT_THERE)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = getattr(error.certificate_error, "verify_message", "") or error.certificate_error
        return RequestError(DropReason.HTTP_UNREACHABLE, f"{where}: certificate: {why}")
    if isinstance(error, aiohttp.ClientSSLError):
        return RequestError(DropReason.HTTP_UNREACHABLE, f"{where}: TLS: {_in_words(cause)}")
    if isinstance(error, aiohttp.ClientConnectorError):
        return RequestError(DropReason.HTTP_UNREACHABLE, f"{where}: {_in_words(cause)}")
    if isinstance(error, (aiohttp.InvalidURL, UnicodeError)):
        detail = f"{target.host}: no name that can be looked up"
        return RequestError(DropReason.HTTP_UNREACHABLE, detail, is_certain=True)
    if isinstance(error, TimeoutError):  # of a lookup, which is ended before the request where it takes very long
        return RequestError(DropReason.HTTP_TIMEOUT, f"{target.host}: no address")
    if isinstance(error, CodingError):
        return RequestError(DropReason.HTTP_BROKEN, str(error))
    if isinstance(error, aiohttp.ClientPayloadError):
        detail = f"cut or broken after {request.bytes:,} bytes: {_in_words(error.__cause__ or error)}"
        return RequestError(DropReason.HTTP_BROKEN, detail)
    return RequestError(DropReason.HTTP_BROKEN, _in_words(error))


def _in_words(error: BaseException | None) -> str:
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
