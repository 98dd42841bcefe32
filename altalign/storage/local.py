"""Files on local disks, behind the face of `altalign.storage`, which says what each function promises."""

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeVar
from uuid import uuid4

from altalign.machine import interrupts
from altalign.storage.disk_errors import folder_of, full_disk, naming_a_full_disk
from altalign.storage.disk_locks import holder, locked
from altalign.storage.stamp import Growing, Stamp

__all__ = ["holder", "locked"]

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from pyarrow.fs import FileSystem

_T = TypeVar("_T")
_R = TypeVar("_R")
_AGAIN_BYTES = 1 << 17  # read at a time of a file that is open a second time
SYNCS_AT_ONCE = 4
_PARTIAL = ".partial-"  # in the name of a file that is being written


def absolute(path: str) -> str:
    """The path from the root; links stay."""
    return str(Path(path).absolute())


def resolved(path: str) -> str:
    """The path from the root, wherever links lead."""
    return str(Path(path).resolve())


# Reading -------------------------------------------------------------------------------------------------------------


def open_read(path: str) -> BinaryIO:
    """A seekable binary file."""
    return Path(path).open("rb")


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


def read_range(path: str, offset: int, length: int) -> bytes:
    """`length` bytes from `offset`; fewer at the end of the file."""
    interrupts.check()
    with Path(path).open("rb") as file:
        file.seek(offset)
        return file.read(length)


def read_ranges(path: str, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """The bytes of each (offset, length) of one file; fewer at its end."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))  # a merge opens each file once a partition
    try:
        for offset, length in ranges:
            yield os.pread(file, length, offset)
    finally:
        os.close(file)


def read_bytes(path: str) -> bytes:
    """A whole file."""
    return Path(path).read_bytes()


def in_arrow(path: str) -> "tuple[FileSystem, str]":
    """Arrow's local file system, and the absolute path, which a change of directory does not affect."""
    from pyarrow.fs import LocalFileSystem  # a tenth of a second, which most commands need not wait for

    return LocalFileSystem(), absolute(path)


def mappable(path: str) -> str:
    """The file itself."""
    return path


def each(work: Callable[[_T], _R], things: Iterable[_T]) -> Iterator[_R]:
    """One after the other."""
    return map(work, things)


# What is there -------------------------------------------------------------------------------------------------------


def kind(path: str) -> Literal["file", "folder", "other", "missing"]:
    """What is at a path, wherever links lead."""
    place = Path(path)
    return "folder" if place.is_dir() else "file" if place.is_file() else "other" if place.exists() else "missing"


def exists(path: str) -> bool:
    """Whether there is a whole file at `path`."""
    return Path(path).is_file()


def stamp(path: str) -> Stamp:
    """Size and time of a file."""
    status = os.stat(path)  # noqa: PTH116 - of a million files
    return Stamp(status.st_size, status.st_mtime_ns)


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


def below(folder: str, name: str) -> list[str]:
    """Sorted paths of the files of a name anywhere below a folder."""
    return sorted(map(str, Path(folder).rglob(name)))


def files_below(folder: str) -> list[str]:
    """Paths of all files below a folder."""
    return [str(path) for path in Path(folder).rglob("*") if path.is_file()]


def find(pattern: str) -> list[str]:
    """What a glob matches; a path that is there as it is written is itself."""
    return [pattern] if Path(pattern).exists() else glob(pattern, recursive=True)  # noqa: PTH207 - absolute patterns too, which Path.glob refuses


def free_bytes(path: str) -> int:
    """Bytes free where `path` is, or will be."""
    return shutil.disk_usage(folder_of(path)).free


def is_writable(folder: str) -> bool:
    """Whether this user may write there."""
    return os.access(folder, os.W_OK)


# Writing -------------------------------------------------------------------------------------------------------------


@contextmanager
def write(path: str, *, durable: bool = False) -> Iterator[BinaryIO]:
    """A binary file that is at `path`, whole, once the block ended well; `durable`: it then outlives a power cut.

    Raises:
        FullDiskError: no space is left.
    """
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


def move_folder(path: str, target: str) -> None:
    """Rename a folder, over another one."""
    delete_units([target])
    move(path, target)


def _make_folder(folder: Path) -> None:
    """Make a folder that outlives a power cut, and those above it."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def sync(files: Iterable[str], folders: Iterable[str]) -> None:
    """Have the disk keep these files, and the names in these folders.

    All at once: a file system writes its journal for many together.

    Raises:
        FullDiskError: no space is left.
    """
    work = [*((_sync_file, Path(file)) for file in files), *((_sync_folder, Path(folder)) for folder in folders)]
    if work:
        from concurrent.futures import wait  # a hundredth of a second, which other commands need not wait for

        done = [_syncers().submit(how, path) for how, path in work]
        wait(done)
        for each in done:
            each.result()


@cache
def _syncers() -> "ThreadPoolExecutor":
    """Threads that wait for the disk. They are kept: to start them costs more of a processor than what they do."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(SYNCS_AT_ONCE)


os.register_at_fork(after_in_child=_syncers.cache_clear)  # a child has none of its parent's threads


def _sync_file(path: Path) -> None:
    with naming_a_full_disk(str(path.parent), path.name), path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
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
    """A file to append to: the first `keep` bytes of what is there (None: all of it) stay.

    A writer that is killed may leave a part of the last write.

    Raises:
        FullDiskError: no space is left.
    """
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


def delete(path: str) -> None:
    """Delete a file, or a folder and all in it; nothing where there is none."""
    if Path(path).is_dir():
        shutil.rmtree(path)
    else:
        Path(path).unlink(missing_ok=True)


def delete_units(folders: Sequence[str], *, but: Sequence[str] = ()) -> None:
    """Delete folders of units so that whoever is killed on the way leaves no unit that seems finished and is not.

    First what says that a stage is done, then every mark of a unit, then the rest, each kept by the disk before the
    next begins; `but` names the endings of files that stay.
    """
    for pattern in ("done.json", "*.json"):
        marks = [mark for folder in folders for mark in Path(folder).rglob(pattern)]
        for mark in marks:
            mark.unlink(missing_ok=True)
        sync((), {str(mark.parent) for mark in marks})
    for folder in folders:
        if but:
            for file in (
                path for path in Path(folder).rglob("*") if path.is_file() and not path.name.endswith(tuple(but))
            ):
                file.unlink()
        else:
            delete(folder)
    sync((), {str(Path(folder).parent) for folder in folders})


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


def local_file(path: str) -> str:
    """The path itself."""
    return path


def local_folder(folder: str) -> str:
    """The folder itself."""
    return folder


def put_file(file: str, path: str) -> None:
    """A copy."""
    with Path(file).open("rb") as of, write(path) as made:
        shutil.copyfileobj(of, made)
