"""Many pieces of one command's own work at a time; a pipeline's are spread by its engine."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from altalign.machine import interrupts

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(work: Callable[[Item], Result], items: Sequence[Item], count: int) -> list[Result]:
    """The result of each item, in order; the first error ends all."""
    given_up = threading.Event()

    def part(item: Item) -> Result:
        with interrupts.part_of(given_up):
            interrupts.check()
            return work(item)

    with ThreadPoolExecutor(count) as pool:
        try:
            return [future.result() for future in [pool.submit(part, item) for item in items]]
        except BaseException:
            given_up.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
