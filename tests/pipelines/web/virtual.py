"""A loop whose clock jumps to the next due time, and a web that is a function: hours of waiting in milliseconds."""

import asyncio
import itertools
import selectors
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from altalign.filters.blocked import BlockList
from altalign.pipelines.run.domains import Domains
from altalign.pipelines.web.addresses import Addresses
from altalign.pipelines.web.calls import HEADERS_READ, Answer, Call, Request, Response, Target
from altalign.pipelines.web.client import BYTES_IN_FLIGHT_AT_MOST, UNIT_DEADLINE_S
from altalign.pipelines.web.fetching import Fetching
from altalign.pipelines.web.hosts import Network
from altalign.pipelines.web.schedule import Budget
from altalign.settings.curate import FetchSettings

NO_HEADERS: dict[str, list[str]] = {name: [] for name in HEADERS_READ}
EPOCH_S = 1_700_000_000.0


class _Jumps(selectors.DefaultSelector):
    """Nobody outside of the loop does anything: where it would wait, its clock jumps."""

    def __init__(self, loop: "VirtualLoop") -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("everybody waits, and nothing will happen")
        self._loop.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time is `now`."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jumps(self))

    def time(self) -> float:
        return self.now


def answer(status: int = 200, body: bytes = b"image", **headers: str) -> Answer:
    """An answer; headers with underscores for hyphens."""
    return Answer(
        status,
        body if status == 200 else b"",
        NO_HEADERS | {name.replace("_", "-"): [value] for name, value in headers.items()},
    )


Site = Callable[[Request], Awaitable[Answer]]


@dataclass
class Web:
    """Sites by host, and what was asked of them.

    Attributes:
        log: (when, URL) of every request but those for robots.txt (`robots_log`) and tdmrep.json (`reservations_log`).
        most: of each host, how many requests were under way at a time.
    """

    sites: Callable[[str], Site]
    is_there: Callable[[], bool] = lambda: True
    log: list[tuple[float, str]] = field(default_factory=list)
    robots_log: list[tuple[float, str]] = field(default_factory=list)
    reservations_log: list[tuple[float, str]] = field(default_factory=list)
    running: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)

    async def ask(self, request: Request) -> Answer:
        host, now = request.target.host, asyncio.get_running_loop().time()
        of_files = {"/robots.txt": self.robots_log, "/.well-known/tdmrep.json": self.reservations_log}
        url, origin = request.target.url, request.target.origin
        of_files.get(url.removeprefix(origin), self.log).append((now, url))
        self.running[host] = self.running.get(host, 0) + 1
        self.most[host] = max(self.most.get(host, 0), self.running[host])
        try:
            request.address = f"192.0.2.{len(host) % 256}"
            made = await self.sites(host)(request)
            request.status, request.bytes = made.status, len(made.body)
            return made
        finally:
            self.running[host] -= 1

    async def connects(self, _: tuple[str, int]) -> bool:
        await asyncio.sleep(0.01)
        return self.is_there()

    def times(self, host: str) -> list[float]:
        """When a host was asked for images."""
        return [when for when, url in self.log if Target.parse(url).host == host]


@dataclass
class Played:
    """What came of it: responses in order of arrival, with the loop's time of each."""

    responses: list[Response]
    times: list[float]
    ended_s: float
    fetching: Fetching

    def by_url(self, urls: Sequence[str]) -> dict[str, Response]:
        return {urls[response.number]: response for response in self.responses}


class _Deliveries(SimpleQueue[list[Response | BaseException]]):
    """Deliveries for somebody in the loop."""

    def __init__(self) -> None:
        self.coming: asyncio.Queue[Response | BaseException] = asyncio.Queue()

    def put(self, item: list[Response | BaseException], block: bool = True, timeout: float | None = None) -> None:  # noqa: ARG002, FBT001, FBT002
        for response in item:
            self.coming.put_nowait(response)


def play(
    web: Web,
    urls: Sequence[str],
    settings: FetchSettings,
    *,
    open_at_most: int | None = None,
    deadline_s: float = UNIT_DEADLINE_S,
) -> Played:
    """Fetch URLs of a web; takes what is delivered at once."""
    loop = VirtualLoop()
    seeds = itertools.count(1)

    def random() -> float:  # the middle of what is drawn, and a little beside it, so that no two are at once
        return 0.5 + (next(seeds) * 0.618 % 1 - 0.5) / 1000

    async def main() -> Played:
        budget = Budget(BYTES_IN_FLIGHT_AT_MOST, 2 * settings.bytes_at_most, loop.call_soon)
        addresses = Addresses(settings.ports, settings.allow_addresses)
        most = open_at_most or 8 * settings.threads
        fetching = Fetching(
            settings,
            web.ask,
            blocked_urls=BlockList(),
            domains=Domains(),
            addresses=addresses,
            budget=budget,
            open_at_most=most,
        )
        fetching._wall, fetching._draw = lambda: EPOCH_S + loop.time(), random
        fetching._network = Network(web.connects, fetching.schedule.pause)
        call = Call(urls, deadline_s)
        call.deliveries = deliveries = _Deliveries()
        fetching.begin(call)
        responses, times = list[Response](), list[float]()
        while len(responses) < len(urls):
            response = await deliveries.coming.get()
            if isinstance(response, BaseException):
                raise AssertionError("a defect") from response
            responses.append(response)
            times.append(loop.time())
            budget.give_back(len(response.body or b""))
        ended_s = loop.time()
        assert not call.left
        await fetching.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return Played(responses, times, ended_s, fetching)

    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def settings_of(**values: Any) -> FetchSettings:
    """Settings of tests: no robots.txt, no limits of pace, unless given."""
    return FetchSettings.model_validate({"source": "web", "honour_robots": False, "requests_per_host_s": 1e9} | values)
