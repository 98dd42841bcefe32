"""Processes beside a command, for work that holds Python's lock so much that threads wait for it.

Each does one piece of work at a time, for the thread that gave it. They are started when a command first has enough
work for them, and end with it, however it ends: what they read from is closed then. Signals are the command's to
answer; what is given up there is told to them (ADR 17).
"""

import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from altalign.errors import AltalignError
from altalign.machine import children, interrupts, memory, startup, threads

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SECONDS_OF_WORK = 5.0  # that each process is to have before it: it takes about 1.5 of CPU time to start
THREADS_AT_MOST = 4  # of a process that is one of several: more of them wait for Python's lock
_LOOK_EVERY_S = 0.1  # whether the work is given up
_ENDS_WITHIN_S = 10.0

Item = TypeVar("Item")
Result = TypeVar("Result")

# The whole program of a process: what is imported is found where its parent found it.
_PROGRAM = (
    "import sys; from multiprocessing.connection import Connection; connection = Connection(int(sys.argv[1])); "
    "sys.path[:] = connection.recv(); from altalign.machine import processes; processes.serve(connection)"
)


def worth(seconds: float, at_most: int) -> int:
    """How many processes work that takes one core so many seconds is to have; 0 where threads do as well.

    Each asks for memory by itself where large images are to wait for one another, so it has to be ample beside them.
    """
    count = min(at_most, int(seconds / SECONDS_OF_WORK))
    if count > 1:
        count = min(count, len(OF_COMMAND) + memory.processes_beside())
    return count if count > 1 else 0


class InProcesses(Generic[Item, Result]):
    """Calls `work` in a process of the command where they are in use and one is idle, else here.

    `work`, items and results can be pickled. AltalignError where its process was ended from outside.
    """

    def __init__(self, work: Callable[[Item], Result]):
        self.work = work

    @cached_property
    def pickled(self) -> bytes:
        """The work for another process: a run of many files has many megabytes."""
        return pickle.dumps(self.work, pickle.HIGHEST_PROTOCOL)

    def __call__(self, item: Item) -> Result:
        """Return the result of an item."""
        return OF_COMMAND.call(self, item)


class Processes:
    """The processes of a command."""

    def __init__(self) -> None:
        self._all: list[_Process] = []
        self._idle: SimpleQueue[_Process] = SimpleQueue()  # empty where none are in use

    def __len__(self) -> int:
        return len(self._all)

    @contextmanager
    def used(self, count: int) -> Iterator[None]:
        """In this block, at least so many processes do the work that is `InProcesses`; with 0, none does."""
        self._all = [process for process in self._all if process.is_alive()]
        # where a stream of the command was closed, its place is not to be taken by a connection
        while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(lowest)
        with suppress(OSError):  # the system starts no more of them: threads do the rest
            while len(self._all) < count:
                self._all.append(_Process())
        self._idle = SimpleQueue()
        for process in self._all if count else ():
            self._idle.put(process)
        try:
            yield
        finally:
            self._idle = SimpleQueue()

    def call(self, work: InProcesses[Item, Result], item: Item) -> Result:
        """Return the result of an item, computed in an idle process or here."""
        idle = self._idle
        try:
            process = idle.get_nowait()
        except Empty:
            return work.work(item)
        try:
            return process.call(work, item)
        finally:
            idle.put(process)

    def close(self) -> None:
        """End them all."""
        for process in self._all:
            process.close()
        for process in self._all:
            process.wait()
        self._all, self._idle = [], SimpleQueue()


OF_COMMAND = Processes()


class _Process:
    """One process, seen from its parent."""

    def __init__(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        # -P: nothing is imported from the working directory. A session of its own: Ctrl-C at a terminal is for us. What
        # libraries print goes to the standard error output.
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,
                stderr=2,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._has: InProcesses[Any, Any] | None = None  # what it was given to do last
        with suppress(OSError):  # the first call says so
            self._connection.send(sys.path)

    def call(self, work: InProcesses[Item, Result], item: Item) -> Result:
        try:
            pickled = None if self._has is work else work.pickled
            self._has = None  # until it is known to have read it
            self._connection.send((pickled, item))
            try:
                while not self._connection.poll(_LOOK_EVERY_S):
                    interrupts.check()
            except BaseException:
                self._connection.send(None)
                self._connection.recv()  # it has cleaned up then
                raise
            is_error, result = self._connection.recv()
        except (BrokenPipeError, ConnectionResetError, EOFError):
            code = self.wait()
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            repair = "where it was for want of memory, give more or set fewer [engine] workers"
            which = f"process {self._process.pid}, one of those that this command works with"
            raise AltalignError(f"{which}, ended with {how}; {repair}; run the same command again") from None
        if is_error:
            raise result
        self._has = work
        return result

    def is_alive(self) -> bool:
        if self._process.poll() is not None:
            self.close()
        return self._process.returncode is None

    def close(self) -> None:
        self._connection.close()

    def wait(self) -> int:
        children.end([self._process], within_s=_ENDS_WITHIN_S)
        return self._process.returncode


# In the process -------------------------------------------------------------------------------------------------------


def serve(connection: "Connection[Any, Any]") -> None:
    """The life of a process: work by work, until its parent closes the connection, or is gone."""
    for number in interrupts.ENDING:
        signal.signal(number, signal.SIG_IGN)
    startup.prepare()
    logging.getLogger().setLevel(logging.CRITICAL)
    threads.OF_PROCESS.at_most = THREADS_AT_MOST
    requests: SimpleQueue[tuple[bytes | None, Any]] = SimpleQueue()
    given_up = threading.Event()

    def listen() -> None:
        while True:
            try:
                request = connection.recv()
            except Exception:  # also in the middle of a request; nobody would read an answer
                os._exit(0)
            if request is None:
                given_up.set()
            else:
                given_up.clear()
                requests.put(request)

    threading.Thread(target=listen, daemon=True).start()
    work: Any = None
    while True:
        pickled, item = requests.get()
        try:
            if pickled is not None:
                work = None  # before the next one is there
                startup.place_kernels()
                work = pickle.loads(pickled)
                pickled = None
            with interrupts.part_of(given_up):
                answer = pickle.dumps((False, work(item)), pickle.HIGHEST_PROTOCOL)
        except BaseException as error:
            where = "".join(traceback.format_exception(error))
            in_words = RuntimeError(f"{type(error).__name__}: {error}")
            in_words.add_note(where)
            answer = pickle.dumps((True, in_words))  # for what a pickle makes another error of, or an exit
            with suppress(Exception):
                error.add_note(where)
                itself = pickle.dumps((True, error))
                if str(pickle.loads(itself)[1]) == str(error) and isinstance(error, Exception):
                    answer = itself
        try:
            connection.send_bytes(answer)
        except OSError:  # nobody reads it
            os._exit(0)
