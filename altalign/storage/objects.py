"""Files in object stores, behind the face of `altalign.storage`, which says what each function promises.

How objects are asked for: ADR 12.
"""

import fnmatch
import json
import mmap
import os
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, Literal, NamedTuple, cast
from uuid import uuid4

import pyarrow.fs as pafs

from altalign.errors import AltalignError, StoreError, UsageError
from altalign.storage import clients, local
from altalign.storage.clients import asking, check, each
from altalign.storage.clients import delete_object as delete_file
from altalign.storage.paths import Place, Stamp, absolute
from altalign.storage.reading import open_read, read_ranges

__all__ = ["check", "delete_file"]

_COPIED_AT_ONCE_BYTES = 8 << 20
_COPIED_BYTES_AT_MOST = 5 << 30  # of S3's request CopyObject
SENT_EVERY_S, SENT_WITHIN_S = 5.0, 60.0  # a growing file
LEASE_S = 120.0  # of a ticket
REFRESH_EVERY_S = 20.0
_TICKET = "lock-"
_KNOWN_FOR_S = 60.0
_MAGIC = re.compile(r"[*?[]")

_Kind = Literal["file", "folder", "missing"]
# what a glob has just met, so that nobody asks for each of its files again
_LISTED: dict[str, tuple[float, _Kind]] = {}


def in_arrow(path: str) -> tuple[pafs.FileSystem, str]:
    place = Place.parse(path)
    return clients.client(place), place.name


def mappable(path: str) -> str:
    version = stamp(path)
    pieces = [(begin, _COPIED_AT_ONCE_BYTES) for begin in range(0, version.size, _COPIED_AT_ONCE_BYTES)]
    return local.copied(path, version, lambda copy: copy.writelines(read_ranges(path, pieces)))


# What is there -------------------------------------------------------------------------------------------------------


def kind(path: str) -> _Kind:
    """What is at a path: an object, or a prefix of others."""
    place = Place.parse(path)
    listed_at, known = _LISTED.get(absolute(path), (0.0, "missing"))
    if listed_at and time.monotonic() - listed_at < _KNOWN_FOR_S:
        return cast(_Kind, known)
    if not place.key:
        return "folder"
    with asking(path):
        return _KINDS[clients.client(place).get_file_info(place.name).type]


_KINDS: dict[pafs.FileType, _Kind] = {
    **{pafs.FileType.File: "file", pafs.FileType.Directory: "folder"},
    **{pafs.FileType.NotFound: "missing", pafs.FileType.Unknown: "missing"},
}


def exists(path: str) -> bool:
    """Whether there is an object: one request, where `kind` may take two."""
    try:
        clients.OpenObject(path)
    except FileNotFoundError:
        return False
    return True


def stamp(path: str) -> Stamp:
    """Size and ETag."""
    opened, place = clients.OpenObject(path), Place.parse(path)
    with asking(path):
        headers: dict[str, bytes] = {name.lower(): value for name, value in opened.file.metadata().items()}
        if digest := headers.get("etag", b"").decode("utf-8", "replace").strip('"'):
            return Stamp(opened.size, 0, digest)
        return Stamp(opened.size, clients.client(place).get_file_info(place.name).mtime_ns or 0)


def names(folder: str, suffix: str = "") -> list[str]:
    infos = clients.listed(folder, is_recursive=False)
    names = [info.base_name for info in infos if info.type == pafs.FileType.File]
    return sorted(name for name in names if name.endswith(suffix))


def entries(folder: str) -> list[str]:
    """Names of objects and folders, from a list of all below: Arrow's list of one GCS folder leaves folders out."""
    inside = f"{Place.parse(folder).name}/"
    infos = clients.listed(folder, is_recursive=True)
    return sorted({info.path.removeprefix(inside).partition("/")[0] for info in infos})


def files_below(folder: str) -> list[str]:
    """Paths of all objects below a folder: one request for a thousand."""
    inside = f"{Place.parse(folder).name}/"
    infos = clients.listed(folder, is_recursive=True)
    files = (info.path.removeprefix(inside) for info in infos if info.type == pafs.FileType.File)
    return [f"{absolute(folder)}/{name}" for name in files]


def find(pattern: str) -> list[str]:
    """What a glob matches, by one list of the folder that its plain part names."""
    parts = absolute(pattern).partition("://")[2].split("/")
    plain = next((number for number, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    if kind(pattern) != "missing":
        return [pattern]
    if plain == len(parts):
        return []
    scheme = Place.parse(pattern).scheme
    is_deep = plain < len(parts) - 1 or "**" in parts or scheme == "gs"  # Arrow's list of one GCS folder has no folders
    infos = clients.listed(f"{scheme}://{'/'.join(parts[:plain])}", is_recursive=is_deep)
    kinds: dict[str, _Kind] = {}
    if scheme == "gs":
        kinds = dict.fromkeys((str(folder) for info in infos for folder in PurePosixPath(info.path).parents), "folder")
    kinds |= {info.path: _KINDS[info.type] for info in infos}
    hits = []
    for name, kind_of_name in kinds.items():
        if _matches(name.split("/")[plain:], parts[plain:]):
            path = f"{scheme}://{name}"
            _LISTED[path] = time.monotonic(), kind_of_name
            hits.append(path)
    return sorted(hits)


def _matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Matches as the module glob does: `**` is any folders, and only a point matches a leading point."""
    if not names or not pattern:
        return not names and not pattern
    first, *rest = pattern
    if first == "**":
        is_hidden = names[0].startswith(".")
        return (bool(rest) and _matches(names, rest)) or (
            not is_hidden and (_matches(names[1:], pattern) or (not rest and len(names) == 1))
        )
    is_met = fnmatch.fnmatchcase(names[0], first) and (first.startswith(".") or not names[0].startswith("."))
    return is_met and _matches(names[1:], rest)


# Writing -------------------------------------------------------------------------------------------------------------


@contextmanager
def write(path: str, *, durable: bool = False) -> Iterator[BinaryIO]:  # noqa: ARG001 - a store keeps what it took
    """An object that is uploaded once the block has ended well.

    Until then its bytes are in memory, or in a temporary file where they are many.
    """
    with tempfile.SpooledTemporaryFile(clients.ONE_REQUEST_BYTES) as file:
        with local.naming_a_full_disk(tempfile.gettempdir(), path.rpartition("/")[2]):
            yield cast(BinaryIO, file)
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        _put(path, _mapped(file, size) if size > clients.ONE_REQUEST_BYTES else file.read())


def put_file(file: str, path: str) -> None:
    with Path(file).open("rb") as original:
        _put(path, _mapped(original, os.fstat(original.fileno()).st_size))


def _mapped(file: IO[bytes], size: int) -> Any:
    """So many bytes of a local file, of which a large one is not read into memory."""
    file.flush()
    return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""


def _put(path: str, data: Any) -> None:
    """Make an object, if the ticket of its run is still honoured when its turn comes."""
    _LISTED.pop(path, None)
    clients.put(path, data, allowed=partial(HELD.check, path))


class GrowingObject:
    """A file that grows in a store, which cannot append: bytes wait in a local file, and all of it goes up anew.

    That is 5 seconds after the last time, or ten times as long as it took, a minute at most; a kill loses the rest.
    """

    def __init__(self, path: str, file: IO[bytes], size: int):
        self.bytes = self._sent = size
        self._path, self._file = path, file
        self._lock = threading.Lock()
        self._due_s = time.monotonic() + SENT_EVERY_S
        self._sending: Future[None] | None = None

    def write(self, data: bytes) -> None:
        """Add bytes.

        Raises:
            FullDiskError: no space is left for temporary files, or in the store.
            StoreError: the store does not take the object.
        """
        with self._lock:
            with local.naming_a_full_disk(tempfile.gettempdir(), self._path.rpartition("/")[2]):
                self._file.seek(0, os.SEEK_END)
                self._file.write(data)
                self._file.flush()
            self.bytes += len(data)
            if time.monotonic() >= self._due_s and (self._sending is None or self._sending.done()):
                if self._sending is not None:
                    self._sending.result()
                self._sending = clients.threads("growing").submit(self._send, self.bytes)

    def _send(self, size: int) -> None:
        begun = time.monotonic()
        _put(self._path, _mapped(self._file, size))
        self._sent = size
        self._due_s = time.monotonic() + min(max(SENT_EVERY_S, 10 * (time.monotonic() - begun)), SENT_WITHIN_S)

    def finish(self) -> None:
        """Upload what has come since the last time."""
        if self._sending is not None:
            wait([self._sending])  # where it failed, all of it is sent once more
        if self.bytes != self._sent:
            self._send(self.bytes)


@contextmanager
def growing(path: str, *, keep: int | None = None) -> Iterator[GrowingObject]:
    """A file to append to; see `GrowingObject`."""
    with tempfile.TemporaryFile() as file:
        with suppress(FileNotFoundError):
            file.write(clients.get(path))
        before = file.tell()
        size = file.truncate(before if keep is None else min(keep, before))
        if size != before or not before:
            _put(path, _mapped(file, size))
        grown = GrowingObject(path, file, size)
        try:
            yield grown
        finally:
            grown.finish()


def move(path: str, target: str) -> None:
    link(path, target)
    clients.delete_object(path)


def link(path: str, target: str) -> None:
    """Copy an object inside the store; S3 does not copy the largest ones, which come through this machine."""
    HELD.check(target)
    _LISTED.pop(target, None)
    with asking(target):
        try:
            clients.client(Place.parse(target)).copy_file(Place.parse(path).name, Place.parse(target).name)
            return
        except OSError:
            if stamp(path).size <= _COPIED_BYTES_AT_MOST:
                raise
    with open_read(path) as file, write(target) as copy:
        shutil.copyfileobj(file, copy, _COPIED_AT_ONCE_BYTES)


def move_folder(path: str, target: str) -> None:
    source, copy = absolute(path), absolute(target)
    names = [file.removeprefix(f"{source}/") for file in files_below(path)]
    _all(lambda name: link(f"{source}/{name}", f"{copy}/{name}"), names)
    _all(clients.delete_object, sorted({*files_below(target)} - {f"{copy}/{name}" for name in names}))


def delete(path: str) -> None:
    _LISTED.pop(absolute(path), None)
    place = Place.parse(path)
    with asking(path):
        info = clients.client(place).get_file_info(place.name)
        if info.type == pafs.FileType.File:
            clients.client(place).delete_file(place.name)
        # GCS has no request for a folder, and Arrow's wants an object that stands for it
        elif info.type == pafs.FileType.Directory and place.scheme == "gs":
            _all(clients.delete_object, [*files_below(path), f"{absolute(path)}/"])
        # S3 deletes a thousand objects a request. Some stores are file systems, where a folder that is not empty stays
        elif info.type == pafs.FileType.Directory:
            below = clients.listed(path, is_recursive=True)
            folders = {str(folder) for each in below for folder in PurePosixPath(each.path).parents}
            folders |= {each.path for each in below if each.type == pafs.FileType.Directory} | {place.name}
            inside = [folder for folder in folders if f"{folder}/".startswith(f"{place.name}/")]
            for folder in sorted(inside, key=lambda folder: folder.count("/"), reverse=True):
                with suppress(FileNotFoundError):
                    clients.client(place).delete_dir(folder)


def _all(work: Callable[[str], None], paths: Sequence[str]) -> None:
    for _ in each(work, paths):
        pass


def sweep(_: str) -> None:
    """An upload that never ended left no object; what it left in the store, the store's own rules delete."""


def local_folder(folder: str) -> str:
    return str(local.standing_for(absolute(folder), "runs"))


# The lock on a run ----------------------------------------------------------------------------------------------------
#
# Tickets, small objects that are renewed, hold a run against commands on any machine. A command writes its ticket, then
# lists all tickets. If another ticket is fresh, it deletes its own and gives up. Two commands that start at once may
# both give up, but they never both win: S3 and GCS list every object that was written before. The age of a ticket is a
# difference of the store's own times, so the clocks of machines do not matter. On one machine a file lock decides at
# once, and shows which tickets are of killed commands. One case is not covered: a command that is suspended for longer
# than `LEASE_S` and then resumes. It notices within seconds and writes nothing more, but an upload that was under way
# may still arrive.


class _Held:
    """When the ticket of each run folder that this process holds was written last."""

    def __init__(self) -> None:
        self.renewed_s: dict[str, float] = {}

    def renew(self, folder: str) -> None:
        self.renewed_s[folder] = time.monotonic()

    def check(self, path: str) -> None:
        """Refuse to write to a run whose ticket others may consider expired."""
        for folder, written in list(self.renewed_s.items()):
            if path.startswith(f"{folder}/") and time.monotonic() - written > LEASE_S:
                raise StoreError(
                    f"{folder}: held no longer: the store was not reached for {time.monotonic() - written:.0f} s, and "
                    "another command may be at work; run the same command again, it continues"
                )


HELD = _Held()


class _Ticket(NamedTuple):
    path: str
    time_ns: int  # of the store, when it was written last
    owner: dict[str, Any]

    @property
    def is_of_this_machine(self) -> bool:
        return self.owner.get("machine") == local.machine_name()

    def __str__(self) -> str:
        return f"{self.owner.get('process')} on {self.owner.get('host')}"


@contextmanager
def locked(folder: str) -> Iterator[None]:
    folder = folder.rstrip("/")
    path = f"{folder}/log/{_TICKET}{uuid4().hex}"
    owner = {"host": socket.gethostname(), "process": os.getpid(), "machine": local.machine_name()}
    data = json.dumps(owner).encode()
    stop = threading.Event()
    thread = threading.Thread(target=_refresh, args=(folder, path, data, stop), daemon=True)
    with local.locked(folder, _lock(folder)):
        try:
            clients.put(path, data, allowed=lambda: None)
        except StoreError as error:
            raise UsageError(f"{folder}: cannot be written to: {error}") from error
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
            HELD.renewed_s.pop(folder, None)
            with suppress(AltalignError):
                clients.delete_object(path)


def _check_alone(folder: str, path: str) -> None:
    tickets = {ticket.path: ticket for ticket in _tickets(folder)}
    own = tickets.pop(path, None)
    for other in tickets.values():
        age_s = (own.time_ns - other.time_ns) / 1e9 if own else 0.0
        if not other.is_of_this_machine and age_s <= LEASE_S:
            raise local.at_work(folder, f"process {other}, seen {max(0.0, age_s):.0f} s ago")
        clients.delete_object(other.path)  # its command has ended


def _refresh(folder: str, path: str, data: bytes, stop: threading.Event) -> None:
    while not stop.wait(REFRESH_EVERY_S):
        with suppress(AltalignError):  # tried again; `HELD.check` says when it is too late
            HELD.check(path)  # an expired ticket is not renewed
            begun = time.monotonic()
            clients.put(path, data, allowed=lambda: None)
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
    folder = folder.rstrip("/")
    if (process := local.holder_of(_lock(folder))) is not None:
        return process
    for ticket in _tickets(folder):
        if not ticket.is_of_this_machine and time.time() - ticket.time_ns / 1e9 < LEASE_S:
            return str(ticket)
    return None


def _lock(folder: str) -> Path:
    return local.standing_for(folder, "locks")
