"""A lock on a run folder in a store, against a second command on any machine: tickets, small objects that are renewed.

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
from collections.abc import Iterator
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
    """When the ticket of each run folder that this process holds was written last."""

    def __init__(self) -> None:
        self._fresh: dict[str, float] = {}

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
    owner: dict[str, Any]

    @property
    def is_of_this_machine(self) -> bool:
        return self.owner.get("machine") == local_copies.machine()

    def __str__(self) -> str:
        return f"{self.owner.get('process')} on {self.owner.get('host')}"


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """See `altalign.storage`."""
    folder = folder.rstrip("/")
    with disk_locks.held_for(folder, _lock(folder)), _ticket(folder):
        yield


@contextmanager
def _ticket(folder: str) -> Iterator[None]:
    path = f"{folder}/log/{_TICKET}{uuid4().hex}"
    owner = {"host": socket.gethostname(), "process": os.getpid(), "machine": local_copies.machine()}
    data = json.dumps(owner).encode()
    try:
        clients.put(path, data)
    except StoreError as error:
        raise UsageError(f"{folder}: cannot be written to: {error}") from error
    stop = threading.Event()
    thread = threading.Thread(target=_refresh, args=(folder, path, data, stop), daemon=True)
    try:
        _check_alone(folder, path)
        HELD.renew(folder)
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
        if not other.is_of_this_machine and age_s <= LEASE_S:
            raise disk_locks.at_work(folder, f"process {other}, seen {max(0.0, age_s):.0f} s ago")
        clients.delete_object(other.path)  # its command has ended


def _refresh(folder: str, path: str, data: bytes, stop: threading.Event) -> None:
    while not stop.wait(REFRESH_EVERY_S):
        with suppress(AltalignError):  # tried again; `HELD.check` says when it is too late
            HELD.check(path)  # an expired ticket is not renewed
            begun = time.monotonic()
            clients.put(path, data)
            if time.monotonic() - begun < LEASE_S:
                HELD.renew(folder)


def _tickets(folder: str) -> list[_Ticket]:
    tickets = []
    for info in clients.listed(f"{folder}/log", is_recursive=False):
        if info.type == pafs.FileType.File and info.base_name.startswith(_TICKET):
            path = f"{folder}/log/{info.base_name}"
            with suppress(FileNotFoundError, ValueError):  # its owner has ended meanwhile
                tickets.append(_Ticket(path, info.mtime_ns or 0, json.loads(clients.get(path))))
    return tickets


def holder(folder: str) -> str | None:
    """See `altalign.storage`."""
    folder = folder.rstrip("/")
    if (process := disk_locks.holder_of(_lock(folder))) is not None:
        return process
    for ticket in _tickets(folder):
        if not ticket.is_of_this_machine and time.time() - ticket.time_ns / 1e9 < LEASE_S:
            return str(ticket)
    return None


def _lock(folder: str) -> Path:
    return local_copies.standing_for(folder, "locks")
