"""Tells whether the network is there at all: a try that fails while nobody can be reached says nothing about its host.

So after a failure we wait for news: any answer from any host or, if none comes, an attempt to connect to the hosts that
answered last. If none of them can be reached, it is an outage: one host a second is asked until one answers or can be
connected to. After a while without success, failures count again.
"""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable

KNOWN_AT_MOST = 8
ASKED_AT_MOST = 3
CONNECT_S = 3.0
NEWS_S = 0.1  # how long to wait before asking, for most news comes by itself
CHECKED_EACH_S = 1.0

Endpoint = tuple[str, int]


class Network:
    """Remembers what answered last, and whether it can be reached; belongs to the loop."""

    def __init__(
        self, outage_s_at_most: float, connects: Callable[[Endpoint], Awaitable[bool]], on_turn: Callable[[], None]
    ):
        """Creates it without any known endpoint.

        Args:
            outage_s_at_most: after this long failures count again.
            connects: whether a connection to an endpoint can be made.
            on_turn: called when something may be asked again.
        """
        self._outage_s, self._connects, self._on_turn = outage_s_at_most, connects, on_turn
        self._known: OrderedDict[Endpoint, None] = OrderedDict()
        self._waiting: list[asyncio.Future[bool]] = []
        self._checked_s = float("-inf")
        self._check: asyncio.Task[None] | None = None
        self._outage: asyncio.Task[None] | None = None
        self._is_given_up = self._is_turn = False

    @property
    def is_away(self) -> bool:
        """Whether there is an outage."""
        return self._outage is not None

    @property
    def may_be_asked(self) -> bool:
        """Whether a request makes sense now; in an outage, one a second does."""
        return self._outage is None or self._is_turn

    def asked(self) -> None:
        """Notes that a request is made."""
        self._is_turn = False

    def answered(self, endpoint: Endpoint) -> None:
        """Notes that an endpoint answered."""
        self._is_given_up = False
        self._known[endpoint] = None
        self._known.move_to_end(endpoint)
        if len(self._known) > KNOWN_AT_MOST:
            self._known.popitem(last=False)
        if self._waiting:
            self._tell(is_there=True)
        if self._outage is not None:
            self._outage.cancel()

    async def is_there(self) -> bool:
        """Whether the network is there, which may take a second to find out; if it is not, an outage begins."""
        if self._outage is not None:
            return False
        if self._is_given_up or not self._known:
            return True
        news = asyncio.get_running_loop().create_future()
        self._waiting.append(news)
        if self._check is None:
            self._check = asyncio.create_task(self._ask())
        return await news

    async def close(self) -> None:
        """Ends what is under way."""
        for task in (self._check, self._outage):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _tell(self, *, is_there: bool) -> None:
        for news in self._waiting:
            if not news.done():
                news.set_result(is_there)
        self._waiting.clear()

    async def _ask(self) -> None:
        """Finds out whether the network is there, as long as somebody waits to know."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                await asyncio.sleep(max(NEWS_S, self._checked_s + CHECKED_EACH_S - loop.time()))
                if not self._waiting:
                    break
                is_there = await self._reached()
                self._checked_s = loop.time()
                if not is_there and self._waiting:
                    self._outage = asyncio.create_task(self._wait())
                    self._outage.add_done_callback(self._ended)
                self._tell(is_there=is_there)
        finally:
            self._check = None

    def _ended(self, _: "asyncio.Task[None]") -> None:
        self._outage = None
        self._on_turn()

    async def _reached(self) -> bool:
        """Whether one of the endpoints that answered last can be connected to."""
        checks = [
            asyncio.ensure_future(self._connects(endpoint)) for endpoint in list(reversed(self._known))[:ASKED_AT_MOST]
        ]
        try:
            for check in asyncio.as_completed(checks):
                if await check:
                    return True
            return False
        finally:
            for check in checks:
                check.cancel()
            await asyncio.gather(*checks, return_exceptions=True)

    async def _wait(self) -> None:
        """Waits until an endpoint can be reached or the outage has lasted too long; an answer cancels it."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._outage_s
        while loop.time() < end:
            await asyncio.sleep(CHECKED_EACH_S)
            if await self._reached():
                return
            self._is_turn = True
            self._on_turn()
        self._is_given_up = True


async def connects(endpoint: Endpoint) -> bool:
    """Whether a TCP connection can be made."""
    address, port = endpoint
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.settimeout(0)
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().sock_connect(probe, (address, port))
    except OSError:  # also a timeout, or no socket left on this machine
        return False
    return True
