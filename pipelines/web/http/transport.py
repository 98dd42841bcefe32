"""One request over HTTP/1.1. The only module that knows the HTTP library.

Connections are made to the addresses that were checked, never to a name. No cookies are kept, no proxy is used, nothing
is read of ~/.netrc.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from altalign.pipelines.web.allowed.addresses import Addresses
from altalign.pipelines.web.asking.budget import Budget
from altalign.pipelines.web.http.coding import CodingError, decoded
from altalign.pipelines.web.http.names import NOT_THERE, Names
from altalign.pipelines.web.http.request import HEADERS_READ, Answer, Request, RequestError
from altalign.reasons import DropReason

LINE_BYTES_AT_MOST = 32_768  # of a header
HEADERS_AT_MOST = 256
HEAD_BYTES_AT_MOST = 262_144
ADDRESSES_AT_MOST = 4  # of a host, which are tried side by side where the first does not answer soon
FRAME_BYTES_AT_MOST = 1_048_576  # of what is no body, beside it: a chunk of one byte takes six more
FRAME_OF_A_BYTE = 8
IDLE_S = 15.0  # a connection is kept for so long
# of a body that nobody wants: reading it costs less than another connection
DRAINED_BYTES_AT_MOST, DRAINED_S_AT_MOST = 16_384, 0.5
READ_AHEAD_BYTES = 131_072  # of a connection whose body waits for the budget, at most twice
# what a body takes of the budget before it has come so far; one of unknown length goes on in steps that double
STEP_BYTES = 262_144

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


# of the task that makes it; what the library calls finds it here
_REQUEST: ContextVar[Request] = ContextVar("request")


class _RefusedError(OSError):
    """No address of a host may be reached."""


class _GoneError(Exception):
    """The connection was lost before an answer came. In its place the library would ask again without a word."""


class Transport:
    """Makes requests; belongs to one loop."""

    def __init__(
        self, *, names: Names, addresses: Addresses, budget: Budget, user_agent: str, connections_at_most: int
    ):
        """To be called in the loop. `connections_at_most`: with so many open, none is kept for later."""
        self._budget, self._connections_at_most = budget, connections_at_most
        self._connector = _Connector(names, addresses)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            headers={"User-Agent": user_agent, "Accept": "*/*", "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            # who asks has a deadline
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

    @property
    def connections(self) -> int:
        """Connections that are open, idle ones too."""
        return len(self._connector.transports)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
        while self._connector.transports:
            for transport in self._connector.transports:
                transport.abort()
            await asyncio.sleep(0)  # they close in the loop's next turns

    async def ask(self, request: Request) -> Answer:
        """The answer to a request; redirects are answers.

        Raises:
            RequestError: there is none, or its body is none.
        """
        _REQUEST.set(request)
        request.keeps_alive = request.keeps_alive and len(self._connector.transports) < self._connections_at_most
        try:
            while True:
                try:
                    response = await self._session.get(
                        URL(request.target.url, encoded=True),
                        allow_redirects=False,
                        headers=None if request.keeps_alive else {"Connection": "close"},
                    )
                    break
                except _GoneError as gone:
                    if request.is_fresh:
                        raise RequestError(DropReason.HTTP_BROKEN, _said(gone.__cause__)) from None
                    # the server had closed an idle connection meanwhile, or closes them for what is asked
                    request.wants_fresh = True
            try:
                return await self._answer(request, response)
            finally:
                response.close()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failed(error, request) from None

    async def _answer(self, request: Request, response: aiohttp.ClientResponse) -> Answer:
        request.status = response.status
        answer = Answer(response.status, b"", {name: response.headers.getall(name, []) for name in HEADERS_READ})
        if response.status != 200:
            if (
                request.keeps_alive
                and (response.content_length or 0) <= DRAINED_BYTES_AT_MOST
                and "Content-Length" in response.headers
            ):
                # a timeout too: what does not come costs the connection, not the answer
                with suppress(aiohttp.ClientError, OSError):
                    async with asyncio.timeout(DRAINED_S_AT_MOST):
                        await response.content.read()
            return answer
        request.check(answer)
        length = response.content_length
        if length is not None and length > request.bytes_at_most and not request.is_cut:
            raise RequestError(DropReason.HTTP_TOO_LARGE, f"Content-Length {length:,}")
        body = await self._body(request, response.content, length)
        if encoding := ",".join(response.headers.getall("Content-Encoding", [])):
            body = await self._decoded(request, body, encoding)
        if not body and not request.is_cut:
            raise RequestError(DropReason.HTTP_BROKEN, "empty body")
        return answer._replace(body=body)

    async def _body(self, request: Request, content: aiohttp.StreamReader, length: int | None) -> bytes:
        """The body as sent, in step with the request's share of the budget: a little at first, for not all that is promised comes.

        One of known length is written to one buffer of that size, which then is the body: parts beside their sum would
        be twice as much, and leave the heap in pieces that nobody gives back. Pages of it are taken as they are
        written, not before.
        """
        most, share, parts, whole = request.bytes_at_most, request.share, [], None
        await self._take(request, min(STEP_BYTES, length or most, most))
        while part := await content.readany():
            if not request.bytes and length and len(part) < length:
                whole = BytesIO(bytes(min(length, most)))
            request.bytes += len(part)
            if whole is None:
                parts.append(part)
            else:
                whole.write(part)
            if request.bytes > most:
                if request.is_cut:
                    break
                raise RequestError(DropReason.HTTP_TOO_LARGE, f"more than {most:,} bytes")
            if request.bytes > share.bytes:
                await self._take(request, max(request.bytes, min(length or 2 * share.bytes, most)) - share.bytes)
        if whole is not None:
            whole.truncate(min(request.bytes, most))
            return whole.getvalue()
        return (parts[0] if len(parts) == 1 else b"".join(parts))[:most]

    async def _decoded(self, request: Request, body: bytes, encoding: str) -> bytes:
        await self._take(request, request.bytes_at_most)  # beside what it was made from
        body = decoded(body, encoding, request.bytes_at_most)
        if len(body) > request.bytes_at_most and not request.is_cut:
            raise RequestError(
                DropReason.HTTP_TOO_LARGE, f"more than {request.bytes_at_most:,} bytes, decoded from {request.bytes:,}"
            )
        return body[: request.bytes_at_most]

    async def _take(self, request: Request, count: int) -> None:
        if self._budget.takes(request.share, count):
            return
        request.on_wait(begins=True)
        try:
            await self._budget.take(request.share, count)
        finally:
            request.on_wait(begins=False)


async def _once(
    request: aiohttp.ClientRequest, handler: Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]]
) -> aiohttp.ClientResponse:
    """Keeps the library from asking a second time where the first request was lost."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _GoneError from error


def _failed(error: Exception, request: Request) -> RequestError:
    """What an error of the library means for who asked."""
    target = request.target
    where = f"{request.address or target.host}:{target.port}"
    cause: Any = getattr(error, "os_error", None) or error
    if isinstance(cause, _RefusedError):
        return RequestError(DropReason.HTTP_REFUSED, str(cause))
    if isinstance(cause, OSError) and cause.errno in _OURS and not isinstance(cause, socket.gaierror):
        return RequestError(DropReason.HTTP_UNREACHABLE, f"this machine: {_said(cause)}", is_ours=True)
    if isinstance(cause, socket.gaierror):
        return RequestError(
            DropReason.HTTP_UNREACHABLE,
            f"{target.host}: {cause.strerror or cause}",
            is_certain=cause.errno in NOT_THERE,
        )
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return RequestError(
            DropReason.HTTP_UNREACHABLE,
            f"{where}: certificate: {getattr(error.certificate_error, 'verify_message', '') or error.certificate_error}",
        )
    if isinstance(error, aiohttp.ClientSSLError):
        return RequestError(DropReason.HTTP_UNREACHABLE, f"{where}: TLS: {_said(cause)}")
    if isinstance(error, aiohttp.ClientConnectorError):
        return RequestError(DropReason.HTTP_UNREACHABLE, f"{where}: {_said(cause)}")
    if isinstance(error, (aiohttp.InvalidURL, UnicodeError)):
        return RequestError(
            DropReason.HTTP_UNREACHABLE, f"{target.host}: no name that can be looked up", is_certain=True
        )
    if isinstance(error, CodingError):
        return RequestError(DropReason.HTTP_BROKEN, str(error))
    if isinstance(error, aiohttp.ClientPayloadError):
        return RequestError(
            DropReason.HTTP_BROKEN, f"cut or broken after {request.bytes:,} bytes: {_said(error.__cause__ or error)}"
        )
    return RequestError(DropReason.HTTP_BROKEN, _said(error))


def _said(error: BaseException | None) -> str:
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed without an answer"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"no HTTP: {error.message or error}"
    if isinstance(error, HttpProcessingError):
        return error.message
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


# What the library is made of, with our own parts ----------------------------------------------------------------------


class _Connector(aiohttp.TCPConnector):
    """Connects to checked addresses, and knows its connections."""

    def __init__(self, names: Names, addresses: Addresses):
        super().__init__(
            resolver=_Resolver(names, addresses),
            use_dns_cache=False,  # Names keeps them
            limit=0,  # who asks has limits
            keepalive_timeout=IDLE_S,
            socket_factory=self._socket,
            ssl=_tls(),
        )
        self._addresses, self.transports = addresses, set[asyncio.Transport]()
        self._factory = partial(_Handler, asyncio.get_running_loop(), self)

    def _socket(self, info: Any) -> socket.socket:
        """The last gate: the address that will be connected to. Literal addresses come here without having been resolved."""
        family, kind, proto, _, (address, port, *_) = info
        request = _REQUEST.get()
        request.address = address
        refusal = self._addresses.refusal(address, port)
        if refusal:
            raise _RefusedError(f"{address}:{port} ({refusal}) may not be reached")
        return socket.socket(family=family, type=kind, proto=proto)


class _Resolver(AbstractResolver):
    def __init__(self, names: Names, addresses: Addresses):
        self._names, self._addresses = names, addresses

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002
    ) -> list[ResolveResult]:
        found = await self._names.addresses(host.rstrip("."))
        refusals = {address: self._addresses.refusal(address, port) for address in found}
        if all(refusals.values()):
            _REQUEST.get().address = next(iter(found), None)
            said = ", ".join(f"{address} ({refusal})" for address, refusal in refusals.items()) or "no address"
            raise _RefusedError(f"{host} is {said}, which may not be reached")
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
        """Names are of the client."""


class _Handler(ResponseHandler):
    """Reads the answers of one connection: one for each request, and nothing of what comes beside them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connector: _Connector):
        super().__init__(loop)
        self._connector, self._peer, self._requests = connector, "", 0
        self._head_bytes, self._body_bytes, self._is_answered = 0, 0, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._own = cast(asyncio.Transport, transport)
        self._connector.transports.add(self._own)
        self._peer = (transport.get_extra_info("peername") or ("",))[0]
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connector.transports.discard(self._own)
        super().connection_lost(exc)

    def is_connected(self) -> bool:
        """Called before a connection that is kept is used, and now and then; one that is not to be used is closed."""
        request = _REQUEST.get(None)
        return super().is_connected() and not (request and request.wants_fresh)

    def close(self) -> None:
        """At once: nothing is left to be said, and TLS would wait for the other side's farewell."""
        self.abort()

    def set_response_params(self, **params: Any) -> None:
        """Called before each request."""
        self._payload, self._head_bytes, self._body_bytes, self._is_answered = None, 0, 0, False
        request = _REQUEST.get()
        request.address, request.is_fresh = self._peer, not self._requests
        self._requests += 1
        request.wants_fresh = False
        if not request.keeps_alive:
            self.force_close()
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """Bytes beyond the body are ignored, and end the connection.

        The parser forgets an answer that it has read where what follows is none, so it gets the head alone first. No
        data at all lets it go on after it has stopped for want of readers.
        """
        while data and not self._is_answered:
            end = data.find(b"\r\n\r\n") + 4
            head, data = (data[:end], data[end:]) if end >= 4 else (data, b"")
            self._head_bytes += len(head)
            if self._head_bytes > HEAD_BYTES_AT_MOST:
                self._break(f"a head of more than {HEAD_BYTES_AT_MOST:,} bytes")
                return
            super().data_received(head)
            if not data:
                return
        if data and (self._payload is None or self._payload.is_eof()):
            self._end()
            return
        self._body_bytes += len(data)
        if (
            self._payload is not None
            and self._body_bytes > FRAME_BYTES_AT_MOST + FRAME_OF_A_BYTE * self._payload.total_bytes
        ):
            self._break("chunks of nothing")
            return
        super().data_received(data)

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        """Called where an answer cannot be read; whoever reads its body would wait for the deadline."""
        super().set_exception(exc, *([exc_cause] if exc_cause else []))
        payload = self._payload
        if payload is not None and not payload.is_eof() and payload.exception() is None:
            payload.set_exception(aiohttp.ClientPayloadError(_said(exc_cause or exc)))

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Called with each answer that was read."""
        if self._is_answered:
            self._end()
            return
        self._is_answered = data[0].code >= 200 or data[0].code == 101
        super().feed_data(data, size)

    def _break(self, detail: str) -> None:
        """Read no more of an answer that says nothing at length."""
        self.set_exception(aiohttp.ClientPayloadError(detail))
        self._end()

    def _end(self) -> None:
        """No other request goes over this connection."""
        self.force_close()
        if self.transport is not None:
            self.transport.abort()


@cache
def _tls() -> ssl.SSLContext:
    """Of the process, for it takes a tenth of a second. The system's certificates; where it has none, as slim containers do, those of certifi."""
    context = ssl.create_default_context()
    folder = ssl.get_default_verify_paths().capath
    if not context.get_ca_certs() and not (folder and any(Path(folder).iterdir())):
        with suppress(ImportError):
            import certifi

            context.load_verify_locations(certifi.where())
    return context
