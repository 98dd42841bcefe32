"""Many ranges of bytes of many files: a few are kept open, and the next ranges are asked for ahead."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple, Self

from altalign import storage
from altalign.errors import UnreadableError
from altalign.machine import interrupts

# so many ranges are asked for before they are read: images lie anywhere in archives larger than the page cache, and a
# disk is fastest when it has several to find
AHEAD = 16
FILES_AT_MOST = 4 * AHEAD  # open at a time; with fewer than AHEAD a file would be closed just before it is read
_UNKNOWN_BYTES = 128 << 10  # so much is asked for where a range has no length
_REPAIR = "repair or restore the file and run the same command again, it continues"


class Range(NamedTuple):
    """A range of bytes in a file; where it has no length, only a reader of the format knows its end.

    A file with a stamp has to be as it was.
    """

    path: str
    offset: int
    length: int | None
    stamp: storage.Stamp | None = None


def changed(path: str) -> UnreadableError:
    """The error about an input file that is not as it was."""
    return UnreadableError(f"{path}: changed since the run began to read it; put the old file back, or give --rerun")


class Ranges:
    """Ranges in an order that is known beforehand; None stands for bytes that no file has.

    Used by one thread, as a context that closes its files: `for each in ranges: data = ranges.read(each)`.
    """

    def __init__(self, ranges: Sequence[Range | None]):
        self._ranges = ranges
        self._files: OrderedDict[str, BinaryIO] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def __iter__(self) -> Iterator[Any]:
        """Yields the ranges in order, and asks the disk for ranges up to `AHEAD` before they are due."""
        asked_for = 0
        for place, current in enumerate(self._ranges):
            interrupts.check()
            for coming in self._ranges[asked_for : place + AHEAD + 1]:
                if coming is not None:
                    with suppress(OSError):  # raised when the range is read
                        file = self.opened(coming.path)
                        storage.ask_for(coming.path, file, coming.offset, coming.length or _UNKNOWN_BYTES)
            asked_for = place + AHEAD + 1
            yield current

    def read(self, range_: Range) -> bytes:
        """The bytes of a range that has a length; UnreadableError where the file lacks them or is not as it was."""
        path, offset, length, stamp = range_
        assert length is not None
        try:
            file = self.opened(path)
            file.seek(offset)
            data = file.read(length)
            if stamp is not None and storage.stamp(path) != stamp:
                raise changed(path)
        except OSError as error:
            raise UnreadableError(f"{path}: cannot be read ({error.strerror or error}); {_REPAIR}") from error
        if missing := length - len(data):
            raise UnreadableError(f"{path}: ends {missing:,} bytes before the image at byte {offset:,} does; {_REPAIR}")
        return data

    def opened(self, path: str) -> BinaryIO:
        """The open file of a path; the file read longest ago is closed for it where too many are open."""
        file = self._files.get(path)
        if file is None:
            if len(self._files) == FILES_AT_MOST:
                self._files.popitem(last=False)[1].close()
            file = self._files[path] = storage.open_read(path)
        self._files.move_to_end(path)
        return file
