"""Looks up addresses of hosts: once for all callers, kept for a while, and no caller waits longer than it wants."""

import asyncio
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from queue import SimpleQueue
from typing import NamedTuple, Protocol

KEPT_S = 300.0  # the system reports no time to live; most on the web are between a minute and an hour
KEPT_AT_MOST = 20_000
LOOKUP_S = 60.0  # longer than any resolver takes by default
# Most lookups take milliseconds, those at dead name servers up to 30 s, and none can be ended. Measured with 2,000
# names, half of them dead for 10 s: the last good image came after 61 s with 192 threads, after 14 s with 512, for 8 MB
# more. Each lookup may have a file open: `client` has fewer under way where few files may be open.
THREADS_AT_MOST = 512
CLOSED_WITHIN_S = 1.0  # idle threads end in microseconds

NOT_THERE = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


class Resolver(Protocol):
    """Finds the addresses of a name."""

    async def addresses(self, host: str) -> Sequence[str]:
        """The addresses of a host, at least one, the preferred first.

        Raises:
            OSError: it has none (a `gaierror` of `NOT_THERE`), or the lookup failed.
        """
        ...

    def close(self) -> None:
        """Releases its resources."""
        ...


class _Lookup(NamedTuple):
    """A lookup; `begins` is set when it leaves the queue."""

    task: "asyncio.Task[tuple[str, ...]]"
    begins: asyncio.Event


class Names:
    """Keeps the addresses that a resolver finds; callers that ask for the same name share one lookup."""

    def __init__(self, resolver: Resolver, at_once: int = THREADS_AT_MOST):
        """No more than `at_once` lookups are under way; the others wait for their turn."""
        self._resolver, self._turn = resolver, asyncio.Semaphore(at_once)
        self._kept: OrderedDict[str, tuple[float, tuple[str, ...]]] = OrderedDict()
        self._under_way: dict[str, _Lookup] = {}

    async def addresses(
        self, host: str, held_up: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> tuple[str, ...]:
        """The addresses of a name, the preferred first.

        Args:
            host: the name.
            held_up: entered while the lookup waits for its turn: no server is to blame.

        Raises:
            OSError: as `Resolver` says.
        """
        kept_until, found = self._kept.get(host, (0.0, ()))
        if asyncio.get_running_loop().time() < kept_until:
            return found
        lookup = self._under_way.get(host)
        if lookup is None:
            begins = asyncio.Event()
            lookup = self._under_way[host] = _Lookup(asyncio.create_task(self._look_up(host, begins)), begins)
            lookup.task.add_done_callback(_look_at_exception)
        if not lookup.begins.is_set():
            with held_up():
                await lookup.begins.wait()
        return await asyncio.shield(lookup.task)

    async def close(self) -> None:
        """Ends the lookups under way and closes the resolver."""
        tasks = [lookup.task for lookup in self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._resolver.close()

    async def _look_up(self, host: str, begins: asyncio.Event) -> tuple[str, ...]:
        try:
            async with self._turn:
                begins.set()
                async with asyncio.timeout(LOOKUP_S):
                    found = tuple(await self._resolver.addresses(host))
            self._kept[host] = asyncio.get_running_loop().time() + KEPT_S, found
            self._kept.move_to_end(host)
            if len(self._kept) > KEPT_AT_MOST:
                self._kept.popitem(last=False)
            return found
        finally:
            begins.set()
            del self._under_way[host]


def _look_at_exception(task: "asyncio.Task[tuple[str, ...]]") -> None:
    """Retrieves the exception, or asyncio would complain if everyone who waited has left."""
    if not task.cancelled():
        task.exception()


class SystemResolver:
    """The system's own resolver, in threads: `getaddrinfo` has no asynchronous form and cannot be interrupted.

    The threads are daemons, so one that hangs at a dead name server (30 s by default) keeps no process alive.
    """

    def __init__(self, threads_at_most: int = THREADS_AT_MOST):
        self._most, self._threads = threads_at_most, list[threading.Thread]()
        self._wanted: SimpleQueue[tuple[str, asyncio.Future[list[str]]] | None] = SimpleQueue()
        self._lock, self._unfinished = threading.Lock(), 0

    async def addresses(self, host: str) -> Sequence[str]:
        """The addresses that the system has for a name.

        Raises:
            OSError: as `Resolver` says.
        """
        found: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._wanted.put((host, found))
        with self._lock:
            self._unfinished += 1
            if self._unfinished > len(self._threads) < self._most:
                thread = threading.Thread(target=self._work, name="altalign-names", daemon=True)
                with suppress(RuntimeError):  # this machine has no more threads: the existing ones do the work
                    thread.start()
                    self._threads.append(thread)
        return await found

    def close(self) -> None:
        """Ends the threads: idle ones at once, the others after their lookup."""
        for _ in self._threads:
            self._wanted.put(None)
        end = time.monotonic() + CLOSED_WITHIN_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _work(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            host, found = wanted
            if not found.cancelled():
                _tell(found, *_look_up(host))
            with self._lock:
                self._unfinished -= 1


def _look_up(host: str) -> tuple[list[str], OSError | None]:
    try:
        entries = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return [], error if isinstance(error, OSError) else socket.gaierror(socket.EAI_NONAME, "no name")
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries)), None


def _tell(found: "asyncio.Future[list[str]]", addresses: list[str], error: OSError | None) -> None:
    def settle() -> None:
        if not found.done():
            found.set_result(addresses) if error is None else found.set_exception(error)

    with suppress(RuntimeError):  # the loop may be closed by now
        found.get_loop().call_soon_threadsafe(settle)
