"""Calls, and the URLs of a call on their way. They are data; `fetching` carries them out."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

from altalign.data.reasons import DropReason
from altalign.pipelines.web.http.request import Request
from altalign.pipelines.web.http.target import Target, TargetError
from altalign.pipelines.web.journal.outcomes import Response, Try
from altalign.pipelines.web.schedule.trouble import Trouble


@dataclass(frozen=True, slots=True)
class Delivery:
    """A response on its way to the caller, with the budget that it holds; or the error that stopped the loop."""

    response: Response | None
    bytes: int = 0
    error: BaseException | None = None


class Call:
    """One call of `Client.fetch`: what it asks for, and where the responses go.

    Attributes:
        targets: one for each URL; a text that says why if the URL cannot be asked for.
        lasts_s, ends_s: how long the call may take, and when the loop ends what is left of it.
        left: the fetches of images without a response, by number; only the loop uses it.
        deliveries: lists of responses, read by the caller.
    """

    def __init__(self, urls: Sequence[str], lasts_s: float):
        self.targets, self.lasts_s, self.ends_s = [_target(url) for url in urls], lasts_s, float("inf")
        self.timer: asyncio.TimerHandle | None = None
        self.left: dict[int, Fetch] = {}
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


@dataclass(slots=True, eq=False)
class Fetch:
    """The URL of an image or a robots.txt on its way, in one try or several.

    Attributes:
        call: the call that waits for it; of a robots.txt, the first.
        number: the position of the image in the call.
        start, target: the URL, and what to ask for next; redirects change it.
        is_robots: whether it is a robots.txt.
        tries, counted: the tries that ended, and how many of them count.
        redirects, redirect_code: how many redirects the current try has followed, and the status of the last.
        spent_s, began_s: seconds that the requests of the current try took, and when it began (seconds since 1970).
        request: the last request of the current try since a redirect; None before it is made.
        worker, asked_s: the asyncio task that fetches it, and when the request was made.
        is_ended: whether its response is delivered, or not waited for any more.
        held_s: seconds of the request in which it waited for this machine.
        is_overdue: whether the request is being ended because its time is over.
        holds_slot: whether the request holds one of the `fetch.threads` slots.
        seen, seen_s: the progress of the request when it last made some, and when that was.
    """

    call: Call
    start: Target
    number: int = -1
    is_robots: bool = False
    target: Target = field(init=False)
    tries: list[Try] = field(default_factory=list)
    counted: int = 0
    redirects: int = 0
    redirect_code: int | None = None
    spent_s: float = 0.0
    began_s: float = 0.0
    request: Request | None = None
    worker: "asyncio.Task[object] | None" = None
    is_ended: bool = False
    asked_s: float = 0.0
    held_s: float = 0.0
    is_overdue: bool = False
    holds_slot: bool = False
    seen: int = 0
    seen_s: float = 0.0

    def __post_init__(self) -> None:
        self.target = self.start

    def reason(self, reason: DropReason) -> DropReason:
        """A reason why it is not asked for; `http_not_asked` where no request for it was ever made."""
        return reason if self.tries or self.began_s else DropReason.HTTP_NOT_ASKED

    def begin_request(self, request: Request, now: float) -> None:
        """Notes that a request is made."""
        self.request, self.asked_s, self.held_s, self.is_overdue = request, now, 0.0, False
        self.holds_slot, self.seen, self.seen_s = True, 0, now

    def follow(self, target: Target, status: int) -> None:
        """Goes on with the target of a redirect."""
        self.target, self.redirects, self.redirect_code, self.request = target, self.redirects + 1, status, None

    def end_try(self, trouble: Trouble | None) -> int | None:
        """Records the end of the current try, if it was begun; returns the status that it ends with."""
        status = trouble.http_code if trouble else 200
        if self.began_s:
            request = self.request
            address, count = (request.address, request.bytes) if request else (None, 0)
            status = status if request else self.redirect_code
            reason, detail = (trouble.reason, trouble.detail) if trouble else (None, "")
            url = self.target.url
            self.tries.append(Try(url, address, self.began_s, self.spent_s, status, reason, detail, count))
        self.target, self.redirects, self.redirect_code, self.request = self.start, 0, None, None
        self.spent_s = self.began_s = 0.0
        return status
