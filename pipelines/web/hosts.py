"""The state of each host: how often it may be asked, whether it asks to be left alone, and whether it answers.

Time is an argument: seconds of a monotonic clock, except for dates that servers write. `Network` tells hosts that do
not answer from a network that is gone.
"""

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

from altalign.errors import AltalignError
from altalign.pipelines.web.calls import Fetch, Request, Target, Trouble

# Failures in a row, over at least the time of one try, before a host is given up for a while. One of which many URLs
# hang is given more, so that it is given up once in a million rows of failures that are chance.
FAILURES_AT_MOST, FAILURES_AT_MOST_BY_CHANCE = 5, 20
CHANCE = 1e-6
GIVEN_UP_S, GIVEN_UP_S_AT_MOST = 60.0, 960.0  # the first time; then twice as long each time
REMEMBERED_S = 120.0  # how long a host is remembered after its last failure
PROBED_AFTER_S, PROBED_AFTER_S_AT_MOST = 0.5, 10.0  # a host that fails is asked again after pauses that double
HOSTS_KEPT = 20_000  # above this number, hosts are forgotten if they simply answer
BACKOFF_S, BACKOFF_S_AT_MOST = 1.0, 60.0  # longest pause before the second try; it doubles for each further try
RETRY_AFTER_S_AT_MOST = 86_400.0 * 365  # longer pauses make no difference
ANSWERED_AT_MOST = 8  # hosts that answered last, which are connected to when others do not answer
CONNECT_S = 3.0
PAUSES_S = (0.1, 1.0, 2.0, 4.0, 8.0)  # before each attempt; most news comes by itself in the first

Waiting = tuple[Fetch, Request, "asyncio.Future[None]"]
Endpoint = tuple[str, int]  # address and port


@dataclass(slots=True, eq=False)
class Pace:
    """How often a host may be asked, at all its ports together."""

    interval_s: float  # the average time between two requests
    at_once: int  # how many requests may come together
    due_s: float = 0.0  # when the next request would be due if all came at the interval
    paused_until_s: float = 0.0  # until when the host asks to be left alone
    pause: Trouble | None = None  # and how it says so

    def ready_s(self) -> float:
        """The time of the next request, at the earliest."""
        return max(self.due_s - (self.at_once - 1) * self.interval_s, self.paused_until_s)

    def begin(self, now: float) -> None:
        """Notes that a request is made."""
        self.due_s = max(self.due_s, now) + self.interval_s

    def leave_alone(self, until_s: float, trouble: Trouble) -> None:
        """Pauses requests until a time; a shorter pause changes nothing."""
        if until_s > self.paused_until_s:
            self.paused_until_s, self.pause = until_s, trouble


@dataclass(slots=True, eq=False)
class Host:
    """A host at one port."""

    name: str  # for people
    pace: Pace  # shared with its other ports
    connections_at_most: int
    waiting: deque[Waiting] = field(default_factory=deque)  # for their turn, in order
    listed_s: float = float("inf")  # the time of its entry in the schedule's heap; infinite without one
    running: int = 0  # requests under way
    unsettled: int = 0  # requests that failed without it being clear yet whether the host is to blame
    is_known: bool = False  # whether it has ever answered
    answers: int = 0
    answered_s: float = float("-inf")  # when it last did
    lost: int = 0  # requests without an answer although others got one meanwhile or later
    # Requests made since the last answer that got no answer of any kind. Those made before it say nothing: of many
    # under way, those that hang are the ones that are left.
    failures: int = 0
    failing_since_s: float = 0.0  # when the first of these was made
    first_failed_s: float = 0.0  # and when it failed
    failed_s: float = 0.0  # when the last one failed
    trouble: Trouble | None = None  # and how
    probe_s: float = 0.0  # when a failing host may be asked again
    given_up_until_s: float = 0.0  # until when it is not asked; what was waiting for it has ended
    times_given_up: int = 0  # in a row

    @property
    def has_room(self) -> bool:
        """Whether another request may be made at the same time: a host that fails is asked one at a time."""
        is_failing = self.failures >= FAILURES_AT_MOST if self.is_known else self.failures > 1 or self.unsettled
        return self.running + self.unsettled < (1 if is_failing else self.connections_at_most)

    @property
    def failures_at_most(self) -> int:
        """How many failures in a row are more than chance, by the share of requests that were lost so far."""
        if not self.is_known:
            return FAILURES_AT_MOST
        share = (self.lost + 0.2) / (self.lost + self.answers + 1)  # 0.2 of one request before there are any
        by_chance = 1 + math.ceil(math.log(CHANCE) / math.log(share))
        return min(max(by_chance, FAILURES_AT_MOST), FAILURES_AT_MOST_BY_CHANCE)

    def ready_s(self) -> float:
        """The time of the next request, at the earliest."""
        return max(self.pace.ready_s(), self.probe_s)

    def is_forgettable(self, now: float) -> bool:
        """Whether it can be forgotten: it is idle, and no pause has to be kept."""
        is_idle = not (self.waiting or self.running or self.unsettled)
        remembered_s = self.failed_s + REMEMBERED_S if self.failures else 0.0
        return is_idle and now >= max(self.pace.due_s, self.pace.paused_until_s, self.given_up_until_s, remembered_s)

    def left_alone(self, fetch: Fetch, now: float) -> Trouble | None:
        """Why it cannot be asked in time for a fetch; None if it can."""
        pause = self.pace.pause
        if now < self.given_up_until_s and self.trouble is not None:
            last = self.trouble.detail
            detail = f"{self.name} was given up after {self.failures} failures in a row, the last: {last}"
            return Trouble(fetch.reason(self.trouble.reason), detail, is_final=True)
        if pause is not None and self.pace.paused_until_s >= fetch.call.ends_s:
            detail = f"{self.name} asks to be left alone ({pause.detail})"
            return Trouble(fetch.reason(pause.reason), detail, pause.http_code, is_final=True)
        return None

    def turn_away(self, now: float) -> None:
        """Ends the fetches that wait in vain."""
        every, self.waiting = self.waiting, deque()
        for waiting in every:
            fetch, _, turn = waiting
            trouble = self.left_alone(fetch, now)
            if trouble is None:
                self.waiting.append(waiting)
            elif not turn.done():
                turn.set_exception(trouble)

    def answered(self, now: float) -> None:
        """Notes an answer, whatever it says."""
        self.is_known = True
        self.answers, self.answered_s = self.answers + 1, now
        self.lost += self.failures
        self.failures = self.times_given_up = 0
        self.probe_s = self.given_up_until_s = 0.0

    def failed(self, now: float, began: float, trouble: Trouble, *, patience_s: float) -> bool:
        """Notes a request, made at `began`, without an answer; returns whether the host is given up now.

        That is after `failures_at_most` failures in a row within `patience_s` at least, one of them of a request that
        was made after the first failure: those that were under way together may have been unlucky together. A host
        that has never answered is given up by either; one that is certainly not there by two.
        """
        if now < self.given_up_until_s:
            return False
        if began < self.answered_s:
            self.lost += 1
            return False
        if not self.failures:
            self.failing_since_s, self.first_failed_s = began, now
        is_asked_again = began >= self.first_failed_s
        self.failures += 1
        self.failed_s, self.trouble = now, trouble
        is_many = self.failures >= self.failures_at_most
        is_enough = is_asked_again and is_many if self.is_known else is_asked_again or is_many
        if (is_enough and now - self.failing_since_s >= patience_s) or (trouble.is_certain and self.failures > 1):
            self.given_up_until_s = now + min(GIVEN_UP_S * 2**self.times_given_up, GIVEN_UP_S_AT_MOST)
            self.times_given_up = min(self.times_given_up + 1, 10)
            self.turn_away(now)
            return True
        if self.failures > (FAILURES_AT_MOST - 1 if self.is_known else 1):
            self.probe_s = now + min(PROBED_AFTER_S * 2 ** min(self.failures - 2, 10), PROBED_AFTER_S_AT_MOST)
        return False


class Hosts:
    """The hosts that were asked, each at its ports; idle ones are forgotten when there are many."""

    def __init__(self, connections_per_host: int, requests_per_host_s: float):
        """Every host begins with these limits."""
        self._at_once, self._interval_s = connections_per_host, 1 / requests_per_host_s
        self._hosts: dict[tuple[str, int], Host] = {}
        self._paces: dict[str, Pace] = {}
        self._at_most = HOSTS_KEPT

    def get(self, target: Target, now: float) -> Host:
        """The host of a target."""
        key = target.host, target.port
        if key not in self._hosts:
            if len(self._hosts) >= self._at_most:
                self._hosts = {key: host for key, host in self._hosts.items() if not host.is_forgettable(now)}
                self._paces = {name: host.pace for (name, _), host in self._hosts.items()}
                self._at_most = max(HOSTS_KEPT, 2 * len(self._hosts))
            pace = self._paces.setdefault(target.host, Pace(self._interval_s, self._at_once))
            self._hosts[key] = Host(target.origin.partition("//")[2], pace, self._at_once)
        return self._hosts[key]


def backoff_s(tries: int, random: Callable[[], float]) -> float:
    """Seconds to wait after this many tries: exponential with full jitter (`random` returns 0 to 1)."""
    return random() * min(BACKOFF_S * 2 ** min(tries - 1, 20), BACKOFF_S_AT_MOST)


def retry_after_s(retry_after: str, date: str, wall_s: float) -> float | None:
    """The seconds that a Retry-After asks for, as a number or as a date; None if it is neither.

    A date is compared with the Date of the same answer, because clocks differ; without one with `wall_s` (since 1970).
    """
    value = retry_after.strip()
    if value.isascii() and value.isdecimal():
        return min(float(value[:12]), RETRY_AFTER_S_AT_MOST)
    until, then = _date_s(value), _date_s(date)
    return None if until is None else min(max(0.0, until - (wall_s if then is None else then)), RETRY_AFTER_S_AT_MOST)


def _date_s(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


class Network:
    """Tells whether the network is gone: a try that fails meanwhile says nothing about its host. Belongs to the loop.

    After a failure we wait for news: an answer from any host or, if none comes, a connection to a host that answered
    last. They are several hosts, so that one that has begun to refuse us is no gone network.
    """

    def __init__(self, connects: Callable[[Endpoint], Awaitable[bool]], pause: Callable[..., None]):
        """`connects` tells whether an endpoint can be connected to; `pause` is called as `is_paused` changes."""
        self._connects, self._pause = connects, pause
        self._answered: OrderedDict[str, Endpoint] = OrderedDict()
        self._news = asyncio.Event()
        self._attempts: asyncio.Task[bool] | None = None

    def answered(self, host: str, endpoint: Endpoint) -> None:
        """Notes that a host answered."""
        self._answered[host] = endpoint
        self._answered.move_to_end(host)
        if len(self._answered) > ANSWERED_AT_MOST:
            self._answered.popitem(last=False)
        self._news.set()

    async def was_gone(self, detail: str) -> bool:
        """Whether it was gone for a moment, and is back; that it is there mostly shows at once.

        `detail` is of the failure, for the AltalignError where it has stayed away for half a minute.
        """
        if not self._answered:
            return False
        if self._attempts is None:
            self._attempts = asyncio.create_task(self._look(detail))
        return await asyncio.shield(self._attempts)

    async def close(self) -> None:
        """Ends what is under way."""
        if self._attempts is not None:
            self._attempts.cancel()
            await asyncio.gather(self._attempts, return_exceptions=True)

    async def _look(self, detail: str) -> bool:
        self._news.clear()
        try:
            for attempt, pause_s in enumerate(PAUSES_S):
                try:
                    async with asyncio.timeout(pause_s):
                        await self._news.wait()
                except TimeoutError:
                    if not any(await asyncio.gather(*map(self._connects, list(self._answered.values())))):
                        self._pause(is_paused=True)
                        continue
                return attempt > 0
            raise AltalignError(
                f"the network is gone: {detail}, and hosts that answered before cannot be connected to; run the same "
                "command again when it is back, it goes on where it stopped"
            )
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
