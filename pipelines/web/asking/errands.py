"""What there is to do: errands, each to fetch an image for a call or the robots.txt of an origin. They are data; `schedule` does them."""

import asyncio
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from altalign.pipelines.web.http.request import Answer, Request
from altalign.pipelines.web.http.target import Target, TargetError
from altalign.pipelines.web.kept.outcomes import Response, Try
from altalign.reasons import DropReason


class Delivery:
    """A response on its way to who asked, with the bytes that it holds of the budget; or what stopped the loop."""

    __slots__ = ("bytes", "error", "response")

    def __init__(self, response: Response | None, count: int = 0, error: BaseException | None = None):
        self.response, self.bytes, self.error = response, count, error


class Call:
    """One call of `Client.fetch`: what it asks for, and where the responses go.

    Attributes:
        targets: one a URL; text where nothing can be asked: why. lasts_s, ends_s: how long it may take, and when the
        loop cuts off what is left; `is_fuse`: not before there is less to do.
        left: errands that have not ended, by number; of the loop alone.
        deliveries: lists of them, read by who asked.
    """

    def __init__(self, urls: Sequence[str]):
        self.targets = [_target(url) for url in urls]
        self.lasts_s = self.ends_s = float("inf")
        self.ends_s_at_most = 0.0
        self.is_fuse = False
        self.timer: asyncio.TimerHandle | None = None
        self.left: dict[int, ImageErrand] = {}
        self.deliveries: SimpleQueue[list[Delivery]] = SimpleQueue()
        self._outgoing: list[Delivery] = []

    def wait_for(self, ends_s: float) -> None:
        """Somebody has reason to take longer: a fuse lets him, up to `ends_s_at_most`."""
        if self.is_fuse:
            self.ends_s = max(self.ends_s, min(ends_s, self.ends_s_at_most))

    def deliver(self, delivery: Delivery, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """Hand over; those of one turn of the loop together, for each time another thread is woken it takes the interpreter from the loop."""
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


class Errand:
    """Something to be asked for, in one try or several.

    Attributes:
        start: the URL; `target`: what is to be asked next, after redirects another.
        tries: those that ended; `counted`: how many of them count. redirects, redirect_code, spent_s, began_s: of the
        try under way: how many, status of the last, seconds of requests, and when it began in seconds
            since 1970.
        request, task, asked_s: under way, and since when; None while it waits. holds_slot, is_doubtful, is_probe,
        is_held_up: of the request: it is one of `fetch.threads`; its host is doubtful; it was made while the network
            was away; it waits for the budget.
        seen, seen_s: how far the request had come when it was last seen to come on.
        is_ended: nothing more is to be done for it.
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
        "task",
        "tries",
    )

    def __init__(self, start: Target):
        self.start = self.target = start
        self.tries: list[Try] = []
        self.counted = self.redirects = self.seen = 0
        self.spent_s = self.began_s = self.asked_s = self.seen_s = 0.0
        self.redirect_code: int | None = None
        self.request: Request | None = None
        self.task: asyncio.Task[None] | None = None
        self.holds_slot = self.is_doubtful = self.is_probe = self.is_held_up = self.is_ended = False

    @property
    def ends_s(self) -> float:
        """When it will be too late."""
        raise NotImplementedError

    def kept_bytes(self, answer: Answer) -> int:  # noqa: ARG002
        """Bytes of an answer that stay in flight until somebody has taken them."""
        return 0

    def begin_anew(self) -> None:
        """The next try is from the start."""
        self.target, self.redirects, self.redirect_code = self.start, 0, None

    def end_try(self, status: int | None, reason: DropReason | None, detail: str, request: Request | None) -> None:
        """Write down a try."""
        address, count = (request.address, request.bytes) if request else (None, 0)
        self.tries.append(Try(self.target.url, address, self.began_s, self.spent_s, status, reason, detail, count))
        self.spent_s = self.began_s = 0.0


class ImageErrand(Errand):
    """An image of a call."""

    __slots__ = ("call", "number")

    def __init__(self, call: Call, number: int, start: Target):
        super().__init__(start)
        self.call, self.number = call, number

    @property
    def ends_s(self) -> float:
        """With its call."""
        return self.call.ends_s

    def kept_bytes(self, answer: Answer) -> int:
        """Those of the body."""
        return len(answer.body)


class RobotsErrand(Errand):
    """The robots.txt of an origin, for those that wait for it."""

    __slots__ = ("waiting",)

    def __init__(self, start: Target):
        super().__init__(start)
        self.waiting: list[ImageErrand] = []

    @property
    def ends_s(self) -> float:
        """With the last call that waits for it."""
        return max((errand.ends_s for errand in self.waiting if not errand.is_ended), default=0.0)
