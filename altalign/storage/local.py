"""Files, locks and copies on this machine's disks, behind the face of `altalign.storage`, which has the promises."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from altalign.errors import FullDiskError, UsageError
from altalign.machine import interrupts
from altalign.storage import paths
from altalign.storage.paths import Stamp, is_remote

_PARTIAL = ".partial-"  # in the name of a file that is being written
_SYNCS_AT_ONCE = 4
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
            status = os.statvfs(existing(folder))
            is_full_of_files = status.f_files and not status.f_favail
            left = f"{status.f_bavail * status.f_frsize:,} bytes free"
            what += f" ({'it holds as many files as it can' if is_full_of_files else left})"
    return FullDiskError(
        f"{folder or 'the disk'}: no space left on the device{what}; make room and run the same command again, it "
        "continues"
    )


@contextmanager
def naming_a_full_disk(folder: str, writing: str) -> Iterator[None]:
    """Makes the error of a full disk a FullDiskError, which names the folder."""
    try:
        yield
    except OSError as error:
        if (full := full_disk(error, folder, writing=writing)) is not None:
            raise full from error
        raise


def existing(path: str) -> Path:
    """The path, or the nearest folder above it that exists."""
    place = Path(path).absolute()
    return next(folder for folder in (place, *place.parents) if folder.exists())


# Reading -------------------------------------------------------------------------------------------------------------


def open_again(path: str, _: BinaryIO) -> BinaryIO:
    """A second handle, whose buffer holds most of the places that are looked at in order."""
    return Path(path).open("rb", buffering=1 << 17)


def ask_for(file: BinaryIO, offset: int, length: int) -> None:
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(file.fileno(), offset, length, os.POSIX_FADV_WILLNEED)


def read_ranges(path: str, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """The bytes of each (offset, length) of one file; fewer at its end."""
    interrupts.check()
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a merge opens each file once a partition
    try:
        for offset, length in ranges:
            yield os.pread(file, length, offset)
    finally:
        os.close(file)


def names(folder: str, suffix: str = "") -> list[str]:
    """Sorted names of the whole files of a folder; none where there is no folder."""
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if e.name.endswith(suffix) and _PARTIAL not in e.name and e.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return []


def entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names alone
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_partial(name: str) -> bool:
    """Whether a file of this name is one whose writing has not ended."""
    return _PARTIAL in name


# Writing -------------------------------------------------------------------------------------------------------------


@contextmanager
def write(path: str, *, durable: bool = False) -> Iterator[BinaryIO]:
    target = Path(path)
    partial = target.with_name(f"{target.name}{_PARTIAL}{uuid4().hex[:8]}")
    try:
        _make_folder(target.parent)
        with partial.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(target)
        if durable:
            _sync_folder(target.parent)
    except BaseException as error:
        full = full_disk(error, str(target.parent), writing=target.name)  # while the disk is as it was
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        if full is not None:
            raise full from error
        raise


def move(path: str, target: str) -> None:
    _make_folder(Path(target).parent)
    Path(path).replace(target)


def link(path: str, target: str) -> None:
    """Give a file one more name, over whatever has that name; a copy where the file system has no such links."""
    _make_folder(Path(target).parent)
    Path(target).unlink(missing_ok=True)
    try:
        Path(target).hardlink_to(path)
    except OSError:
        with Path(path).open("rb") as file, write(target) as copy:
            shutil.copyfileobj(file, copy)


def _make_folder(folder: Path) -> None:
    """Make a folder that outlives a power cut, and those above it."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def sync(files: Iterable[str], folders: Iterable[str]) -> None:
    """Have the disk keep these files, and the names in these folders; of a store there is nothing to do.

    All at once: a file system writes its journal for many together. FullDiskError where no space is left.
    """
    work = [(_sync_file, Path(file)) for file in files if not is_remote(file)]
    work += [(_sync_folder, Path(folder)) for folder in folders if not is_remote(folder)]
    if work:
        from concurrent.futures import ThreadPoolExecutor  # a hundredth of a second, which few commands wait for

        with ThreadPoolExecutor(_SYNCS_AT_ONCE) as pool:
            done = [pool.submit(how, path) for how, path in work]
        for each in done:
            each.result()


def _sync_file(place: Path) -> None:
    with naming_a_full_disk(str(place.parent), place.name), place.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(place: Path) -> None:
    try:
        file = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # it was deleted, too
        return
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system without this keeps names at once, or never
            raise
    finally:
        os.close(file)


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


def delete_file(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def delete(path: str) -> None:
    if Path(path).is_dir():
        shutil.rmtree(path)
    else:
        delete_file(path)


def sweep(folder: str) -> None:
    for partial in Path(folder).rglob(f"*{_PARTIAL}*"):
        partial.unlink(missing_ok=True)


@contextmanager
def temporary(folder: str) -> Iterator[None]:
    import tempfile  # a hundredth of a second, which other commands need not wait for

    delete(folder)
    Path(folder).mkdir(parents=True)
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = str(Path(folder).absolute())
    try:
        yield
    finally:
        tempfile.tempdir = before[0]
        os.environ.pop("TMPDIR")
        if before[1] is not None:
            os.environ["TMPDIR"] = before[1]
        shutil.rmtree(folder, ignore_errors=True)


# Locks ---------------------------------------------------------------------------------------------------------------


@contextmanager
def locked(folder: str, place: Path | None = None) -> Iterator[None]:
    """Hold a run folder against other commands of this machine, without waiting; `place`: of the lock, if elsewhere."""
    place = place or Path(folder, "log", "lock")
    with ExitStack() as stack:
        try:
            stack.enter_context(_held(place, blocking=False))
        except BlockingIOError:
            raise at_work(folder, f"process {holder_of(place) or 'unknown'}") from None
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise UsageError(
                f"{folder}: cannot be written to ({error.strerror}: {error.filename}); make it writable, or choose "
                "another [run] folder"
            ) from None
        yield


def at_work(folder: str, who: str) -> UsageError:
    """The error for a run that another command holds."""
    return UsageError(
        f"{folder}: another command is at work on this run ({who}); wait for it, or choose another [run] folder"
    )


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


def holder(folder: str) -> str | None:
    return holder_of(Path(folder, "log", "lock"))


def holder_of(place: Path) -> str | None:
    """The process that holds a lock file; None where none does."""
    with suppress(OSError), place.open(encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return lock.read().strip() or "unknown"
    return None


# What this machine keeps of runs in stores: copies to map into memory, temporary files, locks ------------------------


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
    name = place.read_text(encoding="ascii")
    with suppress(OSError):
        name = f"{name}-{_BOOT_ID.read_text(encoding='ascii').strip()}"
    return name


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
