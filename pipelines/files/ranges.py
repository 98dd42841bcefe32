"""Reads many ranges of bytes, of many files: keeps a few files open, and asks the disk for what comes next while what came before is decoded."""

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice, zip_longest
from typing import Any, BinaryIO, NamedTuple, Self

from altalign import storage
from altalign.errors import UnreadableError
from altalign.machine import interrupts

# ranges asked for before they are read: images lie anywhere in archives that no page cache holds, and a disk is
# quickest with several to find
AHEAD = 16
# open at a time; with fewer than are asked ahead of, each would be closed again just before it is read
FILES_AT_MOST = 4 * AHEAD
_UNKNOWN_BYTES = 128 << 10  # of a range without a length, so much is asked for


class Range(NamedTuple):
    """Bytes of a file; without a length only a reader of its format knows where they end."""

    path: str
    offset: int
    length: int | None


class Ranges:
    """Ranges in an order that is known beforehand; None stands for what is nowhere. Of one thread, and a context: it closes its files.

    `for wanted in ranges: data = ranges.read(wanted)`.
    """

    def __init__(self, wanted: Sequence[Range | None]):
        self._wanted = wanted
        self._files: OrderedDict[str, BinaryIO] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        for file in self._files.values():
            file.close()

    def __iter__(self) -> Any:
        """The ranges in order; the disk is asked for the first `AHEAD`, and then for the one that is `AHEAD` of each.

        Raises:
            Interrupted: a signal has asked the command to end.
        """
        for first in islice(self._wanted, AHEAD):
            if first is not None:
                self._ask_for(first)
        for wanted, coming in zip_longest(self._wanted, islice(self._wanted, AHEAD, None)):
            interrupts.check()
            if coming is not None:
                self._ask_for(coming)
            yield wanted

    def read(self, wanted: Range) -> bytes:
        """The bytes of a range that has a length.

        Raises:
            UnreadableError: the file is not there, ends before the range does, or the disk fails.
        """
        path, offset, length = wanted
        assert length is not None
        try:
            file = self.opened(path)
            file.seek(offset)
            data = file.read(length)
        except OSError as error:
            raise UnreadableError(f"{path}: cannot be read ({error.strerror or error}); {_REPAIR}") from error
        if len(data) != length:
            raise UnreadableError(
                f"{path}: ends {length - len(data):,} bytes before the image at byte {offset:,} does; {_REPAIR}"
            )
        return data

    def opened(self, path: str) -> BinaryIO:
        """The file of a path, as long as not many others are read."""
        file = self._files.get(path)
        if file is None:
            if len(self._files) == FILES_AT_MOST:
                self._files.popitem(last=False)[1].close()
            file = self._files[path] = storage.open_read(path)
        self._files.move_to_end(path)
        return file

    def _ask_for(self, coming: Range) -> None:
        """Have the disk or the store begin; trouble comes up when the range is read."""
        with suppress(OSError):
            storage.ask_for(coming.path, self.opened(coming.path), coming.offset, coming.length or _UNKNOWN_BYTES)


_REPAIR = "repair or restore the file and run the same command again, it continues"
