"""Tasks: to fetch an image for a call, or the robots.txt of an origin. They are data; `schedule` runs them."""

import asyncio
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from altalign.data.reasons import DropReason
from altalign.pipelines.web.http.request import Answer, Request
from altalign.pipelines.web.http.target import Target, TargetError
from altalign.pipelines.web.journal.outcomes import Response, Try


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
        left: tasks that have not ended, by number; only the loop uses it.
        deliveries: lists of responses, read by the caller.
    """

    def __init__(self, urls: Sequence[str], lasts_s: float):
        self.targets, self.lasts_s, self.ends_s = [_target(url) for url in urls], lasts_s, float("inf")
        self.timer: asyncio.TimerHandle | None = None
        self.left: dict[int, ImageTask] = {}
        self.deliveries: SimpleQueue[list[Delivery]] = SimpleQueue()
        self._outgoing: list[Delivery] = []

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
        held_s: seconds of the current request in which it waited for this machine.
        is_overdue: whether the current request is being ended because its time is over.
        holds_slot: whether the request holds one of the `fetch.threads` slots.
        seen, seen_s: the progress of the request when it last made some, and when that was.
        is_ended: whether nothing is left to do.
    """

    __slots__ = (
        "asked_s",
        "began_s",
        "counted",
        "held_s",
        "holds_slot",
        "is_ended",
        "is_overdue",
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
        self.spent_s = self.began_s = self.asked_s = self.held_s = self.seen_s = 0.0
        self.redirect_code: int | None = None
        self.request: Request | None = None
        self.worker: asyncio.Task[None] | None = None
        self.holds_slot = self.is_overdue = self.is_ended = False

    @property
    def ends_s(self) -> float:
        """When it is too late for an answer, in the loop's time."""
        raise NotImplementedError

    def kept_bytes(self, answer: Answer) -> int:  # noqa: ARG002
        """How many bytes of an answer stay in flight until a caller takes them."""
        return 0

    def begin_request(self, request: Request, now: float) -> None:
        """Notes that a request is made."""
        self.request, self.asked_s, self.held_s, self.is_overdue = request, now, 0.0, False
        self.holds_slot, self.seen, self.seen_s = True, 0, now

    def begin_again(self) -> None:
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
