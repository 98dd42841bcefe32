"""A file that grows in a store, which cannot append.

Parts are uploaded every few megabytes or seconds, and made one object at the end.

The name of a part holds its offset, which tells whether the object contains it already: a kill between writing the
object and deleting its parts leaves both, and no byte counts twice. A kill loses what was added since the last part.
"""

import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO

from altalign.storage import clients, disk_errors, locks

PART_BYTES = 8 << 20
PART_EVERY_S = 5.0
_DIGITS = 15
_PART = re.compile(rf"\.part-\d{{{_DIGITS}}}$")


def whole_name(path: str) -> str:
    """The path that a part belongs to; any other path stays as it is."""
    return _PART.sub("", path)


def is_part(path: str) -> bool:
    """Whether this is a part of a growing file, or of one whose writer was killed."""
    return _PART.search(path) is not None


class _Growing:
    """A growing file: added bytes wait in a local file and go to the store in parts."""

    def __init__(self, path: str, file: IO[bytes], size: int):
        self.bytes = size
        self._path, self._file = path, file
        self._sent = size
        self._lock = threading.Lock()
        self._sent_at = time.monotonic()

    def write(self, data: bytes) -> None:
        """Add bytes.

        Raises:
            FullDiskError: no space is left for temporary files, or in the store.
            StoreError: the store does not take a part.
        """
        with self._lock:
            self._file.seek(0, 2)
            with disk_errors.naming_a_full_disk(tempfile.gettempdir(), self._path.rpartition("/")[2]):
                self._file.write(data)
            self.bytes += len(data)
            if self.bytes - self._sent >= PART_BYTES or time.monotonic() - self._sent_at >= PART_EVERY_S:
                self.send()

    def send(self) -> None:
        """Upload what was added since the last part."""
        if self.bytes > self._sent:
            self._file.seek(self._sent)
            part = f"{self._path}.part-{self._sent:0{_DIGITS}d}"
            clients.put(part, self._file.read(), allowed=partial(locks.HELD.check, self._path))
        self._sent, self._sent_at = self.bytes, time.monotonic()


@contextmanager
def growing(path: str, *, keep: int | None = None) -> Iterator[_Growing]:
    """See `altalign.storage`.

    Parts that a killed writer left are joined first; the block's own parts are joined when it ends well.
    """
    with tempfile.TemporaryFile() as file:
        before, parts = _gather(path, file)
        size = file.truncate(min(keep if keep is not None else sys.maxsize, file.seek(0, 2)))
        if parts or size != before:
            locks.put_file(path, file)
            _delete(parts)
        grown = _Growing(path, file, size)
        try:
            yield grown
        finally:
            grown.send()
        if grown.bytes > size:
            locks.put_file(path, file)
            _delete(_parts(path))


def _gather(path: str, file: IO[bytes]) -> tuple[int | None, list[str]]:
    """Write an object and the parts behind it to a file.

    Returns the bytes of the object (None: there is none) and the paths of all parts.
    """
    try:
        before = file.write(clients.get(path))
    except FileNotFoundError:
        before = None
    parts = _parts(path)
    for part in parts:
        begin, data = int(part[-_DIGITS:]), clients.get(part)
        # else it is in the object already, or something before it is lost
        if begin <= file.tell() < begin + len(data):
            file.seek(begin)
            file.write(data)
    return before, parts


def _parts(path: str) -> list[str]:
    """Paths of the parts that are there, in their order."""
    folder, _, name = path.rpartition("/")
    found = [info.base_name for info in clients.listed(folder, is_recursive=False)]
    return sorted(f"{folder}/{part}" for part in found if part.startswith(f"{name}.part-") and is_part(part))


def _delete(paths: Sequence[str]) -> None:
    for path in reversed(paths):  # the last first: those that are left begin where the object, or another part, ends
        clients.delete_object(path)
