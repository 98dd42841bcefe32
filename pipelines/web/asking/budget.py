"""A budget of bytes: of bodies that arrive, and of those that nobody has taken yet.

Whoever reads a body takes what it needs before it reads on, and waits where there is no more. Nobody waits for ever:
what is kept back is enough for one body, and goes to the one that has waited longest; when that has come, to the next.
Bodies that arrive have half of it at most: else all would come at the same time, and none while they are being taken.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable


class Share:
    """What one body has of the budget."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Budget:
    """Bytes in flight. All of it belongs to the loop, but `give_back`."""

    def __init__(
        self, bytes_at_most: int, body_bytes_at_most: int, call_soon_threadsafe: Callable[[Callable[[], None]], object]
    ):
        self._most, self._call_soon = bytes_at_most, call_soon_threadsafe
        self._shared = bytes_at_most - min(body_bytes_at_most, bytes_at_most)  # the rest is kept back for one body
        self._waiting: OrderedDict[Share, tuple[int, asyncio.Future[None]]] = OrderedDict()
        self._first: Share | None = None  # who has what is kept back
        self._lock = threading.Lock()
        self._returned, self._is_told = 0, False
        self.used = self._reading = 0
        self.on_room: Callable[[], None] = lambda: None  # called in the loop after bytes came back

    @property
    def in_flight(self) -> int:
        """Bytes in use; from any thread."""
        with self._lock:
            return self.used - self._returned

    def has_room(self, count: int) -> bool:
        """Whether so many bytes could be taken at once. With nothing in flight there is room for anything."""
        return not self._waiting and (self.used + count <= self._shared or not self.used)

    def takes(self, share: Share, count: int) -> bool:
        """Give a share `count` bytes more where that needs no waiting; whether it did."""
        if (self._waiting and self._first is not share) or not self._fits(share, count):
            return False
        self._grow(share, count)
        return True

    async def take(self, share: Share, count: int) -> None:
        """Give a share `count` bytes more, once they are there."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[share] = count, waiter
        self._serve()
        try:
            await waiter
        finally:
            self._waiting.pop(share, None)

    def end(self, share: Share, kept: int = 0) -> None:
        """The body has come, or never will: `kept` bytes of it stay in flight until they are given back."""
        self.used += kept - share.bytes
        self._reading -= share.bytes
        share.bytes = 0
        if self._first is share:
            self._first = None
        self._serve()
        self.on_room()

    def give_back(self, count: int) -> None:
        """Return the bytes of a body that was kept, from any thread."""
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
        """Let those go on whose bytes are there: the one that has what is kept back, and the others in the order in which they came."""
        while self._waiting:
            head = next(iter(self._waiting))
            if self._first is None:
                self._first = head
            turns = [
                share
                for share in (self._first, head)
                if share in self._waiting and self._fits(share, self._waiting[share][0])
            ]
            if not turns:
                return
            count, waiter = self._waiting.pop(turns[0])
            self._grow(turns[0], count)
            if not waiter.done():
                waiter.set_result(None)

    def _fits(self, share: Share, count: int) -> bool:
        if self._first is share:
            # it alone may be larger than the budget
            return self.used + count <= self._most or self.used == share.bytes
        is_room_to_read = self._reading + count <= self._shared // 2 or not self._reading
        return self.used + count <= self._shared and is_room_to_read

    def _grow(self, share: Share, count: int) -> None:
        share.bytes += count
        self.used += count
        self._reading += count
