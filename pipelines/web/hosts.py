"""The state of each host: how often it may be asked, whether it asks to be left alone, and whether it answers.

Time is an argument: seconds of a monotonic clock, except for dates that servers write.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

from altalign.pipelines.web.calls import Fetch, Request, Target, Trouble

# Failures in a row, over at least the time of one try, before a host is given up for a while. One of which half of the
# URLs hang is given up by chance once in a million rows.
FAILURES_AT_MOST, FAILURES_OF_UNKNOWN_AT_MOST = 20, 2
GIVEN_UP_S = 300.0
REMEMBERED_S = 120.0  # how long a host is remembered after its last failure
PAUSED_FROM, PAUSED_S = 5, 1.0  # a host that answered before pauses after each failure from this one in a row on
HOSTS_KEPT = 20_000  # above this number, hosts are forgotten if they simply answer
BACKOFF_S, BACKOFF_S_AT_MOST = 1.0, 60.0  # longest pause before the second try; it doubles for each further try
RETRY_AFTER_S_AT_MOST = 86_400.0 * 365  # longer pauses make no difference


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
    waiting: "deque[tuple[Fetch, Request, asyncio.Future[None]]]" = field(default_factory=deque)  # for their turn
    listed_s: float = float("inf")  # the time of its entry in the schedule's heap; infinite without one
    running: int = 0  # requests under way
    is_known: bool = False  # whether it has ever answered
    answered_s: float = float("-inf")  # when it last did
    # Requests made since the last answer that got no answer of any kind. Those made before it say nothing: of many
    # under way, those that hang are the ones that are left.
    failures: int = 0
    failing_since_s: float = 0.0  # when the first of these was made
    failed_s: float = 0.0  # when the last one failed
    trouble: Trouble | None = None  # and how
    paused_until_s: float = 0.0  # after a failure
    given_up_until_s: float = 0.0  # until when it is not asked; what was waiting for it has ended

    @property
    def has_room(self) -> bool:
        """Whether another request may be made at the same time: one alone, before it has ever answered."""
        return self.running < (self.connections_at_most if self.is_known else 1)

    def ready_s(self) -> float:
        """The time of the next request, at the earliest."""
        return max(self.pace.ready_s(), self.paused_until_s)

    def is_forgettable(self, now: float) -> bool:
        """Whether it can be forgotten: it is idle, and no pause has to be kept."""
        remembered_s = self.failed_s + REMEMBERED_S if self.failures else 0.0
        until_s = max(self.pace.due_s, self.pace.paused_until_s, self.given_up_until_s, remembered_s)
        return not self.waiting and not self.running and now >= until_s

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
        self.answered_s, self.failures = now, 0
        self.paused_until_s = self.given_up_until_s = 0.0

    def failed(self, now: float, began: float, trouble: Trouble, *, patience_s: float) -> bool:
        """Notes a request, made at `began`, without an answer; returns whether the host is given up now."""
        if now < self.given_up_until_s or began < self.answered_s:
            return False
        if not self.failures:
            self.failing_since_s = began
        self.failures += 1
        self.failed_s, self.trouble = now, trouble
        lasts = trouble.is_certain or now - self.failing_since_s >= patience_s
        is_in_doubt = self.is_known and not trouble.is_certain
        if lasts and self.failures >= (FAILURES_AT_MOST if is_in_doubt else FAILURES_OF_UNKNOWN_AT_MOST):
            self.given_up_until_s = now + GIVEN_UP_S
            self.turn_away(now)
            return True
        if not self.is_known or self.failures >= PAUSED_FROM:
            self.paused_until_s = now + PAUSED_S
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
