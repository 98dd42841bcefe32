"""What is known of each host: how fast and how often it may be asked, whether it wants to be left alone, and whether it answers. Pure: time is an argument.

Times are seconds of a monotonic clock, but for dates that servers write.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from altalign.reasons import DropReason

if TYPE_CHECKING:
    from altalign.pipelines.web.asking.errands import Errand

FAILURES_AT_MOST = 5  # in a row, and over at least the time of one try: then a host is given up for a while
GIVEN_UP_S = 60.0  # the first time, then twice as long each time
GIVEN_UP_S_AT_MOST = 960.0
REMEMBERED_S = 120.0  # a host that fails is, for so long after the last time
PROBED_AFTER_S = 0.5  # a host that fails is asked once, then after pauses that double
PROBED_AFTER_S_AT_MOST = 10.0
BACKOFF_S = 1.0  # before the second try, at most; before each further one twice as long
BACKOFF_S_AT_MOST = 60.0
RETRY_AFTER_S_AT_MOST = 86_400.0 * 365  # what is beyond is as good as this


@dataclass(frozen=True)
class Trouble:
    """Why hosts are not asked: what the last try brought."""

    reason: DropReason
    detail: str
    http_code: int | None = None


@dataclass(slots=True, eq=False)
class Pace:
    """How often a host may be asked, at all its ports together.

    Attributes:
        interval_s: between two requests, on average.
        at_once: how many may come together before that.
        due_s: when the next request would be due if all came at the interval.
        paused_until_s, pause: it wants to be left alone, and how it said so.
    """

    interval_s: float
    at_once: int
    due_s: float = 0.0
    paused_until_s: float = 0.0
    pause: Trouble | None = None

    def ready_s(self) -> float:
        """When the next request may be made."""
        return max(self.due_s - (self.at_once - 1) * self.interval_s, self.paused_until_s)

    def begin(self, now: float) -> None:
        """A request is made."""
        self.due_s = max(self.due_s, now) + self.interval_s

    def leave_alone(self, until_s: float, trouble: Trouble) -> None:
        """Ask nothing before a time; a shorter pause changes nothing."""
        if until_s > self.paused_until_s:
            self.paused_until_s, self.pause = until_s, trouble


@dataclass(slots=True, eq=False)
class Host:
    """A host at one port.

    Attributes:
        name: for people.
        pace: of the host, shared with its other ports.
        connections_at_most: requests at a time.
        waiting: what is to be asked of it, in order.
        running: requests under way; `unsettled`: those that failed, where it is not known yet whether the host is to
        blame.
        is_known: it has answered once.
        failures: in a row, without an answer of any kind; `failing_since_s`, `first_failed_s`: when the first of them
        was begun, and when it was clear.
        trouble: what the last failure was.
        probe_s: a host that fails is not asked before.
        given_up_until_s: nothing is asked before, and what waits has ended.
        failed_s: when the last failure was. is_listed, listed_s: whether `turns.Turns` has it in one of its lists, and
        until when in that of those whose time comes later.
    """

    name: str
    pace: Pace
    connections_at_most: int
    waiting: "deque[Errand]" = field(default_factory=deque)
    running: int = 0
    unsettled: int = 0
    is_known: bool = False
    failures: int = 0
    failing_since_s: float = 0.0
    first_failed_s: float = 0.0
    failed_s: float = 0.0
    trouble: Trouble | None = None
    probe_s: float = 0.0
    given_up_until_s: float = 0.0
    times_given_up: int = 0
    is_listed: bool = False
    listed_s: float = 0.0

    @property
    def is_doubtful(self) -> bool:
        """Whether it may well not answer: it did not the last time, or never did and has been asked already."""
        return self.failures > 0 or self.unsettled > 0 or (self.running > 0 and not self.is_known)

    @property
    def is_silent(self) -> bool:
        """Whether it has never answered, and not for want of being asked."""
        return not self.is_known and self.failures > 0

    @property
    def has_room(self) -> bool:
        """Whether another request may be under way."""
        return self.running + self.unsettled < (1 if self.failures > 1 or self.unsettled else self.connections_at_most)

    def ready_s(self) -> float:
        """When the next request may be made."""
        return max(self.pace.ready_s(), self.probe_s)

    def is_given_up(self, now: float) -> bool:
        """Whether it is not asked at the moment."""
        return now < self.given_up_until_s

    def is_forgettable(self, now: float) -> bool:
        """Whether little would be lost if it were forgotten: it is not asked, and owes nobody a pause."""
        is_idle = not self.waiting and not self.running and not self.unsettled
        remembered_s = self.failed_s + REMEMBERED_S if self.failures else 0.0
        return is_idle and now >= max(self.pace.due_s, self.pace.paused_until_s, self.given_up_until_s, remembered_s)

    def slow_down(self, delay_s: float) -> None:
        """Honour a Crawl-delay: one request at a time, and so long between two."""
        if delay_s > self.pace.interval_s:
            self.pace.interval_s = delay_s
            self.pace.at_once = self.connections_at_most = 1

    def begin(self, now: float) -> None:
        """A request is made."""
        self.running += 1
        self.pace.begin(now)

    def answered(self) -> None:
        """It answered, whatever it said."""
        self.is_known = True
        self.failures = self.times_given_up = 0
        self.probe_s = self.given_up_until_s = 0.0

    def failed(self, now: float, began: float, trouble: Trouble, *, patience_s: float, is_certain: bool) -> bool:
        """It did not answer; whether it is given up now: after `FAILURES_AT_MOST`, or, where it never has answered, once one more try after a failure fails.

        Args:
            now: when that was clear.
            began: when the request was made.
            trouble: what it brought.
            patience_s: a host that fails for less time is not given up.
            is_certain: there is no such host.
        """
        if self.is_given_up(now):
            return False
        if not self.failures:
            self.failing_since_s, self.first_failed_s = began, now
        is_probed = self.is_silent and began >= self.first_failed_s
        self.failures += 1
        self.failed_s, self.trouble = now, trouble
        is_long = (is_probed or self.failures >= FAILURES_AT_MOST) and now - self.failing_since_s >= patience_s
        if is_long or (is_certain and self.failures > 1):
            self.given_up_until_s = now + min(GIVEN_UP_S * 2**self.times_given_up, GIVEN_UP_S_AT_MOST)
            self.times_given_up = min(self.times_given_up + 1, 10)
            return True
        if self.failures > 1:
            self.probe_s = now + min(PROBED_AFTER_S * 2 ** min(self.failures - 2, 10), PROBED_AFTER_S_AT_MOST)
        return False


def backoff_s(tries: int, random: Callable[[], float]) -> float:
    """How long to wait after so many tries: exponential, with full jitter (`random` gives 0 to 1)."""
    return random() * min(BACKOFF_S * 2 ** min(tries - 1, 20), BACKOFF_S_AT_MOST)


def retry_after_s(retry_after: str, date: str, wall_s: float) -> float | None:
    """Seconds that a Retry-After asks for, as a number or as a date; None where it is neither.

    Args:
        retry_after: the header.
        date: the Date of the same answer, beside which a date is read: clocks differ.
        wall_s: now, in seconds since 1970, for where there is none.
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
