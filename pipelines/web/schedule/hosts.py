"""The state of each host: how often it may be asked, whether it asks to be left alone, and whether it answers.

Pure: time is an argument. Times are seconds of a monotonic clock, except for dates that servers write.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from altalign.pipelines.web.schedule.trouble import Trouble, TryError

if TYPE_CHECKING:
    import asyncio

    from altalign.pipelines.web.http.request import Request
    from altalign.pipelines.web.http.target import Target
    from altalign.pipelines.web.schedule.calls import Fetch

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


Waiting = tuple["Fetch", "asyncio.Future[Request]"]


@dataclass(slots=True, eq=False)
class Pace:
    """How often a host may be asked, at all its ports together.

    Attributes:
        interval_s: the average time between two requests.
        at_once: how many requests may come together.
        due_s: when the next request would be due if all came at the interval.
        paused_until_s, pause: until when the host asks to be left alone, and how it says so.
    """

    interval_s: float
    at_once: int
    due_s: float = 0.0
    paused_until_s: float = 0.0
    pause: Trouble | None = None

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
    """A host at one port.

    Attributes:
        name: its name, for people.
        pace: how often it may be asked, shared with its other ports.
        connections_at_most: how many requests may be under way.
        waiting: fetches that wait for their turn, in order; `waiting_again`: those whose try failed, which come after.
        running: how many requests are under way.
        unsettled: how many requests failed without it being clear yet whether the host is to blame.
        is_known: whether it has ever answered.
        answers, answered_s: how many requests got an answer, and when the last one did.
        lost: how many requests got none although others did meanwhile or later.
        failures: how many requests, made since the last answer, got no answer of any kind. Requests made before the
            last answer say nothing: of many under way, those that hang are the ones that are left.
        failing_since_s, first_failed_s: when the first of these requests was made, and when it failed.
        failed_s, trouble: when the last failure was, and what it was.
        probe_s: when a failing host may be asked again.
        given_up_until_s: until when it is not asked; what was waiting for it has ended.
        times_given_up: how often it was given up in a row.
        listed_s: the time of its entry in the schedule's heap; infinite without one.
    """

    name: str
    pace: Pace
    connections_at_most: int
    waiting: "deque[Waiting]" = field(default_factory=deque)
    waiting_again: "deque[Waiting]" = field(default_factory=deque)
    running: int = 0
    unsettled: int = 0
    is_known: bool = False
    answers: int = 0
    answered_s: float = float("-inf")
    lost: int = 0
    failures: int = 0
    failing_since_s: float = 0.0
    first_failed_s: float = 0.0
    failed_s: float = 0.0
    trouble: Trouble | None = None
    probe_s: float = 0.0
    given_up_until_s: float = 0.0
    times_given_up: int = 0
    listed_s: float = float("inf")

    @property
    def has_room(self) -> bool:
        """Whether another request may be made at the same time: a host that fails is asked one at a time."""
        is_failing = self.failures >= FAILURES_AT_MOST if self.is_known else self.failures > 1 or self.unsettled
        return self.running + self.unsettled < (1 if is_failing else self.connections_at_most)

    @property
    def is_wanted(self) -> bool:
        """Whether a fetch waits for it."""
        return bool(self.waiting or self.waiting_again)

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

    def is_given_up(self, now: float) -> bool:
        """Whether it is given up at the moment."""
        return now < self.given_up_until_s

    def is_forgettable(self, now: float) -> bool:
        """Whether it can be forgotten: it is idle, and no pause has to be kept."""
        is_idle = not (self.is_wanted or self.running or self.unsettled)
        remembered_s = self.failed_s + REMEMBERED_S if self.failures else 0.0
        return is_idle and now >= max(self.pace.due_s, self.pace.paused_until_s, self.given_up_until_s, remembered_s)

    def slow_down(self, delay_s: float) -> None:
        """Honours a Crawl-delay: one request at a time, with this long between two."""
        if delay_s > self.pace.interval_s:
            self.pace.interval_s = delay_s
            self.pace.at_once = self.connections_at_most = 1

    def put(self, fetch: "Fetch", turn: "asyncio.Future[Request]") -> None:
        """Queues a fetch: those of robots.txt and redirects in front, and behind those that were asked for less."""
        if fetch.is_robots or fetch.redirects:
            self.waiting.appendleft((fetch, turn))
        else:
            (self.waiting_again if fetch.counted else self.waiting).append((fetch, turn))

    def take(self) -> "Waiting | None":
        """The next fetch that has not ended meanwhile; None if there is none."""
        for waiting in (self.waiting, self.waiting_again):
            while waiting:
                fetch, turn = waiting.popleft()
                if not turn.done():
                    return fetch, turn
        return None

    def left_alone(self, fetch: "Fetch", now: float) -> Trouble | None:
        """Why it cannot be asked in time for a fetch; None if it can."""
        if self.is_given_up(now) and self.trouble is not None:
            detail = (
                f"{self.name} was given up after {self.failures} failures in a row, the last: {self.trouble.detail}"
            )
            return Trouble(fetch.reason(self.trouble.reason), detail)
        pause = self.pace.pause
        if pause is not None and self.pace.paused_until_s >= fetch.call.ends_s:
            detail = f"{self.name} asks to be left alone ({pause.detail})"
            return Trouble(fetch.reason(pause.reason), detail, pause.http_code)
        return None

    def turn_away(self, now: float) -> None:
        """Ends the fetches that wait in vain."""
        for waiting in (self.waiting, self.waiting_again):
            for _ in range(len(waiting)):
                fetch, turn = waiting.popleft()
                trouble = self.left_alone(fetch, now)
                if trouble is None:
                    waiting.append((fetch, turn))
                elif not turn.done():
                    turn.set_exception(TryError(trouble, is_final=True))

    def answered(self, now: float) -> None:
        """Notes an answer, whatever it says."""
        self.is_known = True
        self.answers, self.answered_s = self.answers + 1, now
        self.lost += self.failures
        self.failures = self.times_given_up = 0
        self.probe_s = self.given_up_until_s = 0.0

    def failed(self, now: float, began: float, trouble: Trouble, *, patience_s: float, is_certain: bool) -> bool:
        """Notes a request without an answer; returns whether the host is given up now.

        That is after `failures_at_most` failures in a row, one of them of a request that was made after the first
        failure: those that were under way together may have been unlucky together. A host that has never answered is
        given up by either.

        Args:
            now: when the request failed.
            began: when the request was made.
            trouble: how it failed.
            patience_s: a host that has failed for less time is not given up.
            is_certain: whether it is certain that there is no such host.
        """
        if self.is_given_up(now):
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
        if (is_enough and now - self.failing_since_s >= patience_s) or (is_certain and self.failures > 1):
            self.given_up_until_s = now + min(GIVEN_UP_S * 2**self.times_given_up, GIVEN_UP_S_AT_MOST)
            self.times_given_up = min(self.times_given_up + 1, 10)
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

    def of(self, target: "Target", now: float) -> Host:
        """The host of a target."""
        key = target.host, target.port
        host = self._hosts.get(key)
        if host is None:
            if len(self._hosts) >= self._at_most:
                self._forget(now)
            pace = self._paces.setdefault(target.host, Pace(self._interval_s, self._at_once))
            host = self._hosts[key] = Host(target.origin.partition("//")[2], pace, self._at_once)
        return host

    def _forget(self, now: float) -> None:
        self._hosts = {key: host for key, host in self._hosts.items() if not host.is_forgettable(now)}
        self._paces = {name: host.pace for (name, _), host in self._hosts.items()}
        self._at_most = max(HOSTS_KEPT, 2 * len(self._hosts))


def backoff_s(tries: int, random: Callable[[], float]) -> float:
    """Seconds to wait after this many tries: exponential with full jitter (`random` returns 0 to 1)."""
    return random() * min(BACKOFF_S * 2 ** min(tries - 1, 20), BACKOFF_S_AT_MOST)


def retry_after_s(retry_after: str, date: str, wall_s: float) -> float | None:
    """The seconds that a Retry-After asks for, as a number or as a date; None if it is neither.

    Args:
        retry_after: the header.
        date: the Date of the same answer. A Retry-After date is compared with it, because clocks differ.
        wall_s: now, in seconds since 1970, used if there is no Date.
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
