"""What this machine keeps of runs in object stores.

Copies of what is mapped into memory, temporary files, and who is at work.

All of it is in one folder: `ALTALIGN_CACHE`, else `altalign` in the user's cache. It may be deleted whenever no command
is at work.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from altalign.errors import UsageError
from altalign.storage import disk_locks, local, paths
from altalign.storage.stamp import Stamp

COPIES_AT_MOST_BYTES = 32 << 30  # of copies that nobody has asked for within the last hour, the oldest go beyond this
_KEPT_S = 3600.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # of the running kernel; Linux alone has it


def folder() -> Path:
    """The folder.

    Raises:
        UsageError: nothing can be written there.
    """
    told = os.environ.get("ALTALIGN_CACHE")
    place = Path(told) if told else Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "altalign")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{place}: cannot be written to ({error.strerror}), and copies of what is in an object store belong there; "
            "set ALTALIGN_CACHE"
        ) from None
    return place.absolute()


def standing_for(path: str, what: str) -> Path:
    """The local path that stands for a path in a store; `what` is its kind."""
    return folder() / what / _digest(path)


def machine() -> str:
    """A name for this machine since its last start; no other machine has it.

    Machines that share a folder, as with homes on NFS, have different names.
    """
    place = folder() / "machine"
    with suppress(FileExistsError):
        partial = place.with_name(f"machine-{uuid4().hex}")
        partial.write_text(uuid4().hex, encoding="ascii")
        try:
            os.link(partial, place)  # whoever is first names it
        finally:
            partial.unlink()
    name = place.read_text(encoding="ascii")
    with suppress(OSError):
        name = f"{name}-{_BOOT_ID.read_text(encoding='ascii').strip()}"
    return name


def copy(path: str, stamp: Stamp, fetch: Callable[[BinaryIO], None]) -> str:
    """The local copy of a file with this stamp; `fetch` writes it if there is none.

    Others that want it wait.

    Raises:
        FullDiskError: no space is left for it.
    """
    place = folder() / "copies" / _digest(json.dumps([path, stamp.to_json()])) / paths.name(path)
    with disk_locks.held(place.parent.with_suffix(".lock")):
        if not place.exists():
            make_room(stamp.size)
            with local.write(str(place), durable=True) as file:  # nobody would look at it again
                fetch(file)
        os.utime(place)
    return str(place)


def make_room(size: int) -> None:
    """Delete the least recently used copies while there are too many.

    Whoever has one mapped keeps it.
    """
    copies = []
    for place in (folder() / "copies").glob("*/*"):
        with suppress(OSError):
            status = place.stat()
            copies.append((status.st_mtime, status.st_size, place))
    total = size + sum(of for _, of, _ in copies)
    for used, of, place in sorted(copies):
        if total <= COPIES_AT_MOST_BYTES or used > time.time() - _KEPT_S:
            break
        shutil.rmtree(place.parent, ignore_errors=True)
        total -= of


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
