"""The client that fetches URLs: one event loop in one thread, shared by the units that run in a process."""

import asyncio
import logging
import resource
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty
from typing import TYPE_CHECKING, Any, Self

from altalign.errors import AltalignError
from altalign.machine import interrupts
from altalign.pipelines.images import measuring
from altalign.pipelines.run.domains import Domains
from altalign.pipelines.web.addresses import Addresses
from altalign.pipelines.web.calls import Call, Response
from altalign.pipelines.web.fetching import Fetching
from altalign.pipelines.web.schedule import Budget
from altalign.pipelines.web.signing import Signer
from altalign.settings.curate import FetchSettings

if TYPE_CHECKING:
    from altalign.pipelines.web.transport import Resolve

BYTES_IN_FLIGHT_AT_MOST = 512_000_000
UNIT_DEADLINE_S = 3_600.0  # for the images of a unit; longer while all threads are busy
OPEN_PER_SLOT, OPEN_AT_LEAST = 8, 8  # requests under way for each slot, including those that no server answers
FILES_OF_OTHERS = 256  # open files that the rest of the process may need
LOOKED_UP_S = 0.5  # how often a waiting caller checks whether the command is to end

_LOG = logging.getLogger(__name__)


class Client:
    """Fetches URLs. It is a context manager, and may be used from any thread."""

    def __init__(
        self,
        settings: FetchSettings,
        *,
        bytes_in_flight_at_most: int = BYTES_IN_FLIGHT_AT_MOST,
        resolve: "Resolve | None" = None,
    ):
        """Reads the block lists and the key of the settings, a UsageError where one cannot be; starts nothing yet.

        Args:
            settings: `[fetch]`.
            bytes_in_flight_at_most: of bodies in memory at a time.
            resolve: finds the addresses of host names; None: the system does.
        """
        self._settings, self._resolve = settings, resolve
        self._bytes_in_flight_at_most = bytes_in_flight_at_most
        self._domains = Domains.load(settings.blocked_domains)
        self._blocked_urls = measuring.blocked_urls(settings)
        self._signer = Signer(settings.signing_key, settings.signature_agent) if settings.signing_key else None
        self._loop: asyncio.AbstractEventLoop

    def __enter__(self) -> Self:
        """Starts the loop."""
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._handle)
        self._thread = threading.Thread(target=self._loop.run_forever, name="altalign-web", daemon=True)
        self._thread.start()
        try:
            self._run(self._open())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Ends all tries. No thread, task or socket is left, except for a lookup that a name server does not answer."""
        try:
            self._run(self._close())
        finally:
            self._stop()

    def fetch(self, urls: Sequence[str], *, on_quiet: Callable[[], None] = lambda: None) -> Iterator[Response]:
        """Yields each URL's response exactly once, in the order in which they end; blocks the calling thread.

        Nothing is asked before the first response is requested. The bytes of a response count as in flight until the
        next one is requested. Leaving early, in whatever way, drops what is under way.

        Args:
            urls: the URLs; those that are not http or https give `http_refused`.
            on_quiet: called, in the calling thread, when nothing has come for half a second, and each half after that.

        Raises:
            Interrupted: a signal has asked the command to end.
            AltalignError: the client was closed, the network is gone, this machine lacks resources, or there is a
                defect.
        """
        call, held_bytes = Call(urls, UNIT_DEADLINE_S), 0
        self._soon(self._fetching.begin, call)
        arrived = list[Response | BaseException]()  # in reverse, so that a popped response is held by the caller alone
        try:
            for _ in urls:
                while not arrived:
                    try:
                        arrived = call.deliveries.get(timeout=LOOKED_UP_S)[::-1]
                    except Empty:
                        on_quiet()
                        interrupts.check()
                        if self._loop.is_closed():
                            raise AltalignError("the client that fetches from the web is closed") from None
                response = arrived.pop()
                if isinstance(response, AltalignError):
                    raise type(response)(str(response)) from response
                if isinstance(response, BaseException):
                    why = f"{type(response).__name__}: {response}; this is a defect, please report it"
                    raise AltalignError(f"fetching from the web failed: {why}") from response
                held_bytes = _bytes_of(response)
                yield response
                del response
                self._budget.give_back(held_bytes)
                held_bytes = 0
        finally:
            self._budget.give_back(held_bytes + sum(map(_bytes_of, arrived)))
            self._soon(self._drop, call)

    async def _open(self) -> None:
        # the HTTP library takes as long to load as everything else
        from altalign.pipelines.web.transport import Transport

        settings = self._settings
        # how many requests may be under way, given the limit on open files; idle connections are open files, too
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = 65_536 if files == resource.RLIM_INFINITY else files
        open_at_most = max(OPEN_AT_LEAST, min(OPEN_PER_SLOT * settings.threads, (files - FILES_OF_OTHERS) // 2))
        addresses = Addresses(settings.ports, settings.allow_addresses)
        # the reserve is for a body and what it is decoded to
        self._budget = Budget(self._bytes_in_flight_at_most, 2 * settings.bytes_at_most, self._soon)
        self._transport = Transport(
            self._resolve, addresses, self._budget, settings.user_agent_sent, open_at_most, self._signer
        )
        self._fetching = Fetching(
            settings,
            self._transport.ask,
            blocked_urls=self._blocked_urls,
            domains=self._domains,
            addresses=addresses,
            budget=self._budget,
            open_at_most=open_at_most,
        )

    async def _close(self) -> None:
        self._fetching.defect(AltalignError("the client that fetches from the web was closed"))
        await self._fetching.close()
        await self._transport.close()

    def _drop(self, call: Call) -> None:
        """Drops a call, and gives back the bytes of what was delivered meanwhile."""

        def give_back() -> None:
            while not call.deliveries.empty():
                self._budget.give_back(sum(map(_bytes_of, call.deliveries.get_nowait())))

        self._fetching.drop(call)
        self._loop.call_soon(give_back)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _soon(self, callback: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # closed
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:  # noqa: ARG002
        """Handles errors in callbacks. Ours are defects; whoever made a request knows the errors of its connection."""
        error = context.get("exception")
        if "handle" in context and isinstance(error, Exception) and not isinstance(error, OSError):
            self._fetching.defect(error)
        else:
            _LOG.debug("%s", context.get("message"), exc_info=error)


def _bytes_of(response: Response | BaseException) -> int:
    return len(response.body or b"") if isinstance(response, Response) else 0


# the clients of this process by their settings, each with the number of its users
_SHARED: dict[str, tuple[Client, int]] = {}
_LOCK = threading.Lock()


@contextmanager
def opened(settings: FetchSettings, bytes_in_flight_at_most: int = BYTES_IN_FLIGHT_AT_MOST) -> Iterator[Client]:
    """The client of this process for these settings: its first user opens it, its last one closes it. Thread-safe."""
    key = settings.model_dump_json()
    with _LOCK:
        client, users = _SHARED.get(key, (None, 0))
        client = client or Client(settings, bytes_in_flight_at_most=bytes_in_flight_at_most).__enter__()
        _SHARED[key] = client, users + 1
    try:
        yield client
    finally:
        with _LOCK:
            client, users = _SHARED.pop(key)
            if users > 1:
                _SHARED[key] = client, users - 1
            else:
                client.__exit__(None, None, None)
