"""Who is asked next: hosts in turn, each at its pace, those that answer before those that do not.

Nothing here waits for a host: an errand stands in its host's queue, in the list of what is due later, or is a request
under way. A request holds one of `fetch.threads` slots while it is being answered; one that does not come on gives its
slot to another, and goes on without.
"""

import asyncio
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol

from altalign.errors import AltalignError
from altalign.pipelines.web.asking.budget import Budget
from altalign.pipelines.web.asking.errands import Errand
from altalign.pipelines.web.asking.hosts import Host
from altalign.pipelines.web.asking.reachability import Network
from altalign.pipelines.web.asking.turns import Turns
from altalign.pipelines.web.http.request import Answer, Request, RequestError
from altalign.reasons import DropReason

PATIENCE_S = 0.5  # a request that has not come on for so long gives its slot back
SWEPT_EACH_S = 0.125  # how often that is looked at
STALLED_S = 0.25  # later than that, and this process had no time: no host is to blame
# of the time of a try: within so much of it a host that has never answered must begin to, when it is asked again
PROBE = 0.5
COMES_ON_BYTES = 4_096  # what counts as coming on
OPEN_AT_LEAST = 4
# of open files or memory: counted once in, remembered for, borne
SHORT_EACH_S, SHORT_S, SHORTAGES_AT_MOST = 1.0, 30.0, 10
TYPICAL_BYTES = 100_000  # of a body, before any has come

Brought = Answer | RequestError


class Conduct(Protocol):
    """What a schedule leaves to others."""

    def request(self, errand: Errand, *, keeps_alive: bool) -> Request:
        """The request that an errand makes next."""
        ...

    def ask(self, request: Request) -> Awaitable[Answer]:
        """Make a request.

        Raises:
            RequestError: it brought nothing.
        """
        ...

    async def ended(self, host: Host, errand: Errand, request: Request, brought: Brought) -> None:
        """Called when a request has ended, in its own task: it may wait."""
        ...

    def defect(self, error: BaseException) -> None:
        """Something is wrong with the schedule itself: whoever waits for responses would wait for ever."""
        ...


class Claim(NamedTuple):
    """A request under way."""

    host: Host
    errand: Errand
    request: Request


class Schedule:
    """Requests under way and those to come; belongs to one loop.

    Attributes:
        running: requests under way.
        slots: how many of them hold a slot.
        open_at_most: how many there may be.
    """

    def __init__(
        self, conduct: "Conduct", *, budget: Budget, network: Network, slots: int, open_at_most: int, timeout_s: float
    ):
        """To be called in the loop.

        Args:
            conduct: makes requests of errands, and is told what they brought.
            budget: nothing is asked while bodies have no room.
            network: nothing is asked while it is away.
            slots: requests that are being answered at a time.
            open_at_most: requests under way at a time, those that nobody answers included.
            timeout_s: of one try.
        """
        self._conduct, self._budget, self._network = conduct, budget, network
        self._slots_at_most, self.open_at_most, self._timeout_s = slots, open_at_most, timeout_s
        self._loop = asyncio.get_running_loop()
        self._turns, self._tasks = Turns(), set[asyncio.Task[None]]()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._under_way: dict[Errand, None] = {}
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
        """Requests under way."""
        return len(self._under_way)

    @property
    def is_busy(self) -> bool:
        """Whether all slots are taken, or bodies have no room: what takes time is the network or this machine, not waiting for hosts."""
        return self.slots >= self._slots_at_most or not self._budget.has_room(round(self._body_bytes))

    def put(self, host: Host, errand: Errand, *, first: bool = False) -> None:
        """Let an errand wait for its host's turn."""
        host.waiting.appendleft(errand) if first else host.waiting.append(errand)
        self._turns.add(host, self._loop.time())
        self.wake()

    def again(self, host: Host) -> None:
        """A host may have room for another request."""
        self._turns.add(host, self._loop.time())
        self.wake()

    def later(self, at_s: float, then: Callable[[], None]) -> None:
        """Call `then` at a time of the loop, and see who may be asked."""
        heappush(self._later, (at_s, next(self._number), then))
        self.wake()

    def wake(self) -> None:
        """See who may be asked, in the loop's next turn."""
        if not self._is_woken and not self._is_closed:
            self._is_woken = True
            self._loop.call_soon(self._turn)

    async def close(self) -> None:
        """End all requests, and do nothing more."""
        self._is_closed = True
        for timer in (self._timer, self._sweeper):
            if timer is not None:
                timer.cancel()
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # of tasks that had ended already gathering waits for nothing, also not for what takes them off the list
            await asyncio.sleep(0)

    def _turn(self) -> None:
        self._is_woken = False
        if self._is_closed:
            return
        try:
            now = self._loop.time()
            while self._later and self._later[0][0] <= now:
                heappop(self._later)[2]()
            self._turns.due(now)
            while (claim := self._claim(now)) is not None:
                task = self._loop.create_task(self._work(claim))
                self._tasks.add(task)
                task.add_done_callback(self._done)
            self._set_timer(min(self._turns.due(now), self._later[0][0] if self._later else float("inf")))
        except Exception as error:
            self._conduct.defect(error)

    def _may_ask(self) -> bool:
        expected = round((self.running + 1) * self._body_bytes)
        return self.running < self.open_at_most and self._network.may_be_asked and self._budget.has_room(expected)

    def _next(self, now: float) -> Host | None:
        """The next host. Doubtful ones get no slot, and while others wait for one, a quarter of what may be open."""
        while True:
            has_slot = self.slots < self._slots_at_most
            host = self._turns.sure(now) if has_slot else None
            if host is None and self._doubtful < (
                self.open_at_most // 4 if self._turns.has_sure else self.open_at_most
            ):
                host = self._turns.doubtful(now)
            if host is not None or not (has_slot and self._turns.has_sure):  # else one was doubtful, and is no longer
                return host

    def _set_timer(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due_s == float("inf") else self._loop.call_at(due_s, self.wake)

    def _claim(self, now: float) -> Claim | None:
        """The next request, which is under way from here on; None where nothing may be asked now."""
        while self._may_ask() and (host := self._next(now)) is not None:
            errand = next_live(host)
            if errand is None:
                continue
            is_doubtful = host.is_doubtful
            host.begin(now)
            self._network.asked()
            request = errand.request = self._conduct.request(errand, keeps_alive=bool(host.waiting))
            errand.is_doubtful, errand.holds_slot, errand.is_probe = is_doubtful, not is_doubtful, self._network.is_away
            errand.seen, errand.seen_s = 0, now
            self.slots += errand.holds_slot
            self._doubtful += errand.is_doubtful
            self._under_way[errand] = None
            self._turns.add(host, now)
            if self._sweeper is None:
                self._swept_s = now
                self._sweeper = self._loop.call_at(now + SWEPT_EACH_S, self._sweep)
            return Claim(host, errand, request)
        return None

    async def _work(self, claim: Claim | None) -> None:
        """Make requests, one after the other, as long as there is one to be made."""
        task = asyncio.current_task()
        while claim is not None:
            claim.errand.task = task
            if claim.errand.is_ended:  # before this task had its turn
                self._end(claim.host, claim.errand)
            else:
                await self._run(*claim)
            if claim.errand.task is task:  # else it is on its way again, after a redirect
                claim.errand.task = None
            claim = None if self._is_closed else self._claim(self._loop.time())

    async def _run(self, host: Host, errand: Errand, request: Request) -> None:
        """Make a request within what is left of its try's time."""
        is_probe = host.is_silent

        def left_s() -> float:
            is_cut = is_probe and host.is_silent and request.status is None
            return max(0.0, self._timeout_s - errand.spent_s) * (PROBE if is_cut else 1.0)

        limit = _Limit(left_s, self._loop, lambda: self._stalled_s)
        brought: Brought = RequestError(DropReason.HTTP_TIMEOUT, "ended before its time")

        def on_wait(*, begins: bool) -> None:
            errand.is_held_up = begins
            limit.hold(begins=begins)

        request.on_wait = on_wait
        try:
            brought = await self._conduct.ask(request)
        except RequestError as error:
            brought = error
        except asyncio.CancelledError:
            if not limit.is_over or errand.is_ended or self._is_closed:
                raise
            limit.task.uncancel()
            brought = RequestError(DropReason.HTTP_TIMEOUT, _so_far(request, errand.spent_s + left_s()))
        finally:
            errand.spent_s += limit.close()
            self._end(host, errand)
            self._budget.end(request.share, errand.kept_bytes(brought) if isinstance(brought, Answer) else 0)
        await self._conduct.ended(host, errand, request, brought)

    def _end(self, host: Host, errand: Errand) -> None:
        del self._under_way[errand]
        self.slots -= errand.holds_slot
        self._doubtful -= errand.is_doubtful
        errand.holds_slot = errand.is_doubtful = False
        errand.request = None
        host.running -= 1
        self.again(host)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._conduct.defect(error)

    def _sweep(self) -> None:
        """Notice when the loop stood still; take slots from requests that do not come on, and give them to those that do again."""
        now = self._loop.time()
        late_s = now - self._swept_s - SWEPT_EACH_S
        self._stalled_s += late_s if late_s > STALLED_S else 0.0
        self._swept_s = now
        for errand in self._under_way:
            request = errand.request
            seen = 0 if request is None or request.status is None else 1 + request.bytes // COMES_ON_BYTES
            if seen > errand.seen or errand.is_held_up:
                errand.seen, errand.seen_s = seen, now
                self.slots += not errand.holds_slot
                errand.holds_slot = True
            elif errand.holds_slot and now - errand.seen_s >= PATIENCE_S:
                self.slots -= 1
                errand.holds_slot = False
        if self.open_at_most < self._open_wanted and now - self._short_s > SHORT_S:
            self.open_at_most, self._short_s, self._shortages = min(2 * self.open_at_most, self._open_wanted), now, 0
        self._sweeper = self._loop.call_at(now + SWEPT_EACH_S, self._sweep) if self._under_way else None
        self.wake()

    def ask_less(self) -> None:
        """This machine cannot have so many requests under way; for half a minute there are fewer.

        Raises:
            AltalignError: it cannot have a few, time and again.
        """
        now = self._loop.time()
        if now - self._short_s < SHORT_EACH_S:
            return  # of those that were begun together
        self._short_s = now
        self._shortages += self.open_at_most == OPEN_AT_LEAST
        if self._shortages > SHORTAGES_AT_MOST:
            raise AltalignError(
                "too many open files, or too little memory for connections: raise `ulimit -n`, or lower [fetch] threads"
            )
        self.open_at_most = max(OPEN_AT_LEAST, min(self.open_at_most, self.running) * 3 // 4)

    def came(self, count_of_bytes: int) -> None:
        """A body has come: the next ones may be expected to be like it."""
        self._body_bytes += (count_of_bytes - self._body_bytes) / 32


class _Limit:
    """Ends the task that makes it after a time, in which waiting for the budget does not count, nor what the loop itself stood still."""

    def __init__(self, left_s: Callable[[], float], loop: asyncio.AbstractEventLoop, stalled_s: Callable[[], float]):
        task = asyncio.current_task()
        assert task is not None
        self.task, self.is_over = task, False
        self._loop, self._left_s, self._stalled_s = loop, left_s, stalled_s
        self._began_s, self._stalled_before_s, self._held_s = loop.time(), stalled_s(), 0.0
        self._timer: asyncio.Handle = loop.call_at(self._began_s + left_s(), self._due)

    def hold(self, *, begins: bool) -> None:
        """Stand still, or go on."""
        self._timer.cancel()
        self._held_s += -self._loop.time() if begins else self._loop.time()
        # who ended itself here might be past this request before it noticed, and in the middle of the next
        if not begins:
            self._timer = self._loop.call_soon(self._due)

    def close(self) -> float:
        """Let the task go on; the seconds that it took, without those that it was held."""
        self._timer.cancel()
        return self._loop.time() - self._began_s - self._held_s

    def _due(self) -> None:
        end_s = self._began_s + self._left_s() + self._held_s + self._stalled_s() - self._stalled_before_s
        if end_s > self._loop.time():
            self._timer = self._loop.call_at(end_s, self._due)
        else:
            self.is_over = True
            self.task.cancel()


def next_live(host: Host) -> Errand | None:
    """Take the next errand of a host that has not ended meanwhile."""
    while host.waiting:
        errand = host.waiting.popleft()
        if not errand.is_ended:
            return errand
    return None


def _so_far(request: Request, timeout_s: float) -> str:
    within = f"within {timeout_s:g} s"
    if request.status is not None:
        return f"{request.bytes:,} bytes of the body {within}"
    return (
        f"no answer of {request.address} {within}" if request.address else f"{request.target.host}: no address {within}"
    )
