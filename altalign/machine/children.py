"""Child processes end with this one, however it ends, and are reaped once they have ended."""

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any

# Run by Python before it becomes another program: when our process dies, however it does, the program is killed.
_END_WITH_PARENT = """
import ctypes, os, signal, sys
with_parent = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone has it
if with_parent:
    with_parent(1, int(signal.SIGKILL))
if os.getppid() != int(sys.argv[1]):  # it has died meanwhile
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def ending_with_us(command: Sequence[str]) -> list[str]:
    """The command of a child that is killed when this process dies, however it does."""
    return [sys.executable, "-I", "-S", "-c", _END_WITH_PARENT, str(os.getpid()), *command]


def end_with_parent() -> None:
    """Make this `multiprocessing` process end when its parent is gone: a fork server may stand between them."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def end(children: Sequence["subprocess.Popen[Any] | BaseProcess"], *, within_s: float = 0.0) -> None:
    """Reap children. One that has not ended by itself within so many seconds is killed."""
    for child in children:
        wait = child.join if isinstance(child, BaseProcess) else child.wait
        with suppress(subprocess.TimeoutExpired):  # `join` raises nothing
            wait(within_s)
        child.kill()  # where it has ended, this does nothing
        wait()
