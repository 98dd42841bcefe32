"""Many pieces of one command's own work at a time; a pipeline's are spread by its engine."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Generic, TypeVar

from altalign.machine import interrupts

Item = TypeVar("Item")
Result = TypeVar("Result")

_LOOK_EVERY_S = 0.5  # whether the work is given up


def in_threads(work: Callable[[Item], Result], items: Sequence[Item], count: int) -> list[Result]:
    """The result of each item, in order; the first error ends all."""
    part = _Part(work)
    with ThreadPoolExecutor(count) as pool:
        try:
            return [future.result() for future in [pool.submit(part, item) for item in items]]
        except BaseException:
            part.given_up.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def in_shared_threads(work: Callable[[Item], Result], items: Sequence[Item], count: int) -> list[Result]:
    """The same in `count` threads that all callers in this process share: the last one to have work has all of them."""
    if count == 1:  # the callers are an engine's own threads
        return [work(item) for item in items]
    part = _Part(work)
    futures = [_shared(count).submit(part, item) for item in items]
    try:
        return [_result(future) for future in futures]
    except BaseException:
        part.given_up.set()
        wait([future for future in futures if not future.cancel()])
        raise


@cache
def _shared(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count)


def _result(future: "Future[Result]") -> Result:
    """Its result; whoever waits for it may be a part of work that is given up."""
    while not wait([future], _LOOK_EVERY_S).done:
        interrupts.check()
    return future.result()


class _Part(Generic[Item, Result]):
    """Does one item of work that may be given up."""

    def __init__(self, work: Callable[[Item], Result]):
        self.work, self.given_up = work, threading.Event()

    def __call__(self, item: Item) -> Result:
        with interrupts.part_of(self.given_up):
            interrupts.check()
            return self.work(item)
