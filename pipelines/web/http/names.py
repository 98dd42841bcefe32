"""Looks up addresses of hosts: once for all callers, kept for a while, and no caller waits longer than it wants."""

import asyncio
import errno
import os
import socket
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import NamedTuple

KEPT_S = 300.0  # the system reports no time to live; most on the web are between a minute and an hour
KEPT_AT_MOST = 20_000
LOOKUP_S = 60.0  # longer than any resolver takes by default
# Most lookups take milliseconds, those at dead name servers up to 30 s, and none can be ended. Measured with 2,000
# names, half of them dead for 10 s: the last good image came after 61 s with 192 at once, after 14 s with 512, for 8 MB
# more. Each lookup may have a file open: `client` has fewer under way where few files may be open.
AT_ONCE = 512

NOT_THERE = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})

# The addresses of a host, at least one, the preferred first. It raises an OSError if there are none (a `gaierror` of
# NOT_THERE), or the lookup failed.
Resolve = Callable[[str], Awaitable[Sequence[str]]]


class _Lookup(NamedTuple):
    """A lookup; `begins` is set when it leaves the queue."""

    task: "asyncio.Task[tuple[str, ...]]"
    begins: asyncio.Event


class Names:
    """Keeps the addresses that are found; callers that ask for the same name share one lookup."""

    def __init__(self, resolve: Resolve, at_once: int = AT_ONCE):
        """No more than `at_once` lookups are under way; the others wait for their turn."""
        self._resolve, self._turn = resolve, asyncio.Semaphore(at_once)
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
            OSError: as `Resolve` says.
        """
        kept_until, addresses = self._kept.get(host, (0.0, ()))
        if asyncio.get_running_loop().time() < kept_until:
            return addresses
        lookup = self._under_way.get(host)
        if lookup is None:
            begins = asyncio.Event()
            lookup = self._under_way[host] = _Lookup(asyncio.create_task(self._look_up(host, begins)), begins)
            # or asyncio would complain of an error if all callers that waited have left
            lookup.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        if not lookup.begins.is_set():
            with held_up():
                await lookup.begins.wait()
        return await asyncio.shield(lookup.task)

    async def close(self) -> None:
        """Ends the lookups under way."""
        tasks = [lookup.task for lookup in self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_up(self, host: str, begins: asyncio.Event) -> tuple[str, ...]:
        try:
            async with self._turn:
                begins.set()
                async with asyncio.timeout(LOOKUP_S):
                    addresses = tuple(await self._resolve(host))
            self._kept[host] = asyncio.get_running_loop().time() + KEPT_S, addresses
            self._kept.move_to_end(host)
            if len(self._kept) > KEPT_AT_MOST:
                self._kept.popitem(last=False)
            return addresses
        finally:
            begins.set()
            del self._under_way[host]


async def of_system(host: str) -> Sequence[str]:
    """The addresses that the system has for a name, looked up in a thread: `getaddrinfo` cannot be interrupted.

    The thread is a daemon, so one that hangs at a dead name server (30 s by default) keeps no process alive.

    Raises:
        OSError: as `Resolve` says.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[list[str]] = loop.create_future()

    def settle(addresses: list[str], error: OSError | None) -> None:
        if not result.done():
            result.set_result(addresses) if error is None else result.set_exception(error)

    def look_up() -> None:
        addresses, error = _look_up(host)
        with suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(settle, addresses, error)

    try:
        threading.Thread(target=look_up, name="altalign-names", daemon=True).start()
    except RuntimeError:  # this machine has no more threads
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from None
    return await result


def _look_up(host: str) -> tuple[list[str], OSError | None]:
    try:
        entries = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return [], error if isinstance(error, OSError) else socket.gaierror(socket.EAI_NONAME, "no name")
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries)), None
