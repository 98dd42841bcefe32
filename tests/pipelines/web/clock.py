"""The time of a client's loop as a test decides it, so that no result depends on how fast this machine is."""

import asyncio
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from altalign.pipelines.web.calls import Fetch
from altalign.pipelines.web.client import Client

STEP_S = 0.2  # more at once is what a process sees that stood still
LOOKS_EVERY_S = 0.002


class Load(NamedTuple):
    """What a client has to do at a moment: images without a response, requests under way, slots, bytes of bodies."""

    unfinished: int
    running: int
    slots: int
    bytes_in_flight: int


def load_of(client: Client) -> Load:
    """Once the loop has done what was handed to it before."""

    async def load() -> Load:
        schedule = client._fetching.schedule
        unfinished = sum(len(call.left) for call in client._fetching._calls)
        return Load(unfinished, len(schedule.under_way), schedule.slots, client._budget.used)

    return asyncio.run_coroutine_threadsafe(load(), client._loop).result()


class Clock:
    """Adds seconds to the time that the loop of an open client has."""

    def __init__(self, client: Client):
        self._loop, self._under_way = client._loop, client._fetching.schedule.under_way
        real, self.passed_s = self._loop.time, 0.0
        self._loop.time = lambda: real() + self.passed_s

    def jump(self, seconds: float) -> None:
        """As if the process had stood still; returns when the loop has done what is due. Not to be called in it."""
        done = threading.Event()

        def turn() -> None:
            self.passed_s += seconds
            self._loop.call_soon(self._loop.call_soon, done.set)

        with suppress(RuntimeError):  # closed
            self._loop.call_soon_threadsafe(turn)
        while not done.wait(0.1) and self._loop.is_running():
            pass

    def go_on(self, seconds: float) -> None:
        """As time goes on; the same otherwise."""
        for _ in range(math.ceil(seconds / STEP_S)):
            self.jump(STEP_S)

    def go_on_while(self, waits: Callable[[Fetch], bool]) -> None:
        """From now on time goes on in no time as long as all tasks under way do nothing but wait, as `waits` knows."""

        def turn() -> None:
            waiting = [waits(task) for task in self._under_way]
            goes_on = bool(waiting) and all(waiting)
            self.passed_s += STEP_S if goes_on else 0.0
            self._loop.call_later(0.0 if goes_on else LOOKS_EVERY_S, turn)

        self._loop.call_soon_threadsafe(turn)
