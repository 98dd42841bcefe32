"""Files in stores and on the web, read in blocks that grow while reading goes on, or in ranges.

A store takes tens of milliseconds to answer, and then sends a megabyte in ten: small reads one after the other are what
costs. So the next block is asked for while one is read, and ranges before they are due.
"""

import io
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

from altalign.errors import StoreError
from altalign.machine import ahead, interrupts
from altalign.storage import clients
from altalign.storage.paths import is_of_web

WHOLE_BYTES = 1 << 20  # a file up to this is read at once
_FIRST_BYTES = 128 << 10  # asked for where reading begins
_BLOCK_BYTES = 4 << 20  # and so much at a time once it goes on
_KEPT_BYTES = 32 << 20  # at hand: columns of a table are read side by side
_ASKED_BYTES = 2 << 20  # of a range, before it is read
_NEAR_BYTES = 1 << 20  # whoever leaves out less than this reads on
_BUFFER_BYTES = 64 << 10
_GAP_BYTES = 256 << 10  # ranges nearer to one another are one request
_RANGE_BYTES = 8 << 20  # of several ranges as one
_AHEAD = 16  # requests for ranges under way, fewer where they are large
_AHEAD_BYTES = 64 << 20


class Source(Protocol):
    """A file for reads at any offset, by several threads at once; `size` in bytes."""

    path: str
    size: int

    def read_at(self, offset: int, length: int) -> bytes:
        """Bytes from an offset; fewer at the end."""
        ...


def source(path: str) -> Source:
    """What a path is read from.

    Raises:
        FileNotFoundError: there is no such file; it has the path as its `filename`.
        StoreError: anything else that the store, the server or the network says.
    """
    if is_of_web(path):
        from altalign.storage.web import WebFile  # its client takes half a second to import

        return WebFile(path)
    return clients.OpenObject(path)


def open_read(path: str) -> BinaryIO:
    """A seekable binary file."""
    return cast(BinaryIO, io.BufferedReader(_File(_Blocks(source(path))), _BUFFER_BYTES))


def open_again(_: str, file: BinaryIO) -> BinaryIO:
    """The same file, sharing its blocks; close it first."""
    return cast(BinaryIO, io.BufferedReader(_File(_blocks_of(file)), _BUFFER_BYTES))


def ask_for(file: BinaryIO, offset: int, length: int) -> None:
    """Begin to read a range of an open file; it is kept until as many others have been requested."""
    _blocks_of(file).ask_for(offset, length)


def _blocks_of(file: BinaryIO) -> "_Blocks":
    return cast(_File, cast(Any, file).raw).blocks


def read_bytes(path: str) -> bytes:
    """A whole file."""
    file = source(path)
    return file.read_at(0, file.size)


def read_ranges(path: str, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """Ranges of one file; neighbouring ranges are one request."""
    if not (wanted := list(ranges)):
        return
    interrupts.check()
    file, own = source(path), clients.threads("reads")
    if len(wanted) == 1:  # needs no thread
        yield file.read_at(*wanted[0])
        return
    begun = (
        (request, own.submit(file.read_at, request.begin, request.length), max(request.length, _AHEAD_BYTES // _AHEAD))
        for request in _together(wanted)
    )
    for request, data in ahead.in_order(begun, bytes_at_most=_AHEAD_BYTES):
        interrupts.check()
        for offset, length in request.ranges:
            yield data[offset - request.begin : offset - request.begin + length]


class _Request(NamedTuple):
    begin: int
    length: int
    ranges: list[tuple[int, int]]  # offsets and lengths of those in it


def _together(ranges: Sequence[tuple[int, int]]) -> Iterator[_Request]:
    """Requests in the order of the ranges."""
    begin = end = ranges[0][0]
    parts = list[tuple[int, int]]()
    for offset, length in ranges:
        if not (end <= offset <= end + _GAP_BYTES and offset + length - begin <= _RANGE_BYTES):
            if parts:
                yield _Request(begin, end - begin, parts)
            begin, parts = offset, []
        end = offset + length
        parts.append((offset, length))
    yield _Request(begin, end - begin, parts)


class _Block(NamedTuple):
    data: Future[bytes]
    end: int
    length: int


class _Blocks:
    """The blocks of a file that are in memory; several threads may share them."""

    def __init__(self, file: Source):
        self.file = file
        self._lock = threading.Lock()
        self._blocks = OrderedDict[int, _Block]()  # by their first byte, what was used last at the end

    def at(self, offset: int) -> memoryview:
        """Bytes from an offset on, at least one of them; none at the end."""
        if offset >= self.file.size:
            return memoryview(b"")
        with self._lock:
            begin = self._holding(offset)
            if begin is None:
                begin = self._begin(offset)
            block = self._blocks[begin]
            self._blocks.move_to_end(begin)
        interrupts.check()
        data = block.data.result()
        if len(data) <= offset - begin:
            raise StoreError(f"{self.file.path}: shorter than it was; it has changed while it was read")
        return memoryview(data)[offset - begin :]

    def ask_for(self, offset: int, length: int) -> None:
        with self._lock:
            if self._holding(offset) is None and offset < self.file.size:
                self._ask(offset, min(length, _ASKED_BYTES))

    def _holding(self, offset: int) -> int | None:
        return next((begin for begin in reversed(self._blocks) if begin <= offset < self._blocks[begin].end), None)

    def _begin(self, offset: int) -> int:
        """Request the block of an offset, and the next one if reading is sequential."""
        if self.file.size <= WHOLE_BYTES:
            return self._ask(0, WHOLE_BYTES)
        blocks = reversed(self._blocks.values())
        before = next((block for block in blocks if 0 <= offset - block.end <= _NEAR_BYTES), None)
        if before is None:
            return self._ask(offset, _FIRST_BYTES)
        begin, length = before.end, min(_BLOCK_BYTES, 4 * before.length)
        if begin + length <= offset:
            begin = offset
        self._ask(begin, length)
        after = begin + length
        if length == _BLOCK_BYTES and after < self.file.size and after not in self._blocks:
            self._ask(after, _BLOCK_BYTES)
            self._blocks.move_to_end(begin)
        return begin

    def _ask(self, begin: int, length: int) -> int:
        length = min(length, self.file.size - begin)
        while self._blocks and sum(block.length for block in self._blocks.values()) + length > _KEPT_BYTES:
            self._blocks.popitem(last=False)[1].data.cancel()
        data = clients.threads("reads").submit(self.file.read_at, begin, length)
        self._blocks[begin] = _Block(data, begin + length, length)
        return begin


class _File(io.RawIOBase):
    """Blocks as a file with a position."""

    def __init__(self, blocks: _Blocks):
        super().__init__()
        self.blocks, self.name, self._at = blocks, blocks.file.path, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self.blocks.file.size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self.blocks.at(self._at)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        self._at += size
        return size
