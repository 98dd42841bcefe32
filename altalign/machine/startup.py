"""What makes a command start, and end, sooner. Each of the three is worth a tenth of a CPU second, of about one."""

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from altalign.machine import kernel_cache, memory

_OURS = threading.Event()  # the process: a command, or one of its processes


def prepare() -> None:
    """Prepare a process that is ours, before anything else; see also `memory.prepare`.

    NumPy's BLAS starts no threads of its own: units have theirs.
    """
    _OURS.set()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    memory.prepare()


@contextmanager
def imports(*, compiles: bool = True) -> Iterator[None]:
    """Switches garbage collection off during heavy imports, and keeps what they made from later collections.

    In somebody's process, whose garbage is not ours to keep, the place of kernels alone is settled. `compiles` says
    whether kernels are called afterwards, which compiles them the first time.
    """
    kernel_cache.settle(compiles=compiles)
    if not _OURS.is_set():
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def leave() -> None:
    """Called last in a process of ours: spares the interpreter its last search for garbage."""
    # the bindings of these two complain, at length, of every object that outlives them
    if {"triton", "duckdb"} & sys.modules.keys():
        gc.unfreeze()  # what they made before `imports`
    else:
        gc.freeze()
