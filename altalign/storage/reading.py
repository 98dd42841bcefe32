"""Files in stores and on the web, read in blocks of a megabyte, or in ranges.

A store takes tens of milliseconds to answer, and then sends a megabyte in ten: small reads one after the other are what
costs. So the next blocks are asked for while one is read, and ranges before they are due.
"""

import io
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any, BinaryIO, cast

from altalign.errors import StoreError
from altalign.machine import interrupts
from altalign.machine.threads import in_order
from altalign.storage import clients, objects
from altalign.storage.paths import is_of_web

_BLOCK_BYTES = 1 << 20
_BLOCKS_AHEAD = 3  # asked for where reading goes on
_PARTS_KEPT = 48  # columns of a table are read side by side
_BUFFER_BYTES = 64 << 10
_GAP_BYTES = 256 << 10  # ranges nearer to one another are one request
_RANGE_BYTES = 8 << 20  # of several ranges as one
_AHEAD = 16  # requests for ranges under way, fewer where they are large
_AHEAD_BYTES = 64 << 20


def source(path: str) -> Any:
    """What a path is read from, an `OpenObject` or a `WebFile`; FileNotFoundError with the path, else StoreError."""
    if is_of_web(path):
        from altalign.storage.web import WebFile  # its client takes half a second to import

        return WebFile(path)
    return objects.OpenObject(path)


def open_read(path: str) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(_File(_Parts(source(path))), _BUFFER_BYTES))


def open_again(_: str, file: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(_File(cast(Any, file).raw.parts), _BUFFER_BYTES))


def ask_for(_: str, file: BinaryIO, offset: int, length: int) -> None:
    cast(Any, file).raw.parts.ask_for(offset, length)


def read_bytes(path: str) -> bytes:
    file = source(path)
    return file.read_at(0, file.size)


def read_ranges(path: str, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    requests = list[list[tuple[int, int]]]()  # ranges near one another, which are read at once
    for offset, length in ranges:
        begin, end = (requests[-1][0][0], sum(requests[-1][-1])) if requests else (0, -1)
        if 0 <= end <= offset <= end + _GAP_BYTES and offset + length - begin <= _RANGE_BYTES:
            requests[-1].append((offset, length))
        else:
            requests.append([(offset, length)])
    if not requests:
        return
    file, own = source(path), clients.threads("reads")
    begun = (
        (request, own.submit(file.read_at, request[0][0], size), max(size, _AHEAD_BYTES // _AHEAD))
        for request in requests
        for size in [sum(request[-1]) - request[0][0]]
    )
    for request, data in in_order(begun, bytes_at_most=_AHEAD_BYTES):
        interrupts.check()
        for offset, length in request:
            yield data[offset - request[0][0] : offset - request[0][0] + length]


class _Parts:
    """What is in memory of a file: blocks, and ranges that were asked for; several handles and threads may share it."""

    def __init__(self, file: Any):
        self.file = file
        self._lock = threading.Lock()
        self._parts = OrderedDict[int, tuple[int, Future[bytes]]]()  # by begin: end, and bytes; used last: at the end

    def at(self, offset: int) -> memoryview:
        """Bytes from an offset on, at least one of them; none at the end."""
        if offset >= self.file.size:
            return memoryview(b"")
        with self._lock:
            block = offset // _BLOCK_BYTES * _BLOCK_BYTES
            begin = self._part_with(offset)
            if begin is None:
                begin = block
                self._begin(block, _BLOCK_BYTES)
            self._parts.move_to_end(begin)  # before others come, for which the oldest go
            if begin == block and block - _BLOCK_BYTES in self._parts:
                for coming in range(block + _BLOCK_BYTES, block + (1 + _BLOCKS_AHEAD) * _BLOCK_BYTES, _BLOCK_BYTES):
                    if coming not in self._parts and coming < self.file.size:
                        self._begin(coming, _BLOCK_BYTES)
            part = self._parts[begin][1]
        interrupts.check()
        data = part.result()
        if len(data) <= offset - begin:
            raise StoreError(f"{self.file.path}: shorter than it was; it has changed while it was read")
        return memoryview(data)[offset - begin :]

    def ask_for(self, offset: int, length: int) -> None:
        """Begin to read a range, at most a block of it."""
        with self._lock:
            if offset < self.file.size and self._part_with(offset) is None:
                self._begin(offset, min(length, _BLOCK_BYTES))

    def _part_with(self, offset: int) -> int | None:
        return next((begin for begin, (end, _) in reversed(self._parts.items()) if begin <= offset < end), None)

    def _begin(self, begin: int, length: int) -> None:
        while len(self._parts) >= _PARTS_KEPT:
            self._parts.popitem(last=False)[1][1].cancel()
        end = min(begin + length, self.file.size)
        self._parts[begin] = end, clients.threads("reads").submit(self.file.read_at, begin, end - begin)


class _File(io.RawIOBase):
    """Parts as a file with a position."""

    def __init__(self, parts: _Parts):
        super().__init__()
        self.parts, self.name, self._at = parts, parts.file.path, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:  # `tell` calls it
        self._at = offset + (0, self._at, self.parts.file.size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self.parts.at(self._at)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        self._at += size
        return size
