"""A file that grows in a store, which cannot append: parts every few megabytes or seconds, one object at the end.

The name of a part holds its offset, which tells whether the object contains it already: a kill between writing the
object and deleting its parts leaves both, and no byte counts twice. A kill loses what was added since the last part.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO

from altalign.storage import clients, disk_errors, locks
from altalign.storage.paths import PART, whole_name

PART_BYTES = 8 << 20
PART_EVERY_S = 5.0


class GrowingObject:
    """A growing file: added bytes wait in a local file and go to the store in parts."""

    def __init__(self, path: str, file: IO[bytes], size: int):
        self.bytes = self._sent = size
        self._path, self._file = path, file
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
            part = f"{self._path}.part-{self._sent:015}"
            clients.put(part, self._file.read(), allowed=partial(locks.HELD.check, self._path))
        self._sent, self._sent_at = self.bytes, time.monotonic()


@contextmanager
def growing(path: str, *, keep: int | None = None) -> Iterator[GrowingObject]:
    """See `altalign.storage`.

    Parts that a killed writer left are joined first; the block's own parts are joined when it ends well.
    """
    with tempfile.TemporaryFile() as file:
        try:
            before = file.write(clients.get(path))
        except FileNotFoundError:
            before = None
        parts = _parts(path)
        for offset, part in sorted(parts.items()):
            if offset <= file.seek(0, 2):  # else something before it is lost
                file.seek(offset)
                file.write(clients.get(part))
        size = file.truncate(min(keep if keep is not None else sys.maxsize, file.seek(0, 2)))
        if parts or size != before:
            _join(path, file, parts)
        grown = GrowingObject(path, file, size)
        try:
            yield grown
        finally:
            grown.send()
        if grown.bytes > size:
            _join(path, file, _parts(path))


def _parts(path: str) -> dict[int, str]:
    """The paths of the parts that are there, by their offsets."""
    folder, _, name = path.rpartition("/")
    names = [info.base_name for info in clients.listed(folder, is_recursive=False)]
    return {int(part[1]): f"{folder}/{one}" for one in names if (part := PART.search(one)) and whole_name(one) == name}


def _join(path: str, file: IO[bytes], parts: dict[int, str]) -> None:
    """Make one object of the file, then delete the parts.

    The last goes first: those that a kill leaves begin where the object, or another part, ends.
    """
    locks.put_file(path, file)
    for offset in sorted(parts, reverse=True):
        clients.delete_object(parts[offset])
