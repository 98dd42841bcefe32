"""Files on local disks, behind the face of `altalign.storage`, which says what each function promises."""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from uuid import uuid4

from altalign.machine import interrupts
from altalign.storage.disk_errors import full_disk, naming_a_full_disk
from altalign.storage.paths import is_remote
from altalign.storage.stamp import Growing

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_AGAIN_BYTES = 1 << 17  # read at a time of a file that is open a second time
SYNCS_AT_ONCE = 4
_PARTIAL = ".partial-"  # in the name of a file that is being written


# Reading -------------------------------------------------------------------------------------------------------------


def open_again(path: str, _: BinaryIO) -> BinaryIO:
    """A second handle; what was read is in the kernel's cache.

    Whoever looks at many places in order has most of them at hand.
    """
    return Path(path).open("rb", buffering=_AGAIN_BYTES)


def ask_for(file: BinaryIO, offset: int, length: int) -> None:
    """Ask the kernel to read a range into its cache, on systems that can."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(file.fileno(), offset, length, os.POSIX_FADV_WILLNEED)


def read_ranges(path: str, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """The bytes of each (offset, length) of one file; fewer at its end."""
    interrupts.check()
    file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))  # a merge opens each file once a partition
    try:
        for offset, length in ranges:
            yield os.pread(file, length, offset)
    finally:
        os.close(file)


# What is there -------------------------------------------------------------------------------------------------------


def names(folder: str, suffix: str = "") -> list[str]:
    """Sorted names of the whole files of a folder; none where there is no folder."""
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if e.name.endswith(suffix) and _PARTIAL not in e.name and e.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return []


def entries(folder: str) -> list[str]:
    """Names of all that a folder has in it."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - names alone
    except (FileNotFoundError, NotADirectoryError):
        return []


# Writing -------------------------------------------------------------------------------------------------------------


@contextmanager
def write(path: str, *, durable: bool = False) -> Iterator[BinaryIO]:
    """A binary file that is at `path`, whole, once the block ended well."""
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
    """Rename a file, over whatever has that name."""
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

    All at once: a file system writes its journal for many together.

    Raises:
        FullDiskError: no space is left.
    """
    work = [(_sync_file, Path(file)) for file in files if not is_remote(file)]
    work += [(_sync_folder, Path(folder)) for folder in folders if not is_remote(folder)]
    if work:
        from concurrent.futures import wait  # a hundredth of a second, which other commands need not wait for

        done = [_syncers(os.getpid()).submit(how, path) for how, path in work]
        wait(done)
        for each in done:
            each.result()


@cache
def _syncers(_process: int) -> "ThreadPoolExecutor":  # a forked process has none of its parent's threads
    """Threads that wait for the disk. They are kept: to start them costs more of a processor than what they do."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(SYNCS_AT_ONCE)


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
    """A file that is added to at its end."""

    def __init__(self, file: int, target: Path, size: int):
        self._file, self._target, self.bytes = file, target, size

    def write(self, data: bytes) -> None:
        """Add bytes. They are with the system when this returns, so they outlive the process.

        Raises:
            FullDiskError: no space is left.
        """
        left = memoryview(data)
        with naming_a_full_disk(str(self._target.parent), self._target.name):
            while left:
                left = left[os.write(self._file, left) :]
        self.bytes += len(data)


@contextmanager
def growing(path: str, *, keep: int | None = None) -> Iterator[Growing]:
    """A file to append to. A writer that is killed may leave a part of the last write."""
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


def is_partial(name: str) -> bool:
    """Whether a file of this name is one whose writing has not ended."""
    return _PARTIAL in name


def delete_file(path: str) -> None:
    """Delete a file; nothing where there is none."""
    Path(path).unlink(missing_ok=True)


def delete(path: str) -> None:
    """Delete a file, or a folder and all in it; nothing where there is none."""
    if Path(path).is_dir():
        shutil.rmtree(path)
    else:
        delete_file(path)


def sweep(folder: str) -> None:
    """Delete what interrupted writes left under a folder. Nobody else may be writing there."""
    for partial in Path(folder).rglob(f"*{_PARTIAL}*"):
        partial.unlink(missing_ok=True)


# A run as a whole ----------------------------------------------------------------------------------------------------


@contextmanager
def temporary(folder: str) -> Iterator[None]:
    """Use this folder instead of the system's for temporary files of libraries and child processes, in this block.

    A killed process cannot delete what it left there; the next one does.
    """
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
