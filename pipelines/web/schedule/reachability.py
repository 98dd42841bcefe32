"""Tells whether the network is there at all: a try that fails while it is gone says nothing about its host.

After a failure we wait for news: an answer from any host or, if none comes, a connection to a host that answered last.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from enum import Enum

KNOWN_AT_MOST = 3
CONNECT_S = 3.0
PAUSES_S = (0.1, 1.0, 2.0, 4.0, 8.0)  # before each attempt; most news comes by itself in the first

Endpoint = tuple[str, int]


class Reach(Enum):
    """What was found out about the network: it was there, it is back after it was gone, or it stays away."""

    THERE, BACK, GONE = range(3)


class Network:
    """Remembers the endpoints that answered last; belongs to the loop."""

    def __init__(self, connects: Callable[[Endpoint], Awaitable[bool]], pause: Callable[..., None]):
        """Creates it without any known endpoint.

        Args:
            connects: whether a connection to an endpoint can be made.
            pause: called with `is_paused=True` once the network seems to be gone, with False once more is known.
        """
        self._connects, self._pause = connects, pause
        self._known: OrderedDict[Endpoint, None] = OrderedDict()
        self._news = asyncio.Event()
        self._attempts: asyncio.Task[Reach] | None = None

    def answered(self, endpoint: Endpoint) -> None:
        """Notes that an endpoint answered."""
        self._known[endpoint] = None
        self._known.move_to_end(endpoint)
        if len(self._known) > KNOWN_AT_MOST:
            self._known.popitem(last=False)
        self._news.set()

    async def reach(self) -> Reach:
        """Finds out about the network; that it stays away takes half a minute at most."""
        if not self._known:
            return Reach.THERE
        if self._attempts is None:
            self._attempts = asyncio.create_task(self._look())
        return await asyncio.shield(self._attempts)

    async def close(self) -> None:
        """Ends what is under way."""
        if self._attempts is not None:
            self._attempts.cancel()
            await asyncio.gather(self._attempts, return_exceptions=True)

    async def _look(self) -> Reach:
        self._news.clear()
        is_in_doubt = False
        try:
            for pause_s in PAUSES_S:
                try:
                    async with asyncio.timeout(pause_s):
                        await self._news.wait()
                    is_there = True
                except TimeoutError:
                    is_there = any(await asyncio.gather(*map(self._connects, list(self._known))))
                if is_there:
                    return Reach.BACK if is_in_doubt else Reach.THERE
                is_in_doubt = True
                self._pause(is_paused=True)
            return Reach.GONE
        finally:
            self._attempts = None
            self._pause(is_paused=False)


async def connects(endpoint: Endpoint) -> bool:
    """Whether a TCP connection can be made."""
    address, port = endpoint
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(address, port)
    except OSError:  # also a timeout, or no socket left on this machine
        return False
    writer.transport.abort()
    return True
