"""A lock on a run folder in a store, against a second command on any machine.

The lock is made of tickets: small objects that a command rewrites while it works.

A command writes its ticket, then lists all tickets. If another ticket is fresh, it deletes its own and gives up. Two
commands that start at once may both give up, but they never both win: S3 and GCS list every object that was written
before. The age of a ticket is a difference of the store's own times, so the clocks of machines do not matter. On one
machine a file lock decides at once, and shows which tickets are of killed commands. One case is not covered: a command
that is suspended for longer than `LEASE_S` and then resumes. It notices within seconds and writes nothing more, but an
upload that was under way may still arrive.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple
from uuid import uuid4

import pyarrow.fs as pafs

from altalign.errors import AltalignError, StoreError, UsageError
from altalign.storage import clients, disk_locks, local_copies

LEASE_S = 120.0
REFRESH_EVERY_S = 20.0
_TICKET = "lock-"


class _Held:
    """The tickets that this process holds, and whether others still honour them."""

    def __init__(self) -> None:
        self._fresh: dict[str, float] = {}  # when the ticket of a run folder was written last

    def renew(self, folder: str) -> None:
        self._fresh[folder] = time.monotonic()

    def drop(self, folder: str) -> None:
        self._fresh.pop(folder, None)

    def check(self, path: str) -> None:
        """Refuse to write to a run whose ticket others may consider expired."""
        for folder, written in list(self._fresh.items()):
            if path.startswith(f"{folder}/") and time.monotonic() - written > LEASE_S:
                raise StoreError(
                    f"{folder}: held no longer: the store was not reached for {time.monotonic() - written:.0f} s, and "
                    "another command may be at work; run the same command again, it continues"
                )


HELD = _Held()


def put_file(path: str, file: IO[bytes]) -> None:
    """Upload a whole local file, if the ticket of its run is still honoured when its turn comes."""
    clients.put_file(path, file, allowed=partial(HELD.check, path))


class _Ticket(NamedTuple):
    path: str
    time_ns: int  # of the store, when it was written last
    says: dict[str, Any]


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """See `altalign.storage`."""
    folder = folder.rstrip("/")
    with disk_locks.held_for(folder, _lock(folder)), _ticket(folder):
        yield


@contextmanager
def _ticket(folder: str) -> Iterator[None]:
    path, says = (
        f"{folder}/log/{_TICKET}{uuid4().hex}",
        {"host": socket.gethostname(), "process": os.getpid(), "machine": local_copies.machine()},
    )
    try:
        clients.put(path, json.dumps(says).encode())
    except StoreError as error:
        raise UsageError(f"{folder}: cannot be written to: {error}") from error
    stop = threading.Event()
    try:
        _check_alone(folder, path)
        HELD.renew(folder)
        thread = threading.Thread(target=_refresh, args=(folder, path, says, stop), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
    finally:
        HELD.drop(folder)
        with suppress(AltalignError):
            clients.delete_object(path)


def _check_alone(folder: str, path: str) -> None:
    tickets = {ticket.path: ticket for ticket in _tickets(folder)}
    own = tickets.pop(path, None)
    for other in tickets.values():
        age_s = (own.time_ns - other.time_ns) / 1e9 if own else 0.0
        if other.says.get("machine") == local_copies.machine() or age_s > LEASE_S:
            clients.delete_object(other.path)  # its command has ended
        else:
            raise disk_locks.at_work(
                folder,
                f"process {other.says.get('process')} on {other.says.get('host')}, seen {max(0.0, age_s):.0f} s ago",
            )


def _refresh(folder: str, path: str, says: Mapping[str, object], stop: threading.Event) -> None:
    while not stop.wait(REFRESH_EVERY_S):
        with suppress(AltalignError):  # tried again; `HELD.check` says when it is too late
            HELD.check(path)  # an expired ticket is not renewed
            begun = time.monotonic()
            clients.put(path, json.dumps(says).encode())
            if time.monotonic() - begun < LEASE_S:
                HELD.renew(folder)


def _tickets(folder: str) -> list[_Ticket]:
    found = []
    for info in clients.listed(f"{folder}/log", is_recursive=False):
        if info.type == pafs.FileType.File and info.base_name.startswith(_TICKET):
            path = f"{folder}/log/{info.base_name}"
            with suppress(FileNotFoundError, ValueError):  # its owner has ended meanwhile
                found.append(_Ticket(path, info.mtime_ns or 0, json.loads(clients.get(path))))
    return found


def holder(folder: str) -> str | None:
    """See `altalign.storage`."""
    folder = folder.rstrip("/")
    if (process := disk_locks.holder_of(_lock(folder))) is not None:
        return process
    for ticket in _tickets(folder):
        if ticket.says.get("machine") != local_copies.machine() and time.time() - ticket.time_ns / 1e9 < LEASE_S:
            return f"{ticket.says.get('process')} on {ticket.says.get('host')}"
    return None


def _lock(folder: str) -> Path:
    return local_copies.standing_for(folder, "locks")
