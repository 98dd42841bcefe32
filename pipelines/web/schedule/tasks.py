"""Tasks: to fetch an image for a call, or the robots.txt of an origin. They are data; `schedule` runs them."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from altalign.data.reasons import DropReason
from altalign.pipelines.web.http.request import Answer, Request
from altalign.pipelines.web.http.target import Target, TargetError
from altalign.pipelines.web.journal.outcomes import Response, Try
from altalign.settings.curate import FetchSettings

FUSE_S = 60.0


class Delivery:
    """A response on its way to the caller, with the budget that it holds; or the error that stopped the loop."""

    __slots__ = ("bytes", "error", "response")

    def __init__(self, response: Response | None, count: int = 0, error: BaseException | None = None):
        self.response, self.bytes, self.error = response, count, error


class Call:
    """One call of `Client.fetch`: what it asks for, and where the responses go.

    Attributes:
        targets: one for each URL; a text that says why if the URL cannot be asked for.
        lasts_s, ends_s: how long the call may take, and when the loop ends what is left of it.
        is_fuse: whether the end is put off while all slots are busy.
        left: tasks that have not ended, by number; only the loop uses it.
        deliveries: lists of responses, read by the caller.
    """

    def __init__(self, urls: Sequence[str]):
        self.targets = [_target(url) for url in urls]
        self.lasts_s = self.ends_s = float("inf")
        self.ends_s_at_most = 0.0
        self.is_fuse = False
        self.timer: asyncio.TimerHandle | None = None
        self.left: dict[int, ImageTask] = {}
        self.deliveries: SimpleQueue[list[Delivery]] = SimpleQueue()
        self._outgoing: list[Delivery] = []

    def wait_for(self, ends_s: float) -> None:
        """Extends the end of a call with a fuse up to `ends_s_at_most`: images come, or a host must be asked slowly."""
        if self.is_fuse:
            self.ends_s = max(self.ends_s, min(ends_s, self.ends_s_at_most))

    def deliver(self, delivery: Delivery, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """Hands over a response. Those of one turn go together, for waking a thread stops the loop each time."""
        if not self._outgoing:
            call_soon(self._flush)
        self._outgoing.append(delivery)

    def _flush(self) -> None:
        self.deliveries.put(self._outgoing)
        self._outgoing = []


def _target(url: str) -> Target | str:
    try:
        return Target.parse(url)
    except TargetError as error:
        return f"{error}: nothing that can be asked over HTTP"


class Task:
    """Something to ask for, in one try or several.

    Attributes:
        start: the URL.
        target: what to ask for next; redirects change it.
        tries: the tries that ended; `counted`: how many of them count.
        redirects, redirect_code: how many redirects the current try has followed, and the status of the last.
        spent_s, began_s: seconds that the requests of the current try took, and when it began (seconds since 1970).
        request, worker, asked_s: the current request, the asyncio task that makes it, and when it was made; None while
            the task waits.
        holds_slot: whether the request holds one of the `fetch.threads` slots.
        is_doubtful: whether the request's host was doubtful.
        is_probe: whether the request was made while the network was away.
        is_held_up: whether the request waits for the budget.
        seen, seen_s: the progress of the request when it last made some, and when that was.
        is_ended: whether nothing is left to do.
    """

    __slots__ = (
        "asked_s",
        "began_s",
        "counted",
        "holds_slot",
        "is_doubtful",
        "is_ended",
        "is_held_up",
        "is_probe",
        "redirect_code",
        "redirects",
        "request",
        "seen",
        "seen_s",
        "spent_s",
        "start",
        "target",
        "tries",
        "worker",
    )

    def __init__(self, start: Target):
        self.start = self.target = start
        self.tries: list[Try] = []
        self.counted = self.redirects = self.seen = 0
        self.spent_s = self.began_s = self.asked_s = self.seen_s = 0.0
        self.redirect_code: int | None = None
        self.request: Request | None = None
        self.worker: asyncio.Task[None] | None = None
        self.holds_slot = self.is_doubtful = self.is_probe = self.is_held_up = self.is_ended = False

    @property
    def ends_s(self) -> float:
        """When it is too late for an answer, in the loop's time."""
        raise NotImplementedError

    def kept_bytes(self, answer: Answer) -> int:  # noqa: ARG002
        """How many bytes of an answer stay in flight until somebody takes them."""
        return 0

    def begin_anew(self) -> None:
        """Begins the next try, from the original URL."""
        self.target, self.redirects, self.redirect_code = self.start, 0, None

    def end_try(self, status: int | None, reason: DropReason | None, detail: str, request: Request | None) -> None:
        """Records the end of a try."""
        address, count = (request.address, request.bytes) if request else (None, 0)
        self.tries.append(Try(self.target.url, address, self.began_s, self.spent_s, status, reason, detail, count))
        self.spent_s = self.began_s = 0.0


class ImageTask(Task):
    """Fetches an image for a call."""

    __slots__ = ("call", "number")

    def __init__(self, call: Call, number: int, start: Target):
        super().__init__(start)
        self.call, self.number = call, number

    @property
    def ends_s(self) -> float:
        """The end of its call."""
        return self.call.ends_s

    def kept_bytes(self, answer: Answer) -> int:
        """The bytes of the body."""
        return len(answer.body)


class RobotsTask(Task):
    """Fetches the robots.txt of an origin, for the images that wait for it."""

    __slots__ = ("waiting",)

    def __init__(self, start: Target):
        super().__init__(start)
        self.waiting: list[ImageTask] = []

    @property
    def ends_s(self) -> float:
        """The end of the last call that waits for it."""
        return max((task.ends_s for task in self.waiting if not task.is_ended), default=0.0)


def unit_deadline_s(settings: FetchSettings, hosts: list[str]) -> float:
    """The seconds that a call for these hosts (one a URL) may take if `fetch.unit_deadline_s` is not set.

    It is a fuse, not an estimate: it assumes that all tries of all URLs time out, over all slots, and that the largest
    host is then asked at half its pace. It does not blow while all slots are busy, which on a slow network they can be
    for hours.
    """
    tries, largest = settings.retries + 1, max(Counter(hosts).values(), default=0)
    return (
        FUSE_S
        + tries * settings.timeout_s * (3 + len(hosts) / settings.threads)
        + 2 * largest / settings.requests_per_host_s
    )
