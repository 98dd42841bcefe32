"""Makes one request over HTTP/1.1. No other module knows the HTTP library.

Connections go to the addresses that were checked, never to a name. No cookies are kept, no proxy is used (see
`allowed.proxies`), and ~/.netrc is not read.
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

from altalign.data.reasons import DropReason
from altalign.pipelines.read.coding import CodingError, decoded
from altalign.pipelines.web.http.names import NOT_THERE, Names
from altalign.pipelines.web.http.request import HEADERS_READ, Answer, Request, RequestError
from altalign.pipelines.web.policy.addresses import Addresses
from altalign.pipelines.web.schedule.budget import Budget

LINE_BYTES_AT_MOST = 32_768  # of a header
HEADERS_AT_MOST = 256
HEAD_BYTES_AT_MOST = 262_144
ADDRESSES_AT_MOST = 4  # of a host; they are tried in parallel if the first does not answer soon
FRAME_BYTES_AT_MOST = 1_048_576  # of framing around the body: a chunk of one byte takes six more
FRAME_OF_A_BYTE = 8
IDLE_S = 15.0  # how long an idle connection is kept
# of an unwanted body: reading it costs less than another connection
DRAINED_BYTES_AT_MOST, DRAINED_S_AT_MOST = 16_384, 0.5
READ_AHEAD_BYTES = 131_072  # of a body that waits for the budget; up to twice this is read
# the first part of the budget that a body takes; one of unknown length continues in steps that double
STEP_BYTES = 262_144

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
        self._budget, self._connections_at_most = budget, connections_at_most
        self._connector = _Connector(names, addresses)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            headers={"User-Agent": user_agent, "Accept": "*/*", "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            # the caller has a deadline
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
        """How many connections are open, including idle ones."""
        return len(self._connector.transports)

    async def close(self) -> None:
        """Closes all connections."""
        await self._session.close()
        while self._connector.transports:
            for transport in self._connector.transports:
                transport.abort()
            await asyncio.sleep(0)  # they close in the loop's next turns

    async def ask(self, request: Request) -> Answer:
        """Makes a request and returns its answer, which may be a redirect.

        Raises:
            RequestError: there is no answer, or its body is unusable.
        """
        _REQUEST.set(request)
        request.keeps_alive = request.keeps_alive and len(self._connector.transports) < self._connections_at_most
        try:
            response = await self._session.get(
                URL(request.target.url, encoded=True),
                allow_redirects=False,
                headers=None if request.keeps_alive else {"Connection": "close"},
            )
            try:
                return await self._answer(request, response)
            finally:
                response.close()
        except _GoneError as gone:
            # a kept connection may have been closed meanwhile, or because of the request: nobody knows
            raise RequestError(DropReason.HTTP_BROKEN, _said(gone.__cause__)) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failed(error, request) from None

    async def _answer(self, request: Request, response: aiohttp.ClientResponse) -> Answer:
        request.status = response.status
        answer = Answer(response.status, b"", {name: response.headers.getall(name, []) for name in HEADERS_READ})
        if response.status != 200:
            is_short = "Content-Length" in response.headers and (response.content_length or 0) <= DRAINED_BYTES_AT_MOST
            if request.keeps_alive and is_short:
                # also a timeout: a body that does not come costs the connection, not the answer
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
        """Reads the body as sent, within the request's share of the budget; the share grows with the body.

        A body of known length is written to one buffer of that size: joining parts would take twice the memory and
        fragment the heap. The system provides the pages of the buffer only when they are written.
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
        await self._take(request, request.bytes_at_most)  # in addition to the encoded body
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
    """Keeps the library from asking again after a request was lost."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _GoneError from error


def _failed(error: Exception, request: Request) -> RequestError:
    """Translates an error of the library for the caller."""
    target = request.target
    where = f"{request.address or target.host}:{target.port}"
    cause: Any = getattr(error, "os_error", None) or error
    if isinstance(cause, _RefusedError):
        return RequestError(DropReason.HTTP_REFUSED, str(cause))
    if isinstance(cause, OSError) and cause.errno in _OURS and not isinstance(cause, socket.gaierror):
        return RequestError(DropReason.HTTP_UNREACHABLE, f"this machine: {_said(cause)}", is_ours=True)
    if isinstance(cause, socket.gaierror):
        said, is_certain = f"{target.host}: {cause.strerror or cause}", cause.errno in NOT_THERE
        return RequestError(DropReason.HTTP_UNREACHABLE, said, is_certain=is_certain)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = getattr(error.certificate_error, "verify_message", "") or error.certificate_error
        return RequestError(DropReason.HTTP_UNREACHABLE, f"{where}: certificate: {why}")
    if isinstance(error, aiohttp.ClientSSLError):
        return RequestError(DropReason.HTTP_UNREACHABLE, f"{where}: TLS: {_said(cause)}")
    if isinstance(error, aiohttp.ClientConnectorError):
        return RequestError(DropReason.HTTP_UNREACHABLE, f"{where}: {_said(cause)}")
    if isinstance(error, (aiohttp.InvalidURL, UnicodeError)):
        said = f"{target.host}: no name that can be looked up"
        return RequestError(DropReason.HTTP_UNREACHABLE, said, is_certain=True)
    if isinstance(error, CodingError):
        return RequestError(DropReason.HTTP_BROKEN, str(error))
    if isinstance(error, aiohttp.ClientPayloadError):
        said = f"cut or broken after {request.bytes:,} bytes: {_said(error.__cause__ or error)}"
        return RequestError(DropReason.HTTP_BROKEN, said)
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


# Our own parts of the library --------------------------------------------------------------------------------------


class _Connector(aiohttp.TCPConnector):
    """Connects only to checked addresses, and knows its connections."""

    def __init__(self, names: Names, addresses: Addresses):
        super().__init__(
            resolver=_Resolver(names, addresses),
            use_dns_cache=False,  # Names keeps them
            limit=0,  # the caller has limits
            keepalive_timeout=IDLE_S,
            socket_factory=self._socket,
            ssl=_tls(),
        )
        self._addresses, self.transports = addresses, set[asyncio.Transport]()
        self._factory = partial(_Handler, asyncio.get_running_loop(), self)

    def _socket(self, info: Any) -> socket.socket:
        """The last check, of the address that is connected to. Literal addresses come here without being resolved."""
        family, kind, proto, _, (address, port, *_) = info
        request = _REQUEST.get()
        request.address = address
        refusal = self._addresses.refusal(address, port)
        if refusal:
            raise _RefusedError(f"{address}:{port} ({refusal}) may not be reached (fetch.allow_addresses)")
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
        request = _REQUEST.get()
        found = await self._names.addresses(host.rstrip("."), partial(request.on_wait, keeps_slot=False))
        refusals = {address: self._addresses.refusal(address, port) for address in found}
        if all(refusals.values()):
            request.address = next(iter(found), None)
            said = ", ".join(f"{address} ({refusal})" for address, refusal in refusals.items()) or "no address"
            raise _RefusedError(f"{host} is {said}, which may not be reached (fetch.allow_addresses)")
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


class _Handler(ResponseHandler):
    """Reads the answers of one connection: one for each request, ignoring anything else."""

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
        """Called before a kept connection is used, and now and then; False closes it."""
        request = _REQUEST.get(None)
        return super().is_connected() and not (request and request.wants_fresh)

    def close(self) -> None:
        """Closes at once: nothing is left to send, and TLS would wait for the other side to say goodbye."""
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
        """Reads an answer; bytes beyond its body are ignored, and end the connection.

        The parser forgets an answer that it has read if what follows is not HTTP, so it first gets the head alone. A
        call without data lets it continue after it has paused.
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
        body_bytes = self._payload.total_bytes if self._payload is not None else float("inf")
        if self._body_bytes > FRAME_BYTES_AT_MOST + FRAME_OF_A_BYTE * body_bytes:
            self._break("chunks of nothing")
            return
        super().data_received(data)

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        """Called if an answer cannot be read. Passes the error on to the body, whose reader would wait otherwise."""
        super().set_exception(exc, *([exc_cause] if exc_cause else []))
        payload = self._payload
        if payload is not None and not payload.is_eof() and payload.exception() is None:
            payload.set_exception(aiohttp.ClientPayloadError(_said(exc_cause or exc)))

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Called with the head of each answer."""
        if self._is_answered:
            self._end()
            return
        self._is_answered = data[0].code >= 200 or data[0].code == 101
        super().feed_data(data, size)

    def _break(self, detail: str) -> None:
        """Stops reading an endless answer."""
        self.set_exception(aiohttp.ClientPayloadError(detail))
        self._end()

    def _end(self) -> None:
        """Ends the connection, so that no other request uses it."""
        self.force_close()
        if self.transport is not None:
            self.transport.abort()


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
