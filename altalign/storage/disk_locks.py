"""A lock on a run folder of this machine, against a second command: a file, locked for as long as its process lives.

`locks.py` has the lock on a run in a store, before which it takes one of these.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from altalign.errors import UsageError
from altalign.storage.disk_errors import is_forbidden


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """See `altalign.storage`."""
    with held_for(folder, Path(folder, "log", "lock")):
        yield


def holder(folder: str) -> str | None:
    """The process of this machine that holds a run folder; None where none does."""
    return holder_of(Path(folder, "log", "lock"))


@contextmanager
def held_for(folder: str, place: Path) -> Iterator[None]:
    """Hold a lock file that stands for a run folder, without waiting.

    Raises:
        UsageError: another process holds it, or nobody may write there.
    """
    lock = held(place, blocking=False)
    try:
        lock.__enter__()
    except BlockingIOError:
        raise at_work(folder, f"process {holder_of(place) or 'unknown'}") from None
    except OSError as error:
        if not is_forbidden(error):
            raise
        raise UsageError(
            f"{folder}: cannot be written to ({error.strerror}: {error.filename}); make it writable, or choose another "
            "[run] folder"
        ) from None
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def at_work(folder: str, who: str) -> UsageError:
    """The error for a run that another command holds."""
    return UsageError(
        f"{folder}: another command is at work on this run ({who}); wait for it, or choose another [run] folder"
    )


@contextmanager
def held(place: Path, *, blocking: bool = True) -> Iterator[None]:
    """Hold a lock file of this machine, which names our process.

    Raises:
        BlockingIOError: another process holds it, and we do not wait.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("a+", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if blocking else fcntl.LOCK_NB))
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def holder_of(place: Path) -> str | None:
    """The process that holds a lock of this machine; None where none does."""
    try:
        with place.open(encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lock.read().strip() or "unknown"
    except OSError:
        pass
    return None
