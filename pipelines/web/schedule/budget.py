"""A budget of bytes for bodies that are arriving, and for those that nobody has taken yet.

A reader takes the bytes that it needs before it reads on, and waits if none are left. Nobody waits for ever: a reserve,
large enough for one body, goes to the reader that has waited longest, and when its body has come, to the next. Arriving
bodies get at most half of the budget, so that some can arrive while others are being taken.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable


class Share:
    """The bytes of the budget that one body holds."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Budget:
    """Bytes in flight. Everything belongs to the loop, except `give_back` and `in_flight`."""

    def __init__(
        self, bytes_at_most: int, body_bytes_at_most: int, call_soon_threadsafe: Callable[[Callable[[], None]], object]
    ):
        self._most, self._call_soon = bytes_at_most, call_soon_threadsafe
        self._shared = bytes_at_most - min(body_bytes_at_most, bytes_at_most)  # the rest is the reserve for one body
        self._waiting: OrderedDict[Share, tuple[int, asyncio.Future[None]]] = OrderedDict()
        self._first: Share | None = None  # who has the reserve
        self._lock = threading.Lock()
        self._returned, self._is_told = 0, False
        self.used = self._reading = 0
        self.on_room: Callable[[], None] = lambda: None  # called in the loop after bytes came back

    @property
    def in_flight(self) -> int:
        """Bytes in use; may be read from any thread."""
        with self._lock:
            return self.used - self._returned

    def has_room(self, count: int) -> bool:
        """Whether this many bytes could be taken now. With nothing in flight there is room for anything."""
        return not self._waiting and (self.used + count <= self._shared or not self.used)

    def takes(self, share: Share, count: int) -> bool:
        """Gives a share `count` more bytes if that needs no waiting; returns whether it did."""
        if (self._waiting and self._first is not share) or not self._fits(share, count):
            return False
        self._grow(share, count)
        return True

    async def take(self, share: Share, count: int) -> None:
        """Gives a share `count` more bytes, as soon as they are free."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[share] = count, waiter
        self._serve()
        try:
            await waiter
        finally:
            self._waiting.pop(share, None)

    def end(self, share: Share, kept: int = 0) -> None:
        """Ends a share: its body has arrived or never will. `kept` bytes stay in flight until they are given back."""
        self.used += kept - share.bytes
        self._reading -= share.bytes
        share.bytes = 0
        if self._first is share:
            self._first = None
        self._serve()
        self.on_room()

    def give_back(self, count: int) -> None:
        """Returns the bytes of a kept body to the budget; may be called from any thread."""
        with self._lock:
            self._returned += count
            is_told, self._is_told = self._is_told, True
        if not is_told:
            self._call_soon(self._settle)

    def _settle(self) -> None:
        with self._lock:
            self.used -= self._returned
            self._returned, self._is_told = 0, False
        self._serve()
        self.on_room()

    def _serve(self) -> None:
        """Wakes the readers whose bytes are free: the one with the reserve, then the others in order of arrival."""
        while self._waiting:
            head = next(iter(self._waiting))
            if self._first is None:
                self._first = head
            next_ones = [share for share in (self._first, head) if share in self._waiting]
            share = next((share for share in next_ones if self._fits(share, self._waiting[share][0])), None)
            if share is None:
                return
            count, waiter = self._waiting.pop(share)
            self._grow(share, count)
            if not waiter.done():
                waiter.set_result(None)

    def _fits(self, share: Share, count: int) -> bool:
        if self._first is share:
            # a single body may be larger than the budget
            return self.used + count <= self._most or self.used == share.bytes
        is_room_to_read = self._reading + count <= self._shared // 2 or not self._reading
        return self.used + count <= self._shared and is_room_to_read

    def _grow(self, share: Share, count: int) -> None:
        share.bytes += count
        self.used += count
        self._reading += count
