"""Which request is made next: hosts in turn, each at its pace, within a budget of bytes; slow requests are ended.

A request holds one of the `fetch.threads` slots while it is being answered; one that makes no progress gives its slot
to another and continues without.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from itertools import count

from altalign.data.reasons import DropReason
from altalign.errors import AltalignError
from altalign.pipelines.web.calls import Answer, Fetch, Request, Trouble
from altalign.pipelines.web.hosts import Host
from altalign.settings.curate import FetchSettings

PATIENCE_S = 0.5  # a request without progress for this long gives its slot back
SWEPT_EACH_S = 0.125  # how often that, and the time of requests, is checked
STALLED_S = 0.25  # if the check is later than this, the process had no time, and no host is to blame
PROGRESS_BYTES = 4_096  # what counts as progress
SHORT_S = 30.0  # how long this machine may have no open file for a single request
TYPICAL_BYTES = 100_000  # expected size of a body before any has arrived


class Budget:
    """Bytes of bodies that are arriving, or that no caller has taken yet; all but `give_back` belongs to the loop.

    A body takes its bytes in two steps: a first share before it is read, and once more than that has come, everything
    that it can still need, decoding included. A reserve as large as one such step is open to second steps alone, so one
    of them can always go on, and no two bodies wait for each other.
    """

    def __init__(self, bytes_at_most: int, reserved_bytes: int, call_soon_threadsafe: Callable[..., object]):
        """Reserves as many of all bytes as one body needs at most."""
        self._most, self._call_soon = bytes_at_most, call_soon_threadsafe
        self._open_to_all = bytes_at_most - min(reserved_bytes, bytes_at_most)
        self._waiting = dict[asyncio.Future[None], tuple[Request, int]]()
        self.used = 0
        self.on_room: Callable[[], None] = lambda: None  # called in the loop after bytes came back

    def has_room(self, count: int) -> bool:
        """Whether this many bytes could be taken now. With nothing in flight there is room for anything."""
        return not self._waiting and (self.used + count <= self._open_to_all or not self.used)

    async def take(self, request: Request, count: int) -> None:
        """Gives the body of a request `count` more bytes, as soon as they are free; it is held up meanwhile."""
        if self._grants(request, count):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = request, count
        try:
            with request.held_up():
                await turn
        finally:
            self._waiting.pop(turn, None)

    def end(self, request: Request, kept: int = 0) -> None:
        """Ends a share: its body has arrived or never will. `kept` bytes stay in flight until they are given back."""
        self._free(request.share - kept)
        request.share = 0

    def give_back(self, count: int) -> None:
        """Returns the bytes of a kept body to the budget; may be called from any thread."""
        if count:
            self._call_soon(self._free, count)

    def _free(self, count: int) -> None:
        self.used -= count
        # in the order in which they came; no others are woken: there may be as many as threads for each image
        for turn, (request, needed) in list(self._waiting.items()):
            if not turn.done() and self._grants(request, needed):
                del self._waiting[turn]
                turn.set_result(None)
        self.on_room()

    def _grants(self, request: Request, count: int) -> bool:
        most = self._most if request.share else self._open_to_all
        if self.used + count > most and self.used != request.share:  # one larger than the whole budget comes alone
            return False
        request.share += count
        self.used += count
        return True


class Schedule:
    """Keeps the requests under way and those to come; belongs to one loop.

    Attributes:
        under_way: the fetches whose requests are under way.
        slots: how many of them hold a slot.
        is_closed: whether no request is begun any more.
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
        self._is_woken = self._is_paused = self.is_closed = False
        budget.on_room = self.wake

    @property
    def is_busy(self) -> bool:
        """Whether the network or this machine is the bottleneck: no slot or no room is left, or asking pauses."""
        has_room = self.slots < self._slots_at_most and self._budget.has_room(round(self._body_bytes))
        return self._is_paused or not has_room

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
            if fetch in self.under_way:
                self._end(host, fetch, kept_bytes)

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
            and not self._is_paused
            and self._budget.has_room(round((len(self.under_way) + 1) * self._body_bytes))
        )

    def _begin(self, host: Host, now: float) -> None:
        fetch, request, turn = host.waiting.popleft()
        if turn.done():  # it has ended meanwhile
            return
        host.running += 1
        host.pace.begin(now)
        request.begin_s = request.seen_s = now
        fetch.request, fetch.began_s = request, fetch.began_s or time.time()
        self.slots += 1
        self.under_way[fetch] = request
        turn.set_result(None)
        if self._sweeper is None:
            self._swept_s = now
            self._sweeper = self._loop.call_at(now + SWEPT_EACH_S, self._sweep)

    def _end(self, host: Host, fetch: Fetch, kept_bytes: int) -> None:
        """Takes a request off those under way; the bytes of its body stay in the budget."""
        request = self.under_way.pop(fetch)
        fetch.spent_s += self._loop.time() - request.begin_s - request.held_s
        self.slots -= request.holds_slot
        host.running -= 1
        self._body_bytes += (kept_bytes - self._body_bytes) / 32 if kept_bytes else 0.0
        self.list_host(host)
        self._budget.end(request, kept_bytes)

    def _sweep(self) -> None:
        """Ends requests whose time is over, and takes slots from those without progress.

        Time in which a request waits for this machine, or in which the process stood still, does not count.
        """
        now = self._loop.time()
        passed_s = now - self._swept_s
        late_s = passed_s - SWEPT_EACH_S
        self._swept_s = now
        for fetch, request in self.under_way.items():
            request.held_s += passed_s if request.is_held_up else late_s if late_s > STALLED_S else 0.0
            request.held_s = min(request.held_s, now - request.begin_s)
            seen = 0 if request.status is None else 1 + request.bytes // PROGRESS_BYTES
            if seen > request.seen or (request.is_held_up and request.status is not None):
                request.seen, request.seen_s = seen, now
                self.slots += not request.holds_slot
                request.holds_slot = True
            elif request.holds_slot and now - request.seen_s >= PATIENCE_S:
                self.slots -= 1
                request.holds_slot = False
            spent_s = fetch.spent_s + now - request.begin_s - request.held_s
            if spent_s >= self._timeout_s and not request.is_held_up and fetch.worker is not None:
                request.is_overdue = True  # cancelled again by each sweep, because connecting can swallow one
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
