"""Files in stores and on the web, read in blocks of a megabyte, or in ranges.

A store takes tens of milliseconds to answer, and then sends a megabyte in ten: small reads one after the other are what
costs. So the next blocks are asked for while one is read, and ranges before they are due.
"""

import io
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, cast

from altalign.errors import StoreError
from altalign.machine import interrupts
from altalign.machine.threads import in_order
from altalign.storage import clients
from altalign.storage.paths import is_of_web

_BLOCK_BYTES = 1 << 20
_BLOCKS_AHEAD = 3  # asked for where reading goes on
_BLOCKS_KEPT = 48  # columns of a table are read side by side
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
    return cast(BinaryIO, io.BufferedReader(_File(_Blocks(source(path))), _BUFFER_BYTES))


def open_again(_: str, file: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(_File(_blocks_of(file)), _BUFFER_BYTES))


def ask_for(file: BinaryIO, offset: int, length: int) -> None:
    _blocks_of(file).ask_for(offset, length)


def _blocks_of(file: BinaryIO) -> "_Blocks":
    return cast(_File, cast(Any, file).raw).blocks


def read_bytes(path: str) -> bytes:
    file = source(path)
    return file.read_at(0, file.size)


def read_ranges(path: str, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    requests = list(_together(ranges))
    if not requests:
        return
    interrupts.check()
    file, own = source(path), clients.threads("reads")
    if len(requests) == len(requests[0].ranges) == 1:  # needs no thread
        yield file.read_at(requests[0].begin, requests[0].end - requests[0].begin)
        return
    begun = (
        (request, own.submit(file.read_at, request.begin, size), max(size, _AHEAD_BYTES // _AHEAD))
        for request in requests
        for size in [request.end - request.begin]
    )
    for request, data in in_order(begun, bytes_at_most=_AHEAD_BYTES):
        interrupts.check()
        for offset, length in request.ranges:
            yield data[offset - request.begin : offset - request.begin + length]


@dataclass
class _Request:
    begin: int
    end: int
    ranges: list[tuple[int, int]]  # offsets and lengths of those in it


def _together(ranges: Iterable[tuple[int, int]]) -> Iterator[_Request]:
    """Requests in the order of the ranges."""
    request = None
    for offset, length in ranges:
        if (
            request
            and request.end <= offset <= request.end + _GAP_BYTES
            and offset + length - request.begin <= _RANGE_BYTES
        ):
            request.end = offset + length
            request.ranges.append((offset, length))
        else:
            if request:
                yield request
            request = _Request(offset, offset + length, [(offset, length)])
    if request:
        yield request


class _Blocks:
    """The parts of a file in memory, blocks and ranges that were asked for; several threads may share them."""

    def __init__(self, file: Source):
        self.file = file
        self._lock = threading.Lock()
        # by where each begins: its end, and its bytes; what was used last is at the end
        self._parts, self._bytes = OrderedDict[int, tuple[int, Future[bytes]]](), 0

    def at(self, offset: int) -> memoryview:
        """Bytes from an offset on, at least one of them; none at the end."""
        if offset >= self.file.size:
            return memoryview(b"")
        with self._lock:
            begin = self._part_with(offset)
            if begin is None:
                begin = self._begun(*self._block(offset // _BLOCK_BYTES))
            self._parts.move_to_end(begin)  # before others come, for which the oldest go
            number = begin // _BLOCK_BYTES
            if self._has_block(number) and self._has_block(number - 1):
                end = -(-self.file.size // _BLOCK_BYTES)
                for coming in range(number + 1, min(number + 1 + _BLOCKS_AHEAD, end)):
                    self._begun(*self._block(coming))
            part = self._parts[begin][1]
        interrupts.check()
        data = part.result()
        if len(data) <= offset - begin:
            raise StoreError(f"{self.file.path}: shorter than it was; it has changed while it was read")
        return memoryview(data)[offset - begin :]

    def ask_for(self, offset: int, length: int) -> None:
        end = min(offset + min(length, 2 * _BLOCK_BYTES), self.file.size)
        with self._lock:
            if offset < end and self._part_with(offset) is None:
                self._begun(offset, end)

    def _part_with(self, offset: int) -> int | None:
        """Where the part begins that has this offset: most are read from their first byte on, or are blocks."""
        for begin in (offset, offset // _BLOCK_BYTES * _BLOCK_BYTES):
            if begin in self._parts and offset < self._parts[begin][0]:
                return begin
        return next((begin for begin, (end, _) in reversed(self._parts.items()) if begin <= offset < end), None)

    def _block(self, number: int) -> tuple[int, int]:
        return number * _BLOCK_BYTES, min((number + 1) * _BLOCK_BYTES, self.file.size)

    def _has_block(self, number: int) -> bool:
        begin, end = self._block(number)
        return begin in self._parts and self._parts[begin][0] == end

    def _begun(self, begin: int, end: int) -> int:
        """Where the part begins; what is shorter from there on gives way to it."""
        if begin not in self._parts or self._parts[begin][0] < end:
            if begin in self._parts:
                self._forget(begin)
            while self._parts and self._bytes + end - begin > _BLOCKS_KEPT * _BLOCK_BYTES:
                self._forget(next(iter(self._parts)))
            self._parts[begin] = end, clients.threads("reads").submit(self.file.read_at, begin, end - begin)
            self._bytes += end - begin
        return begin

    def _forget(self, begin: int) -> None:
        end, part = self._parts.pop(begin)
        part.cancel()
        self._bytes -= end - begin


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
