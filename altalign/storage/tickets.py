"""The lock on a run in an object store.

Tickets, small objects that are renewed, hold a run against commands on any machine. A command writes its ticket, then
lists all tickets. If another ticket is fresh, it deletes its own and gives up. Two commands that start at once may both
give up, but they never both win: S3 and GCS list every object that was written before. The age of a ticket is a
difference of the store's own times, so the clocks of machines do not matter. On one machine a file lock decides at
once, and shows which tickets are of killed commands. One case is not covered: a command that is suspended for longer
than `objects.LEASE_S` and then resumes. It notices within seconds and writes nothing more, but an upload that was under
way may still arrive.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple
from uuid import uuid4

from altalign.errors import AltalignError, StoreError, UsageError
from altalign.storage import local, objects

REFRESH_EVERY_S = 20.0
_TICKET = "lock-"


class _Ticket(NamedTuple):
    path: str
    written_s: float  # the store's time, when it was written last
    who: str
    is_of_this_machine: bool


@contextmanager
def locked(folder: str) -> Iterator[None]:
    folder = folder.rstrip("/")
    path = f"{folder}/log/{_TICKET}{uuid4().hex}"
    owner = {"host": socket.gethostname(), "process": os.getpid(), "machine": local.machine_name()}
    data, stop = json.dumps(owner).encode(), threading.Event()

    def refresh() -> None:
        while not stop.wait(REFRESH_EVERY_S):
            with suppress(AltalignError):  # tried again; `objects` writes nothing once it is too late
                begun = time.monotonic()
                objects.upload(path, data)
                if time.monotonic() - begun < objects.LEASE_S:
                    objects.HELD[folder] = time.monotonic()

    thread = threading.Thread(target=refresh, daemon=True)
    with local.locked(folder, local.standing_for(folder, "locks")):
        try:
            objects.upload(path, data)
        except StoreError as error:
            raise UsageError(f"{folder}: cannot be written to: {error}") from error
        try:
            tickets = {ticket.path: ticket for ticket in _tickets(folder)}
            own = tickets.pop(path, None)
            for other in tickets.values():
                age_s = own.written_s - other.written_s if own else 0.0
                if not other.is_of_this_machine and age_s <= objects.LEASE_S:
                    raise local.at_work(folder, f"process {other.who}, seen {max(0.0, age_s):.0f} s ago")
                objects.delete_file(other.path)  # its command has ended
            objects.HELD[folder] = time.monotonic()
            thread.start()
            try:
                yield
            finally:
                stop.set()
                thread.join()
        finally:
            objects.HELD.pop(folder, None)
            with suppress(AltalignError):
                objects.delete_file(path)


def _tickets(folder: str) -> Iterator[_Ticket]:
    for info in objects.listed(f"{folder}/log", is_recursive=False):
        if info.is_file and info.base_name.startswith(_TICKET):
            path = f"{folder}/log/{info.base_name}"
            with suppress(FileNotFoundError, ValueError):  # its owner has ended meanwhile
                owner = json.loads(objects.get(path))
                who, is_ours = f"{owner['process']} on {owner['host']}", owner["machine"] == local.machine_name()
                yield _Ticket(path, (info.mtime_ns or 0) / 1e9, who, is_ours)


def holder(folder: str) -> str | None:
    folder = folder.rstrip("/")
    if (process := local.holder(folder, local.standing_for(folder, "locks"))) is not None:
        return process
    others = (ticket for ticket in _tickets(folder) if not ticket.is_of_this_machine)
    return next((each.who for each in others if time.time() - each.written_s < objects.LEASE_S), None)
