"""What this machine keeps of runs in object stores: copies of what is mapped into memory, temporary files, locks.

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

KEPT_S = 86_400.0  # a copy that nobody has asked for
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # of the running kernel; Linux alone has it


def folder() -> Path:
    """The folder.

    Raises:
        UsageError: nothing can be written there.
    """
    named = os.environ.get("ALTALIGN_CACHE")
    place = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "altalign"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{place}: cannot be written to ({error.strerror}), and copies of what is in an object store belong there; "
            "set ALTALIGN_CACHE"
        ) from None
    return place.absolute()


def standing_for(path: str, kind: str) -> Path:
    """The local path that stands for a path in a store, among others of its kind."""
    return folder() / kind / hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


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
    """The local copy of a file with this stamp, of all processes; `fetch` writes it if there is none.

    Copies that nobody has asked for within a day go.

    Raises:
        FullDiskError: no space is left for it.
    """
    place = standing_for(json.dumps([path, stamp.to_json()]), "copies") / paths.name(path)
    with disk_locks.held(place.parent.with_suffix(".lock")):
        if not place.exists():
            for old in place.parents[1].glob("*/*"):
                with suppress(OSError):  # another process deletes it
                    if old.stat().st_mtime < time.time() - KEPT_S:
                        shutil.rmtree(old.parent)
            with local.write(str(place), durable=True) as file:  # nobody would look at it again
                fetch(file)
        os.utime(place)
    return str(place)
