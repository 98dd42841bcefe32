"""Signals that end a command: Ctrl-C, SIGTERM, SIGHUP. The first lets it end cleanly, the second ends it at once.

The first raises `Interrupted` in the main thread; threads that work meet it where they call `check`. There they also
meet that the work they are a part of was given up (`part_of`).
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ONE_ASKING_S = 1.0  # a terminal and a launcher may both pass on one Ctrl-C

# Of the process, as signals are.
_ASKED: list[int] = []
_ASKED_AT: list[float] = []
_HANDLED = threading.Event()
_DEFERRED = threading.Event()
_IN_A_CALL = threading.Event()
_THREAD = threading.local()  # `given_up`: of the work that this thread does a part of


class Interrupted(KeyboardInterrupt):
    """A signal asked the command to end."""

    def __init__(self, number: int = signal.SIGINT):
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.exit_code = 128 + number  # as shells count


class GivenUpError(Exception):
    """Another part of the work has failed, so that this one is for nothing."""


def check() -> None:
    """Raise `Interrupted` if the command is to end, `GivenUpError` if this thread's work is. Long work calls this."""
    if _ASKED:
        raise Interrupted(_ASKED[0])
    given_up: threading.Event | None = getattr(_THREAD, "given_up", None)
    if given_up is not None and given_up.is_set():
        raise GivenUpError


@contextmanager
def part_of(given_up: threading.Event) -> Iterator[None]:
    """While this block runs in this thread, `check` raises once the event is set."""
    before: threading.Event | None = getattr(_THREAD, "given_up", None)
    _THREAD.given_up = given_up
    try:
        yield
    finally:
        _THREAD.given_up = before


@contextmanager
def deferred() -> Iterator[Callable[[], int]]:
    """Defers the first signal in this block, which asks a function for itself which one came (0: none)."""
    _DEFERRED.set()
    try:
        yield lambda: _ASKED[0] if _ASKED else 0
    finally:
        _DEFERRED.clear()


def _ask(number: int, _frame: FrameType | None) -> None:
    if _DEFERRED.is_set() and (not _ASKED or time.monotonic() - _ASKED_AT[0] < _ONE_ASKING_S):
        _ASKED.append(number)
        _ASKED_AT.append(time.monotonic())
        return
    if _ASKED and not _IN_A_CALL.is_set():
        os.write(2, b"altalign: ended at once; run the same command again, it continues\n")
        os._exit(128 + number)
    _ASKED.append(number)
    raise Interrupted(number)


@contextmanager
def handled(*, to_the_end: bool = False, in_a_call: bool = False) -> Iterator[None]:
    """Handle the signals that end a command, but those that its caller ignores, as nohup does.

    Inside another such block, and outside the main thread, nothing changes.

    With `to_the_end`, of the process's life: what comes after the block ends it without a word. With `in_a_call`, the
    process is somebody's program: Ctrl-C alone is handled, and no signal ends the process.
    """
    if threading.current_thread() is not threading.main_thread() or _HANDLED.is_set():
        yield
        return
    numbers = ENDING[:1] if in_a_call else ENDING
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
    _HANDLED.set()
    if in_a_call:
        _IN_A_CALL.set()
    try:
        for number in before:
            signal.signal(number, _ask)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if to_the_end else handler)
        for of_process in (_HANDLED, _IN_A_CALL, _ASKED, _ASKED_AT):
            of_process.clear()
