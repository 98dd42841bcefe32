"""Work of one command in several threads; a pipeline's units are spread by its engine.

A shard is worked on by one thread. Where most of its time goes into pieces that need not wait for one another, they are
begun ahead of their turn: so where fewer shards are left than the process has threads all of them are busy, and a
thread that waits for Python's lock does not keep a core idle.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

from altalign import terminal
from altalign.machine import interrupts

# of the images of a shard that were begun ahead of their turn; a larger one is waited for at once
AHEAD_BYTES = 16 << 20
_LOOK_EVERY_S = 0.5  # whether the work is given up

Item = TypeVar("Item")
Key = TypeVar("Key")
Result = TypeVar("Result")


def done(value: Result) -> Future[Result]:
    """The future of a result that was computed at once."""
    future = Future[Result]()
    future.set_result(value)
    return future


def in_order(begun: Iterable[tuple[Key, Future[Result], int]], *, bytes_at_most: int) -> Generator[tuple[Key, Result]]:
    """Keys and results of what an iterator begins, in its order.

    The third thing that it gives is about how many bytes a piece of work and its result take. The iterator is ahead by
    as many bytes as may be held, so with 0 everything ends before the next begins. What has not begun when this is
    closed, or ends with an error, is cancelled.
    """
    waiting: deque[tuple[Key, Future[Result], int]] = deque()
    held = 0
    try:
        for each in begun:
            waiting.append(each)
            held += each[2]
            while held > bytes_at_most and waiting:
                key, first, size = waiting.popleft()
                held -= size
                yield key, first.result()
        while waiting:
            key, first, _ = waiting.popleft()
            yield key, first.result()
    finally:
        for _, late, _ in waiting:
            late.cancel()


class Threads:
    """Threads that several users share; the last to leave waits until they have ended."""

    at_most = sys.maxsize  # whatever is asked for

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def shared(self, count: int) -> Iterator[ThreadPoolExecutor]:
        """The pool; the first user decides how many threads it has."""
        with self._lock:
            pool = self._pool = self._pool or ThreadPoolExecutor(min(count, self.at_most))
            self._users += 1
        try:
            yield pool
        finally:
            with self._lock:
                self._users -= 1
                is_last = self._users == 0
                if is_last:
                    self._pool = None
            if is_last:
                pool.shutdown(cancel_futures=True)


OF_PROCESS = Threads()


def in_threads(
    work: Callable[[Item], Result], items: Sequence[Item], count: int, *, bar: tuple[str, str] | None = None
) -> list[Result]:
    """The result of each item, in order; the first error ends all.

    `bar`: what is done, and what the items are, for a bar on a terminal.
    """
    with ThreadPoolExecutor(count) as pool:
        if bar is None:
            return _results(pool, work, items)
        with terminal.progress_bar(bar[0], len(items), bar[1]) as advance:
            return _results(pool, work, items, advance)


def in_shared_threads(work: Callable[[Item], Result], items: Sequence[Item], count: int) -> list[Result]:
    """The same in `count` threads that all callers in this process share: the last one to have work has all of them."""
    if count == 1:  # the callers are an engine's own threads
        return [work(item) for item in items]
    with OF_PROCESS.shared(count) as pool:
        return _results(pool, work, items)


def _results(
    pool: ThreadPoolExecutor,
    work: Callable[[Item], Result],
    items: Sequence[Item],
    advance: Callable[[], None] = lambda: None,
) -> list[Result]:
    given_up = threading.Event()

    def part(item: Item) -> Result:
        with interrupts.part_of(given_up):
            interrupts.check()
            result = work(item)
        advance()
        return result

    futures = [pool.submit(part, item) for item in items]
    try:
        for future in futures:
            while not wait([future], _LOOK_EVERY_S).done:
                interrupts.check()  # whoever waits may be a part of work that is given up
            future.result()
        return [future.result() for future in futures]
    except BaseException:
        given_up.set()
        wait([future for future in futures if not future.cancel()])
        raise
