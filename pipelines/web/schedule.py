"""Which request is made next: hosts in turn, each at its pace, within a budget of bytes; slow requests are ended.

A request holds one of the `fetch.threads` slots; one that has no answer after half a second waits on without a slot.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from itertools import count

from altalign.data.reasons import DropReason
from altalign.errors import AltalignError
from altalign.pipelines.web.calls import Answer, Fetch, Request, Trouble
from altalign.pipelines.web.hosts import Host
from altalign.settings.curate import FetchSettings

PATIENCE_S = 0.5  # a request without an answer gives its slot back after this
SWEPT_EACH_S = 0.125  # how often that, and the time of requests, is checked
STALLED_S = 0.25  # if the check is later than this, the process had no time, and no host is to blame
SHORT_S = 30.0  # how long this machine may have no open file for a single request
TYPICAL_BYTES = 100_000  # expected size of a body before any has arrived


class Budget:
    """Bytes of bodies that are arriving, or that no caller has taken yet; all but `give_back` belongs to the loop."""

    def __init__(self, bytes_at_most: int, call_soon_threadsafe: Callable[..., object]):
        self._most, self._call_soon = bytes_at_most, call_soon_threadsafe
        self._waiting = deque[tuple[Request, int, asyncio.Future[None]]]()  # in the order in which they came
        self.used = 0
        self.on_room: Callable[[], None] = lambda: None  # called in the loop after bytes came back

    def has_room(self, count: int) -> bool:
        """Whether this many bytes could be taken now. With nothing in flight there is room for anything."""
        return not self._waiting and (self.used + count <= self._most or not self.used)

    async def take(self, request: Request, count: int) -> None:
        """Gives the body of a request all that it can need, as soon as that is free; it is held up meanwhile."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((request, count, turn))
        self._grant()
        with request.held_up():
            await turn

    def end(self, request: Request, kept: int = 0) -> None:
        """Ends a share: its body has arrived or never will. `kept` bytes stay in flight until they are given back."""
        freed, request.share = request.share - kept, 0
        self._free(freed)

    def give_back(self, count: int) -> None:
        """Returns the bytes of a kept body to the budget; may be called from any thread."""
        if count:
            self._call_soon(self._free, count)

    def _free(self, count: int) -> None:
        self.used -= count
        self._grant()
        self.on_room()

    def _grant(self) -> None:
        while self._waiting:
            request, count, turn = self._waiting[0]
            if self.used and self.used + count > self._most and not turn.done():
                return
            self._waiting.popleft()
            if not turn.done():  # its request has ended meanwhile
                request.share = count
                self.used += count
                turn.set_result(None)


class Schedule:
    """Keeps the requests under way and those to come; belongs to one loop.

    Attributes:
        under_way: the fetches whose requests are under way.
        slots: how many of them hold a slot.
        is_paused: whether no request is begun for now; `wake` afterwards.
        is_closed: whether none is begun any more.
    """

    def __init__(
        self, settings: FetchSettings, ask: Callable[[Request], Awaitable[Answer]], budget: Budget, open_at_most: int
    ):
        """Must be called in the loop. No request is begun while the budget has no room for another body."""
        self._ask, self._budget = ask, budget
        self._timeout_s, self._slots_at_most, self._open_at_most = settings.timeout_s, settings.threads, open_at_most
        self._loop, self._number = asyncio.get_running_loop(), count()
        self._hosts: list[tuple[float, int, Host]] = []  # a heap by the time at which each may be asked
        self.under_way: dict[Fetch, Request] = {}
        self.slots, self._body_bytes = 0, float(TYPICAL_BYTES)
        self._swept_s, self._short_since_s = 0.0, float("inf")
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_woken = self.is_paused = self.is_closed = False
        budget.on_room = self.wake

    @property
    def is_busy(self) -> bool:
        """Whether the network or this machine is the bottleneck: no slot or no room is left, or asking pauses."""
        has_room = self.slots < self._slots_at_most and self._budget.has_room(round(self._body_bytes))
        return self.is_paused or not has_room

    async def ask(self, host: Host, fetch: Fetch, request: Request) -> Answer:
        """Makes the next request of a fetch when its turn comes, and ends it when its time is over.

        Raises:
            Trouble: it brought nothing, or (final) the host is not asked any more.
        """
        turn: asyncio.Future[None] = self._loop.create_future()
        put = host.waiting.appendleft if fetch.is_robots or fetch.redirects else host.waiting.append
        put((fetch, request, turn))
        self.list_host(host)
        kept_bytes = 0
        try:
            await turn
            answer = await self._ask(request)
            if fetch.is_ended:  # its cancellation was lost: connecting can swallow one
                raise asyncio.CancelledError
            kept_bytes = 0 if fetch.is_robots else len(answer.body)
            self._short_since_s = float("inf")
            return answer
        except asyncio.CancelledError:
            if fetch.worker is None or not request.is_overdue or fetch.is_ended or self.is_closed:
                raise
            while fetch.worker.cancelling():
                fetch.worker.uncancel()
            if request.status is not None:
                progress = f"{request.bytes:,} bytes of the body"
            else:
                progress = f"no answer of {request.address}" if request.address else f"{fetch.target.host}: no address"
            detail = f"{progress} within {self._timeout_s:g} s"
            raise Trouble(DropReason.HTTP_TIMEOUT, detail, request.status) from None
        finally:
            if self.under_way.pop(fetch, None) is not None:
                fetch.spent_s += self._loop.time() - request.begin_s - request.held_s
                self.slots -= request.holds_slot
                host.running -= 1
                self._body_bytes += (kept_bytes - self._body_bytes) / 32 if kept_bytes else 0.0
                self.list_host(host)
                self._budget.end(request, kept_bytes)

    def list_host(self, host: Host) -> None:
        """Gives a host its place among those to be asked, if it needs one and has none, or one that is too late."""
        ready_s = max(host.ready_s(), self._loop.time())
        if host.waiting and host.has_room and ready_s < host.listed_s:
            host.listed_s = ready_s
            heappush(self._hosts, (ready_s, next(self._number), host))
            self.wake()

    def wake(self) -> None:
        """Sees who may be asked, in the next turn of the loop."""
        if not self._is_woken and not self.is_closed:
            self._is_woken = True
            self._loop.call_soon(self._turn)

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
        while self._hosts and self._hosts[0][0] <= now and self._has_room():
            listed_s, _, host = heappop(self._hosts)
            if listed_s != host.listed_s:
                continue  # it has an earlier entry
            host.listed_s = float("inf")
            if host.waiting and host.has_room and host.ready_s() <= now:
                self._begin(host, now)
            self.list_host(host)
        if self._timer is not None:
            self._timer.cancel()
        # where a host may be asked already there is no room: what makes room wakes the schedule
        due_s = self._hosts[0][0] if self._hosts else 0.0
        self._timer = self._loop.call_at(due_s, self.wake) if due_s > now else None

    def _has_room(self) -> bool:
        return (
            self.slots < self._slots_at_most
            and len(self.under_way) < self._open_at_most
            and not self.is_paused
            and self._budget.has_room(round((len(self.under_way) + 1) * self._body_bytes))
        )

    def _begin(self, host: Host, now: float) -> None:
        fetch, request, turn = host.waiting.popleft()
        if turn.done():  # it has ended meanwhile
            return
        host.running += 1
        host.pace.begin(now)
        request.begin_s = now
        fetch.request, fetch.began_s = request, fetch.began_s or time.time()
        self.slots += 1
        self.under_way[fetch] = request
        turn.set_result(None)
        if self._sweeper is None:
            self._swept_s = now
            self._sweeper = self._loop.call_at(now + SWEPT_EACH_S, self._sweep)

    def _sweep(self) -> None:
        """Ends requests whose time is over, and takes slots from those that wait for an answer.

        Time in which a request waits for this machine, or in which the process stood still, does not count.
        """
        now = self._loop.time()
        passed_s, self._swept_s = now - self._swept_s, now
        late_s = passed_s - SWEPT_EACH_S  # not all of it: a server that keeps the loop busy ends too
        for fetch, request in self.under_way.items():
            held_s = passed_s if request.is_held_up else late_s if late_s > STALLED_S else 0.0
            request.held_s = min(request.held_s + held_s, now - request.begin_s)
            request.holds_slot = request.status is not None or now - request.begin_s < PATIENCE_S
            spent_s = fetch.spent_s + now - request.begin_s - request.held_s
            if spent_s >= self._timeout_s and not request.is_held_up and fetch.worker is not None:
                request.is_overdue = True  # cancelled again by each sweep, because connecting can swallow one
                fetch.worker.cancel()
        self.slots = sum(request.holds_slot for request in self.under_way.values())
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
