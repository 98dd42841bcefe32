"""A budget of bytes for bodies that are arriving, and for those that no caller has taken yet.

A body takes its bytes in two steps: a first share before it is read, and once more than that has come, everything that
it can still need, decoding included. A reserve as large as one such step is open to second steps alone, so one of them
can always go on, and no two bodies wait for each other.
"""

import asyncio
import threading
from collections.abc import Callable


class Share:
    """The bytes of the budget that one body holds."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Budget:
    """Bytes in flight. Everything belongs to the loop, except `give_back` and `in_flight`."""

    def __init__(
        self, bytes_at_most: int, reserved_bytes: int, call_soon_threadsafe: Callable[[Callable[[], None]], object]
    ):
        """Reserves as many of all bytes as one body needs at most."""
        self._most, self._call_soon = bytes_at_most, call_soon_threadsafe
        self._open_to_all = bytes_at_most - min(reserved_bytes, bytes_at_most)
        self._waiting: dict[asyncio.Future[None], tuple[Share, int]] = {}
        self._lock = threading.Lock()
        self._returned, self._is_notified = 0, False
        self.used = 0
        self.on_room: Callable[[], None] = lambda: None  # called in the loop after bytes came back

    @property
    def in_flight(self) -> int:
        """Bytes in use; may be read from any thread."""
        with self._lock:
            return self.used - self._returned

    def has_room(self, count: int) -> bool:
        """Whether this many bytes could be taken now. With nothing in flight there is room for anything."""
        return not self._waiting and (self.used + count <= self._open_to_all or not self.used)

    def takes(self, share: Share, count: int) -> bool:
        """Gives a share `count` more bytes if that needs no waiting; returns whether it did."""
        if (self._waiting and not share.bytes) or not self._fits(share, count):
            return False
        share.bytes += count
        self.used += count
        return True

    async def take(self, share: Share, count: int) -> None:
        """Gives a share `count` more bytes, as soon as they are free."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = share, count
        self._serve()
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)

    def end(self, share: Share, kept: int = 0) -> None:
        """Ends a share: its body has arrived or never will. `kept` bytes stay in flight until they are given back."""
        self.used += kept - share.bytes
        share.bytes = 0
        self._serve()
        self.on_room()

    def give_back(self, count: int) -> None:
        """Returns the bytes of a kept body to the budget; may be called from any thread."""
        with self._lock:
            self._returned += count
            is_notified, self._is_notified = self._is_notified, True
        if not is_notified:
            self._call_soon(self._settle)

    def _settle(self) -> None:
        with self._lock:
            self.used -= self._returned
            self._returned, self._is_notified = 0, False
        self._serve()
        self.on_room()

    def _serve(self) -> None:
        """Wakes the bodies whose bytes are free: those that have begun, then the others in order of arrival."""
        for waiter, (share, count) in sorted(self._waiting.items(), key=lambda item: not item[1][0].bytes):
            if not self._fits(share, count):
                return
            del self._waiting[waiter]
            if not waiter.done():
                share.bytes += count
                self.used += count
                waiter.set_result(None)

    def _fits(self, share: Share, count: int) -> bool:
        # a body larger than the whole budget comes alone
        return self.used + count <= (self._most if share.bytes else self._open_to_all) or self.used == share.bytes
