"""Begins work ahead in threads that a process shares, and yields the results in order.

A shard is worked on by one thread. Where most of its time goes into pieces that need not wait for one another, they can
be begun before they are wanted: so where fewer shards are left than the process has threads all of them are busy, and a
thread that waits for Python's lock does not keep a core idle.
"""

import sys
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

# of the images of a shard that were begun with and are not wanted yet; a larger one is waited for at once
AHEAD_BYTES = 16 << 20

Key = TypeVar("Key")
Result = TypeVar("Result")
Given = TypeVar("Given", covariant=True)


class Begun(Protocol[Given]):
    """Work that has begun or will begin: a future, or `Done`."""

    def result(self) -> Given:
        """Wait for the result and return it, or raise its error."""
        ...

    def cancel(self) -> bool:
        """Cancel it, if it has not begun."""
        ...


@dataclass(frozen=True, slots=True)
class Done(Generic[Result]):
    """A result that was computed at once."""

    value: Result

    def result(self) -> Result:
        """The value."""
        return self.value

    def cancel(self) -> bool:
        """Do nothing: it is already done."""
        return False


def in_order(begun: Iterable[tuple[Key, Begun[Result], int]], *, bytes_at_most: int) -> Generator[tuple[Key, Result]]:
    """Keys and results of what an iterator begins, in its order.

    The third thing that it gives is about how many bytes a piece of work and its result take.

    The iterator is ahead by as many bytes as may be held, so with 0 everything ends before the next begins. What has
    not begun when this is closed, or ends with an error, is cancelled.
    """
    waiting: deque[tuple[Key, Begun[Result], int]] = deque()
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
