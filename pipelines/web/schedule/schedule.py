"""Decides who is asked next: hosts in turn, each at its pace, those that answer before those that do not.

Nothing here waits for a host: a task is in its host's queue, in the list of what is due later, or is a request under
way. A request holds one of the `fetch.threads` slots while it is being answered; one that makes no progress gives its
slot to another and continues without.
"""

import asyncio
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol

from altalign.data.reasons import DropReason
from altalign.errors import AltalignError
from altalign.pipelines.web.http.request import Answer, Request, RequestError
from altalign.pipelines.web.schedule.budget import Budget
from altalign.pipelines.web.schedule.host_queue import HostQueue
from altalign.pipelines.web.schedule.hosts import Host
from altalign.pipelines.web.schedule.reachability import Network
from altalign.pipelines.web.schedule.tasks import Task

PATIENCE_S = 0.5  # a request without progress for this long gives its slot back
SWEPT_EACH_S = 0.125  # how often that is checked
STALLED_S = 0.25  # if the check is later than this, the process had no time, and no host is to blame
# share of the time of a try in which a host that has never answered must begin to, when it is asked again
PROBE = 0.5
COMES_ON_BYTES = 4_096  # what counts as progress
OPEN_AT_LEAST = 4
# shortages of open files or memory: counted once in, remembered for, and tolerated (number)
SHORT_EACH_S, SHORT_S, SHORTAGES_AT_MOST = 1.0, 30.0, 10
TYPICAL_BYTES = 100_000  # expected size of a body before any has arrived

Brought = Answer | RequestError


class Requester(Protocol):
    """Makes the requests of tasks and handles their answers, which a schedule leaves to others."""

    def request(self, task: Task, *, keeps_alive: bool) -> Request:
        """The request that a task makes next."""
        ...

    def ask(self, request: Request) -> Awaitable[Answer]:
        """Makes a request.

        Raises:
            RequestError: it brought nothing.
        """
        ...

    async def ended(self, host: Host, task: Task, request: Request, brought: Brought) -> None:
        """Handles the end of a request; called in the worker that made it, so it may wait."""
        ...

    def defect(self, error: BaseException) -> None:
        """Handles a defect of the schedule itself, after which callers would wait for ever."""
        ...


class Claim(NamedTuple):
    """A request under way."""

    host: Host
    task: Task
    request: Request


class Schedule:
    """Keeps the requests under way and those to come; belongs to one loop.

    Attributes:
        slots: how many requests hold a slot.
        open_at_most: how many requests may be under way.
    """

    def __init__(
        self,
        requester: "Requester",
        *,
        budget: Budget,
        network: Network,
        slots: int,
        open_at_most: int,
        timeout_s: float,
    ):
        """Must be called in the loop.

        Args:
            requester: makes the requests of tasks and handles their answers.
            budget: nothing is asked while it has no room for another body.
            network: nothing is asked while it is away.
            slots: how many requests may be answered at the same time.
            open_at_most: how many requests may be under way, including those that nobody answers.
            timeout_s: the time of one try.
        """
        self._requester, self._budget, self._network = requester, budget, network
        self._slots_at_most, self.open_at_most, self._timeout_s = slots, open_at_most, timeout_s
        self._loop = asyncio.get_running_loop()
        self._queue, self._workers = HostQueue(), set[asyncio.Task[None]]()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._under_way: dict[Task, None] = {}
        self._doubtful = self.slots = 0
        self._body_bytes = float(TYPICAL_BYTES)
        self._swept_s = self._stalled_s = 0.0
        self._open_wanted, self._short_s, self._shortages = open_at_most, float("-inf"), 0
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_woken = self._is_closed = False
        budget.on_room = self.wake

    @property
    def running(self) -> int:
        """How many requests are under way."""
        return len(self._under_way)

    @property
    def is_busy(self) -> bool:
        """Whether all slots are taken or bodies have no room, so that the network or this machine is the bottleneck."""
        return self.slots >= self._slots_at_most or not self._budget.has_room(round(self._body_bytes))

    def put(self, host: Host, task: Task, *, first: bool = False) -> None:
        """Queues a task at its host."""
        host.put(task, first=first)
        self._queue.add(host, self._loop.time())
        self.wake()

    def again(self, host: Host) -> None:
        """Notes that a host may have room for another request."""
        self._queue.add(host, self._loop.time())
        self.wake()

    def later(self, at_s: float, then: Callable[[], None]) -> None:
        """Calls `then` at a time of the loop, and sees who may be asked."""
        heappush(self._later, (at_s, next(self._number), then))
        self.wake()

    def wake(self) -> None:
        """Sees who may be asked, in the next turn of the loop."""
        if not self._is_woken and not self._is_closed:
            self._is_woken = True
            self._loop.call_soon(self._turn)

    async def close(self) -> None:
        """Ends all requests and stops."""
        self._is_closed = True
        for timer in (self._timer, self._sweeper):
            if timer is not None:
                timer.cancel()
        while self._workers:
            workers = list(self._workers)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            # of workers that had ended already gathering waits for nothing, also not for what takes them off the list
            await asyncio.sleep(0)

    def _turn(self) -> None:
        self._is_woken = False
        if self._is_closed:
            return
        try:
            now = self._loop.time()
            while self._later and self._later[0][0] <= now:
                heappop(self._later)[2]()
            self._queue.due(now)
            while (claim := self._claim(now)) is not None:
                worker = self._loop.create_task(self._work(claim))
                self._workers.add(worker)
                worker.add_done_callback(self._done)
            self._set_timer(min(self._queue.due(now), self._later[0][0] if self._later else float("inf")))
        except Exception as error:
            self._requester.defect(error)

    def _may_ask(self) -> bool:
        expected = round((self.running + 1) * self._body_bytes)
        return self.running < self.open_at_most and self._network.may_be_asked and self._budget.has_room(expected)

    def _next(self, now: float) -> Host | None:
        """The next host. Doubtful ones get no slots, and a quarter of all requests while others wait for a slot."""
        while True:
            has_slot = self.slots < self._slots_at_most
            host = self._queue.sure(now) if has_slot else None
            if host is None and self._doubtful < (
                self.open_at_most // 4 if self._queue.has_sure else self.open_at_most
            ):
                host = self._queue.doubtful(now)
            if host is not None or not (has_slot and self._queue.has_sure):  # otherwise a host is no longer doubtful
                return host

    def _set_timer(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due_s == float("inf") else self._loop.call_at(due_s, self.wake)

    def _claim(self, now: float) -> Claim | None:
        """The next request, which counts as under way from now on; None if nothing may be asked now."""
        while self._may_ask() and (host := self._next(now)) is not None:
            task = host.take()
            if task is None:
                continue
            is_doubtful = host.is_doubtful
            host.begin(now)
            self._network.asked()
            request = task.request = self._requester.request(task, keeps_alive=host.is_wanted)
            task.is_doubtful, task.holds_slot, task.is_probe = is_doubtful, not is_doubtful, self._network.is_away
            task.seen, task.seen_s = 0, now
            self.slots += task.holds_slot
            self._doubtful += task.is_doubtful
            self._under_way[task] = None
            self._queue.add(host, now)
            if self._sweeper is None:
                self._swept_s = now
                self._sweeper = self._loop.call_at(now + SWEPT_EACH_S, self._sweep)
            return Claim(host, task, request)
        return None

    async def _work(self, claim: Claim | None) -> None:
        """Makes one request after the other, as long as there are any."""
        worker = asyncio.current_task()
        while claim is not None:
            claim.task.worker = worker
            if claim.task.is_ended:  # before this worker had its turn
                self._end(claim.host, claim.task)
            else:
                await self._run(*claim)
            if claim.task.worker is worker:  # otherwise it is already under way again, after a redirect
                claim.task.worker = None
            claim = None if self._is_closed else self._claim(self._loop.time())

    async def _run(self, host: Host, task: Task, request: Request) -> None:
        """Makes a request within the rest of the time of its try."""
        is_probe = host.is_silent

        def left_s() -> float:
            is_cut = is_probe and host.is_silent and request.status is None
            return max(0.0, self._timeout_s - task.spent_s) * (PROBE if is_cut else 1.0)

        limit = _Limit(left_s, self._loop, lambda: self._stalled_s)
        brought: Brought = RequestError(DropReason.HTTP_TIMEOUT, "ended before its time")

        def on_wait(*, begins: bool, keeps_slot: bool = True) -> None:
            task.is_held_up = begins and keeps_slot
            limit.hold(begins=begins)

        request.on_wait = on_wait
        try:
            brought = await self._requester.ask(request)
        except RequestError as error:
            brought = error
        except asyncio.CancelledError:
            if not limit.is_over or task.is_ended or self._is_closed:
                raise
            limit.worker.uncancel()
            brought = RequestError(DropReason.HTTP_TIMEOUT, _so_far(request, task.spent_s + left_s()))
        finally:
            task.spent_s += limit.close()
            self._end(host, task)
            self._budget.end(request.share, task.kept_bytes(brought) if isinstance(brought, Answer) else 0)
        await self._requester.ended(host, task, request, brought)

    def _end(self, host: Host, task: Task) -> None:
        del self._under_way[task]
        self.slots -= task.holds_slot
        self._doubtful -= task.is_doubtful
        task.holds_slot = task.is_doubtful = False
        task.request = None
        host.running -= 1
        self.again(host)

    def _done(self, worker: "asyncio.Task[None]") -> None:
        self._workers.discard(worker)
        if not worker.cancelled() and (error := worker.exception()) is not None:
            self._requester.defect(error)

    def _sweep(self) -> None:
        """Notices stalls of the loop, and moves slots from requests without progress to those that make some."""
        now = self._loop.time()
        late_s = now - self._swept_s - SWEPT_EACH_S
        self._stalled_s += late_s if late_s > STALLED_S else 0.0
        self._swept_s = now
        for task in self._under_way:
            request = task.request
            seen = 0 if request is None or request.status is None else 1 + request.bytes // COMES_ON_BYTES
            if seen > task.seen or task.is_held_up:
                task.seen, task.seen_s = seen, now
                self.slots += not task.holds_slot
                task.holds_slot = True
            elif task.holds_slot and now - task.seen_s >= PATIENCE_S:
                self.slots -= 1
                task.holds_slot = False
        if self.open_at_most < self._open_wanted and now - self._short_s > SHORT_S:
            self.open_at_most, self._short_s, self._shortages = min(2 * self.open_at_most, self._open_wanted), now, 0
        self._sweeper = self._loop.call_at(now + SWEPT_EACH_S, self._sweep) if self._under_way else None
        self.wake()

    def ask_less(self) -> None:
        """Allows fewer requests for half a minute, because this machine cannot have so many under way.

        Raises:
            AltalignError: it repeatedly cannot have even a few.
        """
        now = self._loop.time()
        if now - self._short_s < SHORT_EACH_S:
            return  # a request that was begun together with the one that counted
        self._short_s = now
        self._shortages += self.open_at_most == OPEN_AT_LEAST
        if self._shortages > SHORTAGES_AT_MOST:
            raise AltalignError(
                "too many open files, or too little memory for connections: raise `ulimit -n`, or lower [fetch] threads"
            )
        self.open_at_most = max(OPEN_AT_LEAST, min(self.open_at_most, self.running) * 3 // 4)

    def came(self, count_of_bytes: int) -> None:
        """Notes the size of a body, from which the size of the next ones is estimated."""
        self._body_bytes += (count_of_bytes - self._body_bytes) / 32


class _Limit:
    """Ends the asyncio task that creates it after a time. Waits for the budget and stalls of the loop do not count."""

    def __init__(self, left_s: Callable[[], float], loop: asyncio.AbstractEventLoop, stalled_s: Callable[[], float]):
        worker = asyncio.current_task()
        assert worker is not None
        self.worker, self.is_over = worker, False
        self._loop, self._left_s, self._stalled_s = loop, left_s, stalled_s
        self._began_s, self._stalled_before_s, self._held_s = loop.time(), stalled_s(), 0.0
        self._timer: asyncio.Handle = loop.call_at(self._began_s + left_s(), self._due)

    def hold(self, *, begins: bool) -> None:
        """Stops the clock, or starts it again."""
        self._timer.cancel()
        self._held_s += -self._loop.time() if begins else self._loop.time()
        # not directly: the worker might end only after this request, in the middle of the next
        if not begins:
            self._timer = self._loop.call_soon(self._due)

    def close(self) -> float:
        """Stops watching; returns the seconds that the request took, without those on hold."""
        self._timer.cancel()
        return self._loop.time() - self._began_s - self._held_s

    def _due(self) -> None:
        end_s = self._began_s + self._left_s() + self._held_s + self._stalled_s() - self._stalled_before_s
        if end_s > self._loop.time():
            self._timer = self._loop.call_at(end_s, self._due)
        else:
            self.is_over = True
            self.worker.cancel()


def _so_far(request: Request, timeout_s: float) -> str:
    within = f"within {timeout_s:g} s"
    if request.status is not None:
        return f"{request.bytes:,} bytes of the body {within}"
    if request.address:
        return f"no answer of {request.address} {within}"
    return f"{request.target.host}: no address {within}"
