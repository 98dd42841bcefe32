"""Errors of disks that people can mend: no space is left, or this user may not write."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from altalign.errors import FullDiskError


def is_full_disk(error: BaseException) -> bool:
    """Whether the error says that no space or quota is left."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_forbidden(error: BaseException) -> bool:
    """Whether the error says that this user may not write there."""
    return isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)


def full_disk(error: BaseException, folder: str, *, writing: str = "") -> FullDiskError | None:
    """The message for an error that came because no space is left in a folder; None for any other error.

    An empty folder means that nobody knows which.
    """
    if not is_full_disk(error):
        return None
    what = (f" while writing {writing}" if writing else "") + (f" ({_left(error, folder)})" if folder else "")
    return FullDiskError(
        f"{folder or 'the disk'}: no space left on the device{what}; make room and run the same command again, it "
        "continues"
    )


@contextmanager
def naming_a_full_disk(folder: str, writing: str) -> Iterator[None]:
    """Names the folder in the error of a full disk.

    Raises:
        FullDiskError: no space is left.
    """
    try:
        yield
    except OSError as error:
        if (full := full_disk(error, folder, writing=writing)) is not None:
            raise full from error
        raise


def _left(error: BaseException, folder: str) -> str:
    if isinstance(error, OSError) and error.errno == errno.EDQUOT:
        return "the quota is used up"
    with suppress(OSError):
        status = os.statvfs(folder_of(folder))
        if status.f_files and not status.f_favail:
            return "it holds as many files as it can"
        return f"{status.f_bavail * status.f_frsize:,} bytes free"
    return "how much is free cannot be told"


def folder_of(path: str) -> Path:
    """The path, or the first folder above it that is there."""
    there = Path(path).absolute()
    return next(folder for folder in (there, *there.parents) if folder.exists())
