"""Decides which request is made next: hosts in turn, each at its pace; and ends requests that take too long.

A request holds one of the `fetch.threads` slots while it is being answered; one that makes no progress gives its slot
to another and continues without.
"""

import asyncio
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from itertools import count

from altalign.data.reasons import DropReason
from altalign.errors import AltalignError
from altalign.pipelines.web.http.request import Answer, Request, RequestError
from altalign.pipelines.web.schedule.budget import Budget
from altalign.pipelines.web.schedule.calls import Fetch
from altalign.pipelines.web.schedule.hosts import Host

PATIENCE_S = 0.5  # a request without progress for this long gives its slot back
SWEPT_EACH_S = 0.125  # how often that, and the time of requests, is checked
STALLED_S = 0.25  # if the check is later than this, the process had no time, and no host is to blame
PROGRESS_BYTES = 4_096  # what counts as progress
SHORT_S = 30.0  # how long this machine may have no open file for a single request
TYPICAL_BYTES = 100_000  # expected size of a body before any has arrived


class Schedule:
    """Keeps the requests under way and those to come; belongs to one loop.

    Attributes:
        under_way: the fetches whose requests are under way, with these.
        slots: how many of them hold a slot.
        is_closed: whether no request is begun any more.
    """

    def __init__(
        self,
        make_request: Callable[[Fetch], Request],
        ask: Callable[[Request], Awaitable[Answer]],
        budget: Budget,
        *,
        slots: int,
        open_at_most: int,
        timeout_s: float,
    ):
        """Must be called in the loop.

        Args:
            make_request: the next request of a fetch.
            ask: makes a request.
            budget: no request is begun while it has no room for another body.
            slots: how many requests may be answered at the same time.
            open_at_most: how many requests may be under way, including those that no server answers.
            timeout_s: the time of one try.
        """
        self._make_request, self._ask, self._budget = make_request, ask, budget
        self._timeout_s, self._slots_at_most = timeout_s, slots
        self._loop, self._number = asyncio.get_running_loop(), count()
        self._hosts: list[tuple[float, int, Host]] = []  # a heap by the time at which each may be asked
        self.under_way: dict[Fetch, Request] = {}
        self.slots, self._body_bytes, self._swept_s = 0, float(TYPICAL_BYTES), 0.0
        self._open_at_most, self._short_since_s = open_at_most, float("inf")
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_woken = self._is_paused = self.is_closed = False
        budget.on_room = self.wake

    @property
    def is_busy(self) -> bool:
        """Whether the network or this machine is the bottleneck: no slot or no room is left, or asking pauses."""
        has_room = self.slots < self._slots_at_most and self._budget.has_room(round(self._body_bytes))
        return self._is_paused or not has_room

    async def ask(self, host: Host, fetch: Fetch) -> Answer:
        """Makes the next request of a fetch when its turn comes, and ends it when its time is over.

        Raises:
            RequestError: it brought nothing.
            TryError: the host is not asked any more.
        """
        turn: asyncio.Future[Request] = self._loop.create_future()
        host.put(fetch, turn)
        self.list_host(host)
        kept_bytes = 0
        try:
            request = await turn
            answer = await self._ask(request)
            if fetch.is_ended:  # its cancellation was lost: connecting can swallow one
                raise asyncio.CancelledError
            kept_bytes = 0 if fetch.is_robots else len(answer.body)
            self._short_since_s = float("inf")
            return answer
        except asyncio.CancelledError:
            if fetch.worker is None or not fetch.is_overdue or fetch.is_ended or self.is_closed:
                raise
            while fetch.worker.cancelling():
                fetch.worker.uncancel()
            raise RequestError(DropReason.HTTP_TIMEOUT, _progress(fetch, self._timeout_s)) from None
        finally:
            if fetch in self.under_way:
                self._end(host, fetch, kept_bytes)

    def list_host(self, host: Host) -> None:
        """Gives a host its place among those to be asked, if it needs one and has none, or one that is too late."""
        ready_s = max(host.ready_s(), self._loop.time())
        if host.is_wanted and host.has_room and ready_s < host.listed_s:
            host.listed_s = ready_s
            heappush(self._hosts, (ready_s, next(self._number), host))
            self.wake()

    def wake(self) -> None:
        """Sees who may be asked, in the next turn of the loop."""
        if not self._is_woken and not self.is_closed:
            self._is_woken = True
            self._loop.call_soon(self._turn)

    def pause(self, *, is_paused: bool) -> None:
        """Begins no request until it is called again."""
        self._is_paused = is_paused
        self.wake()

    def close(self) -> None:
        """Begins no request any more."""
        self.is_closed = True
        for timer in (self._timer, self._sweeper):
            if timer is not None:
                timer.cancel()

    def _turn(self) -> None:
        self._is_woken = False
        if self.is_closed:
            return
        now = self._loop.time()
        while self._has_room() and (host := self._next_host(now)) is not None:
            self._begin(host, now)
            self.list_host(host)
        if self._timer is not None:
            self._timer.cancel()
        # where a host may be asked already there is no room: what makes room wakes the schedule
        due_s = self._hosts[0][0] if self._hosts else 0.0
        self._timer = self._loop.call_at(due_s, self.wake) if due_s > now else None

    def _has_room(self) -> bool:
        expected_bytes = round((len(self.under_way) + 1) * self._body_bytes)
        return (
            self.slots < self._slots_at_most
            and len(self.under_way) < self._open_at_most
            and not self._is_paused
            and self._budget.has_room(expected_bytes)
        )

    def _next_host(self, now: float) -> Host | None:
        """Takes the next host that may be asked off the heap; None if none may."""
        while self._hosts and self._hosts[0][0] <= now:
            listed_s, _, host = heappop(self._hosts)
            if listed_s != host.listed_s:
                continue  # it has an earlier entry
            host.listed_s = float("inf")
            if host.is_wanted and host.has_room and host.ready_s() <= now:
                return host
            self.list_host(host)
        return None

    def _begin(self, host: Host, now: float) -> None:
        if (waiting := host.take()) is None:
            return
        fetch, turn = waiting
        host.running += 1
        host.pace.begin(now)
        request = self._make_request(fetch)
        fetch.begin_request(request, now)
        self.slots += 1
        self.under_way[fetch] = request
        turn.set_result(request)
        if self._sweeper is None:
            self._swept_s = now
            self._sweeper = self._loop.call_at(now + SWEPT_EACH_S, self._sweep)

    def _end(self, host: Host, fetch: Fetch, kept_bytes: int) -> None:
        """Takes a request off those under way; the bytes of its body stay in the budget."""
        request = self.under_way.pop(fetch)
        fetch.spent_s += self._loop.time() - fetch.asked_s - fetch.held_s
        self.slots -= fetch.holds_slot
        fetch.holds_slot = False
        host.running -= 1
        self._body_bytes += (kept_bytes - self._body_bytes) / 32 if kept_bytes else 0.0
        self.list_host(host)
        self._budget.end(request.share, kept_bytes)
        self.wake()

    def _sweep(self) -> None:
        """Ends requests whose time is over, and takes slots from those without progress.

        Time in which a request waits for this machine, or in which the process stood still, does not count.
        """
        now = self._loop.time()
        passed_s = now - self._swept_s
        late_s = passed_s - SWEPT_EACH_S
        self._swept_s = now
        for fetch, request in self.under_way.items():
            fetch.held_s += passed_s if request.is_held_up else late_s if late_s > STALLED_S else 0.0
            fetch.held_s = min(fetch.held_s, now - fetch.asked_s)
            seen = 0 if request.status is None else 1 + request.bytes // PROGRESS_BYTES
            if seen > fetch.seen or (request.is_held_up and request.status is not None):
                fetch.seen, fetch.seen_s = seen, now
                self.slots += not fetch.holds_slot
                fetch.holds_slot = True
            elif fetch.holds_slot and now - fetch.seen_s >= PATIENCE_S:
                self.slots -= 1
                fetch.holds_slot = False
            spent_s = fetch.spent_s + now - fetch.asked_s - fetch.held_s
            is_over = spent_s >= self._timeout_s and not request.is_held_up
            if is_over and fetch.worker is not None:
                fetch.is_overdue = True  # cancelled again by each sweep, because connecting can swallow one
                fetch.worker.cancel()
        self._sweeper = self._loop.call_at(now + SWEPT_EACH_S, self._sweep) if self.under_way else None
        self.wake()

    def note_shortage(self) -> None:
        """Notes that this machine has too few open files, or too little memory, for a request.

        Raises:
            AltalignError: it has had no answer for half a minute of that.
        """
        self._short_since_s = min(self._short_since_s, self._loop.time())
        if self._loop.time() - self._short_since_s > SHORT_S:
            raise AltalignError(
                "too many open files, or too little memory for connections: raise `ulimit -n`, or lower [fetch] threads"
            )


def _progress(fetch: Fetch, timeout_s: float) -> str:
    within, request = f"within {timeout_s:g} s", fetch.request
    if request is not None and request.status is not None:
        return f"{request.bytes:,} bytes of the body {within}"
    if request is not None and request.address:
        return f"no answer of {request.address} {within}"
    return f"{fetch.target.host}: no address {within}"
