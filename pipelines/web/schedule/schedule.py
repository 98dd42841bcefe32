"""Decides who is asked next: hosts in turn, each at its pace; and ends requests that take too long.

Nothing here waits for a host: a task is in its host's queue, in the list of what is due later, or is a request under
way. A request holds one of the `fetch.threads` slots while it is being answered; one that makes no progress gives its
slot to another and continues without.
"""

import asyncio
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from altalign.data.reasons import DropReason
from altalign.errors import AltalignError
from altalign.pipelines.web.http.request import Answer, Request, RequestError
from altalign.pipelines.web.schedule.budget import Budget
from altalign.pipelines.web.schedule.hosts import Host
from altalign.pipelines.web.schedule.tasks import Task

PATIENCE_S = 0.5  # a request without progress for this long gives its slot back
SWEPT_EACH_S = 0.125  # how often that, and the time of requests, is checked
STALLED_S = 0.25  # if the check is later than this, the process had no time, and no host is to blame
PROGRESS_BYTES = 4_096  # what counts as progress
OPEN_AT_LEAST = 4
# shortages of open files or memory: counted once in, remembered for, and tolerated (number)
SHORT_EACH_S, SHORT_S, SHORTAGES_AT_MOST = 1.0, 30.0, 10
TYPICAL_BYTES = 100_000  # expected size of a body before any has arrived

Outcome = Answer | RequestError


class Requester(Protocol):
    """Makes the requests of tasks and handles their answers, which a schedule leaves to others."""

    @property
    def may_ask(self) -> bool:
        """Whether a request makes sense now."""
        ...

    def request(self, task: Task, *, keeps_alive: bool) -> Request:
        """The request that a task makes next."""
        ...

    def ask(self, request: Request) -> Awaitable[Answer]:
        """Makes a request.

        Raises:
            RequestError: it brought nothing.
        """
        ...

    async def ended(self, host: Host, task: Task, request: Request, outcome: Outcome) -> None:
        """Handles the end of a request; called in the asyncio task that made it, so it may wait."""
        ...

    def defect(self, error: BaseException) -> None:
        """Handles a defect of the schedule itself, after which callers would wait for ever."""
        ...


class Schedule:
    """Keeps the requests under way and those to come; belongs to one loop.

    Attributes:
        under_way: the tasks whose requests are under way.
        slots: how many of them hold a slot.
        open_at_most: how many requests may be under way.
    """

    def __init__(self, requester: Requester, *, budget: Budget, slots: int, open_at_most: int, timeout_s: float):
        """Must be called in the loop.

        Args:
            requester: makes the requests of tasks and handles their answers.
            budget: nothing is asked while it has no room for another body.
            slots: how many requests may be answered at the same time.
            open_at_most: how many requests may be under way, including those that no server answers.
            timeout_s: the time of one try.
        """
        self._requester, self._budget, self._timeout_s = requester, budget, timeout_s
        self._slots_at_most, self.open_at_most = slots, open_at_most
        self._loop, self._number = asyncio.get_running_loop(), count()
        self._hosts: list[tuple[float, int, Host]] = []  # a heap by the time at which each may be asked
        self._later: list[tuple[float, int, Callable[[], None]]] = []  # a heap, too
        self.under_way: dict[Task, None] = {}
        self.slots, self._body_bytes, self._swept_s = 0, float(TYPICAL_BYTES), 0.0
        self._open_wanted, self._short_s, self._shortages = open_at_most, float("-inf"), 0
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._workers = set[asyncio.Task[None]]()
        self._is_woken = self._is_closed = False
        budget.on_room = self.wake

    @property
    def is_busy(self) -> bool:
        """Whether all slots are taken or bodies have no room, so that the network or this machine is the bottleneck."""
        return self.slots >= self._slots_at_most or not self._budget.has_room(round(self._body_bytes))

    def put(self, host: Host, task: Task, *, first: bool = False) -> None:
        """Queues a task at its host."""
        host.put(task, first=first)
        self.list_host(host)

    def list_host(self, host: Host) -> None:
        """Gives a host its place among those to be asked, if it needs one and has none, or one that is too late."""
        now = self._loop.time()
        ready_s = max(host.ready_s(), now)
        if host.is_wanted and host.has_room and ready_s < host.listed_s:
            host.listed_s = ready_s
            heappush(self._hosts, (ready_s, next(self._number), host))
            self.wake()

    def later(self, at_s: float, then: Callable[[], None]) -> None:
        """Calls `then` at a time of the loop."""
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
            for worker in self._workers:
                worker.cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)
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
            while self._has_room() and (host := self._next_host(now)) is not None:
                if (task := host.take()) is not None:
                    self._begin(host, task, now)
                self.list_host(host)
            due_s = min(heap[0][0] if heap else float("inf") for heap in (self._hosts, self._later))
            if self._timer is not None:
                self._timer.cancel()
            # where a host may be asked already there is no room: what makes room wakes the schedule
            self._timer = self._loop.call_at(due_s, self.wake) if now < due_s < float("inf") else None
        except Exception as error:
            self._requester.defect(error)

    def _has_room(self) -> bool:
        expected_bytes = round((len(self.under_way) + 1) * self._body_bytes)
        return (
            self.slots < self._slots_at_most
            and len(self.under_way) < self.open_at_most
            and self._requester.may_ask
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

    def _begin(self, host: Host, task: Task, now: float) -> None:
        host.running += 1
        host.pace.begin(now)
        request = self._requester.request(task, keeps_alive=host.is_wanted)
        task.begin_request(request, now)
        self.slots += 1
        self.under_way[task] = None
        worker = task.worker = self._loop.create_task(self._run(host, task, request))
        self._workers.add(worker)
        worker.add_done_callback(lambda _: self._done(host, task, request, worker))
        if self._sweeper is None:
            self._swept_s = now
            self._sweeper = self._loop.call_at(now + SWEPT_EACH_S, self._sweep)

    async def _run(self, host: Host, task: Task, request: Request) -> None:
        """Makes a request, and hands over its outcome."""
        outcome: Outcome
        try:
            outcome = await self._requester.ask(request)
        except RequestError as error:
            outcome = error
        except asyncio.CancelledError:
            if not task.is_overdue or task.is_ended or self._is_closed:
                raise
            task.worker.uncancel()  # pyright: ignore[reportOptionalMemberAccess]
            outcome = RequestError(DropReason.HTTP_TIMEOUT, _progress(request, self._timeout_s))
        task.worker = None  # the outcome may be that it is asked for again at once
        self._end(host, task, request, task.kept_bytes(outcome) if isinstance(outcome, Answer) else 0)
        await self._requester.ended(host, task, request, outcome)
        self.list_host(host)  # what the outcome says may let it in earlier

    def _end(self, host: Host, task: Task, request: Request, kept_bytes: int = 0) -> None:
        """Takes a request off those under way."""
        del self.under_way[task]
        task.spent_s += self._loop.time() - task.asked_s - task.held_s
        self.slots -= task.holds_slot
        task.request, task.holds_slot = None, False
        host.running -= 1
        self.list_host(host)
        self._budget.end(request.share, kept_bytes)
        self.wake()

    def _done(self, host: Host, task: Task, request: Request, worker: "asyncio.Task[None]") -> None:
        self._workers.discard(worker)
        if task.request is request:  # it was cancelled, perhaps before it began
            self._end(host, task, request)
        if not worker.cancelled() and (error := worker.exception()) is not None:
            self._requester.defect(error)

    def _sweep(self) -> None:
        """Ends requests whose time is over, and takes slots from those without progress.

        Time in which a request waits for this machine, or in which the process stood still, does not count.
        """
        now = self._loop.time()
        passed_s = now - self._swept_s
        late_s = passed_s - SWEPT_EACH_S
        self._swept_s = now
        for task in self.under_way:
            request = task.request
            assert request is not None
            is_held_up = request.is_held_up
            task.held_s += passed_s if is_held_up else late_s if late_s > STALLED_S else 0.0
            task.held_s = min(task.held_s, now - task.asked_s)
            seen = 0 if request.status is None else 1 + request.bytes // PROGRESS_BYTES
            if seen > task.seen or (is_held_up and request.status is not None):
                task.seen, task.seen_s = seen, now
                self.slots += not task.holds_slot
                task.holds_slot = True
            elif task.holds_slot and now - task.seen_s >= PATIENCE_S:
                self.slots -= 1
                task.holds_slot = False
            is_over = task.spent_s + now - task.asked_s - task.held_s >= self._timeout_s
            if is_over and not is_held_up and task.worker is not None and not task.is_overdue:
                task.is_overdue = True
                task.worker.cancel()
        if self.open_at_most < self._open_wanted and now - self._short_s > SHORT_S:
            self.open_at_most, self._short_s, self._shortages = min(2 * self.open_at_most, self._open_wanted), now, 0
        self._sweeper = self._loop.call_at(now + SWEPT_EACH_S, self._sweep) if self.under_way else None
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
        self.open_at_most = max(OPEN_AT_LEAST, min(self.open_at_most, len(self.under_way)) * 3 // 4)

    def body_came(self, count_of_bytes: int) -> None:
        """Notes the size of a body, from which the size of the next ones is estimated."""
        self._body_bytes += (count_of_bytes - self._body_bytes) / 32


def _progress(request: Request, timeout_s: float) -> str:
    within = f"within {timeout_s:g} s"
    if request.status is not None:
        return f"{request.bytes:,} bytes of the body {within}"
    if request.address:
        return f"no answer of {request.address} {within}"
    return f"{request.target.host}: no address {within}"
