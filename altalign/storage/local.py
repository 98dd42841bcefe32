"""Files, locks and copies on this machine's disks, and what `altalign.storage` promises of functions of these names."""

import errno
import fcntl
import glob
import hashlib
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal
from uuid import uuid4

from altalign.errors import FullDiskError, UsageError
from altalign.machine import interrupts
from altalign.storage import paths
from altalign.storage.paths import Stamp, folder_of, is_remote

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_PARTIAL = ".partial-"  # in the name of a file that is being written
_SYNCS_AT_ONCE = 4
_EMPTIED_BEFORE_S = 5.0
_COPY_KEPT_S = 86_400.0  # without use
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # of the running kernel; Linux alone has it


# Errors that people can mend -----------------------------------------------------------------------------------------


def is_full_disk(error: BaseException) -> bool:
    """Whether the error says that no space or quota is left."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def full_disk(error: BaseException, folder: str, *, writing: str = "") -> FullDiskError | None:
    """The message for an error of a full disk; None for any other error. An empty folder: it is not known."""
    if not is_full_disk(error):
        return None
    what = f" while writing {writing}" if writing else ""
    if isinstance(error, OSError) and error.errno == errno.EDQUOT:
        what += " (the quota is used up)"
    elif folder:
        with suppress(OSError):
            status = os.statvfs(_existing(folder))
            is_full_of_files = status.f_files and not status.f_favail
            left = f"{status.f_bavail * status.f_frsize:,} bytes free"
            what += f" ({'it holds as many files as it can' if is_full_of_files else left})"
    repair = "make room and run the same command again, it continues"
    return FullDiskError(f"{folder or 'the disk'}: no space left on the device{what}; {repair}")


@contextmanager
def naming_a_full_disk(folder: str, writing: str) -> Iterator[None]:
    """Makes the error of a full disk a FullDiskError, which names the folder."""
    try:
        yield
    except OSError as error:
        if (full := full_disk(error, folder, writing=writing)) is not None:
            raise full from error
        raise


def _existing(path: str) -> Path:
    """The path, or the nearest folder above it that exists."""
    place = Path(path).absolute()
    return next(folder for folder in (place, *place.parents) if folder.exists())


def free_bytes(path: str) -> int | None:
    """Bytes free where `path` is, or will be; None where that cannot be known."""
    return None if is_remote(path) else shutil.disk_usage(_existing(path)).free


# Reading -------------------------------------------------------------------------------------------------------------


def open_read(path: str) -> BinaryIO:
    """A seekable binary file."""
    return Path(path).open("rb")


def open_again(path: str, _: BinaryIO) -> BinaryIO:
    """A second handle of an open file, with its own position, that shares what was read of a store; close it first."""
    return Path(path).open("rb", buffering=1 << 17)  # which holds most of the places that are looked at in order


def ask_for(_: str, file: BinaryIO, offset: int, length: int) -> None:
    """Begin to read a range of an open file in the background. Errors are raised when it is read."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(file.fileno(), offset, length, os.POSIX_FADV_WILLNEED)


def read_bytes(path: str) -> bytes:
    """A whole file."""
    return Path(path).read_bytes()


def read_ranges(path: str, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """The bytes of each (offset, length) of one file; fewer at its end."""
    interrupts.check()
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a merge opens each file once a partition
    try:
        for offset, length in ranges:
            yield os.pread(file, length, offset)
    finally:
        os.close(file)


def in_arrow(path: str) -> "tuple[FileSystem, str]":
    """Arrow's file system for a path, and the path in that file system, for lazy scans."""
    from pyarrow.fs import LocalFileSystem  # a tenth of a second, which most commands need not wait for

    return LocalFileSystem(), paths.absolute(path)


# What is there -------------------------------------------------------------------------------------------------------


def kind(path: str) -> Literal["file", "folder", "other", "missing"]:
    """What is at a path; links are followed. In a store, a folder is a common prefix of object names."""
    mode = _mode(path)
    if mode is None:
        return "missing"
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


def exists(path: str) -> bool:
    """Whether there is a whole file at `path`."""
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode)


def _mode(path: str) -> int | None:
    """The mode of what a path leads to; None: nothing is there.

    An OSError where that cannot be known, which methods of Path take for nothing since Python 3.14.
    """
    try:
        return os.stat(path).st_mode  # noqa: PTH116
    except (OSError, ValueError) as error:  # ValueError: a NUL
        if isinstance(error, OSError) and error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP):
            raise
        return None


def stamp(path: str) -> Stamp:
    """Size and time of a file; in a store, size and digest."""
    status = os.stat(path)  # noqa: PTH116 - of a million files
    return Stamp(status.st_size, status.st_mtime_ns)


def names(folder: str, suffix: str = "") -> list[str]:
    """Sorted names of the whole files of a folder; none where there is no folder."""
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if e.name.endswith(suffix) and _PARTIAL not in e.name and e.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return []


def sizes(folder: str) -> dict[str, int]:
    """Bytes of the whole files of a folder, by name; none where there is no folder."""
    return {name: os.stat(f"{folder}/{name}").st_size for name in names(folder)}  # noqa: PTH116 - of a million files


def entries(folder: str) -> list[str]:
    """Names of all that a folder has in it, folders too; none where there is no folder."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - names alone
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_partial(name: str) -> bool:
    """Whether a file of this name is one whose writing has not ended."""
    return _PARTIAL in name


def files_below(folder: str) -> list[str]:
    """Paths of all files below a folder."""
    below = os.walk(folder)  # of a million files; Path.rglob takes ten times as long
    return [path for at, _, files in below for name in files if os.path.isfile(path := f"{at}/{name}")]  # noqa: PTH113


def find(pattern: str) -> list[str]:
    """Paths that match a glob, in which `**` stands for any folders.

    A path that exists as it is written matches itself, whatever brackets it has.
    """
    # Path.glob refuses absolute patterns
    return [pattern] if _mode(pattern) is not None else glob.glob(pattern, recursive=True)  # noqa: PTH207


# Writing -------------------------------------------------------------------------------------------------------------


@contextmanager
def write(path: str, *, durable: bool = False) -> Iterator[BinaryIO]:
    target = Path(path)
    partial = target.with_name(f"{target.name}{_PARTIAL}{uuid4().hex[:8]}")
    try:
        with naming_a_full_disk(str(target.parent), target.name):
            _make_folder(target.parent)
            with partial.open("wb") as file:
                yield file
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            partial.replace(target)
            if durable:
                _sync(target.parent)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


class GrowingFile:
    """A file that is added to at its end; `bytes` is its length."""

    def __init__(self, file: int, target: Path, size: int):
        self._file, self._target, self.bytes = file, target, size

    def write(self, data: bytes) -> None:
        """Add bytes. They are with the system when this returns, so they outlive the process."""
        left = memoryview(data)
        with naming_a_full_disk(str(self._target.parent), self._target.name):
            while left:
                left = left[os.write(self._file, left) :]
        self.bytes += len(data)


@contextmanager
def growing(path: str, *, keep: int | None = None) -> Iterator[GrowingFile]:
    target = Path(path)
    with naming_a_full_disk(str(target.parent), target.name):
        _make_folder(target.parent)
        file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        if keep is not None:
            os.ftruncate(file, keep)
        yield GrowingFile(file, target, os.fstat(file).st_size)
    finally:
        os.close(file)


def move(path: str, target: str) -> None:
    """Give a whole file another name, in the place of what has that name; in a store it is copied there, then deleted.

    Both are in one run. Whoever is killed leaves the file under its old name, its new one, or, in a store, both.
    """
    _make_folder(Path(target).parent)
    Path(path).replace(target)


def link(path: str, target: str) -> None:
    """Give a whole file one more name, in the place of what has that name; copied where it has to be, as in a store.

    Neither name may be written through afterwards: files are replaced, never changed.
    """
    _make_folder(Path(target).parent)
    Path(target).unlink(missing_ok=True)
    try:
        Path(target).hardlink_to(path)
    except OSError:
        with Path(path).open("rb") as file, write(target) as copy:
            shutil.copyfileobj(file, copy)


def delete_file(path: str) -> None:
    """Delete a file; nothing where there is none."""
    Path(path).unlink(missing_ok=True)


def delete(path: str) -> None:
    if Path(path).is_dir():
        shutil.rmtree(path)
    else:
        delete_file(path)


def discard(path: str, folder: str) -> bool:
    """Move a file or folder, if there is one, into a folder of what may go, by a new name; False: it is elsewhere."""
    target = Path(folder, uuid4().hex)
    if kind(path) != "missing":
        _make_folder(target.parent)
        try:
            Path(path).replace(target)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EBUSY):  # on another disk, or one of its own
                raise
            return False
        sync([folder_of(path)])
    return True


@contextmanager
def emptied(folder: str) -> Iterator[None]:
    """Delete what is in a folder while the block runs; what takes a few seconds before it begins, all before it ends.

    A disk may delete as few as 300 files a second. An OSError, and only behind the block: a file cannot be deleted.
    """
    ended = threading.Event()

    def empty() -> None:
        with suppress(OSError):  # the deletion of the folder, below, meets it again
            for path in files_below(folder):
                if ended.is_set():
                    return
                delete_file(path)

    emptying = threading.Thread(target=empty)
    emptying.start()
    try:
        emptying.join(_EMPTIED_BEFORE_S)
        yield
        emptying.join()
    finally:
        ended.set()  # after an error the next command deletes the rest
        emptying.join()
    delete(folder)


def sweep(folder: str) -> None:
    """Delete what interrupted writes left under a folder; nobody else may be writing there."""
    for at, _, files in os.walk(folder):
        for name in filter(is_partial, files):
            Path(at, name).unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    """Make a folder that outlives a power cut, and those above it."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def sync(places: Iterable[str]) -> None:
    """Have the disk keep these files, and the names in these folders; of a store there is nothing to do.

    All at once: a file system writes its journal for many together. FullDiskError where no space is left.
    """
    if of_disk := [Path(place) for place in places if not is_remote(place)]:
        from concurrent.futures import ThreadPoolExecutor  # a hundredth of a second, which few commands wait for

        with ThreadPoolExecutor(_SYNCS_AT_ONCE) as pool:
            done = [pool.submit(_sync, place) for place in of_disk]
        for each in done:
            each.result()


def _sync(place: Path) -> None:
    try:
        file = os.open(place, os.O_RDONLY)
    except FileNotFoundError:  # it was deleted, too
        return
    try:
        with naming_a_full_disk(str(place.parent), place.name):
            os.fsync(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system without this keeps names at once, or never
            raise
    finally:
        os.close(file)


# Locks ---------------------------------------------------------------------------------------------------------------


@contextmanager
def locked(folder: str, place: Path | None = None) -> Iterator[None]:
    """Hold a run folder against a second command, in a store on any machine; UsageError where another one holds it.

    `place`: of the lock, where it is not in the folder.
    """
    place = place or Path(folder, "log", "lock")
    with ExitStack() as stack:
        try:
            stack.enter_context(_held(place, blocking=False))
        except BlockingIOError:
            raise at_work(folder, f"process {holder(folder, place) or 'unknown'}") from None
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            why = f"cannot be written to ({error.strerror}: {error.filename})"
            raise UsageError(f"{folder}: {why}; make it writable, or choose another [run] folder") from None
        yield


def at_work(folder: str, who: str) -> UsageError:
    """The error for a run that another command holds."""
    why = f"another command is at work on this run ({who})"
    return UsageError(f"{folder}: {why}; wait for it, or choose another [run] folder")


@contextmanager
def _held(place: Path, *, blocking: bool) -> Iterator[None]:
    """Hold a lock file, which names our process; BlockingIOError where another one does, and we do not wait."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("a+", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if blocking else fcntl.LOCK_NB))
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def holder(folder: str, place: Path | None = None) -> str | None:
    """The process that holds a run folder, and its machine where that is another; None where none does."""
    place = place or Path(folder, "log", "lock")
    with suppress(OSError), place.open(encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return lock.read().strip() or "unknown"
    return None


# What this machine keeps of runs in stores: copies to map into memory, temporary files, locks ------------------------


def local_folder(folder: str) -> str:
    """Where this machine keeps what a run maps into memory or appends to: in the run itself, if it is local.

    For a run in a store another folder stands for it, which may be deleted while no command is at work.
    """
    return folder


def cache_folder() -> Path:
    """`ALTALIGN_CACHE`, else `altalign` in the user's cache. It may be deleted whenever no command is at work."""
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
    return cache_folder() / kind / hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def machine_name() -> str:
    """A name that no other machine has, of this one since its last start, also where homes are shared over NFS."""
    place = cache_folder() / "machine"
    with suppress(FileExistsError), place.open("x", encoding="ascii") as file:
        file.write(uuid4().hex)
    boot = _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else ""
    return f"{place.read_text(encoding='ascii')}-{boot}"


def copied(path: str, stamp: Stamp, fetch: Callable[[BinaryIO], None]) -> str:
    """The local copy of a remote file with this stamp, for all processes; `fetch` writes it if there is none.

    Copies that were not used for a day go.
    """
    place = standing_for(json.dumps([path, stamp.to_json()]), "copies") / paths.name(path)
    with _held(place.parent.with_suffix(".lock"), blocking=True):
        if not place.exists():
            for old in place.parents[1].glob("*/*"):
                with suppress(OSError):  # another process deletes it
                    if old.stat().st_mtime < time.time() - _COPY_KEPT_S:
                        shutil.rmtree(old.parent)
            with write(str(place), durable=True) as file:  # whose size nobody would compare again
                fetch(file)
        os.utime(place)
    return str(place)
