"""Files in stores and on the web, read in blocks of a megabyte, or in ranges.

A store takes tens of milliseconds to answer, and then sends a megabyte in ten: small reads one after the other are what
costs. So the next blocks are asked for while one is read, and ranges before they are due.
"""

import io
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
    return cast(BinaryIO, io.BufferedReader(_File(source(path), OrderedDict()), _BUFFER_BYTES))


def open_again(_: str, file: BinaryIO) -> BinaryIO:
    first = cast(Any, file).raw
    return cast(BinaryIO, io.BufferedReader(_File(first.source, first.parts), _BUFFER_BYTES))


def ask_for(_: str, file: BinaryIO, offset: int, length: int) -> None:
    raw = cast(Any, file).raw
    if offset < raw.source.size and raw.part_with(offset) is None:
        raw.begin(offset, min(length, _BLOCK_BYTES))


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


class _File(io.RawIOBase):
    """A file with a position over parts in memory: blocks, and ranges that were asked for.

    `parts` are by where they begin, that used last at the end, with where they end; handles of one thread share them.
    """

    def __init__(self, source: Any, parts: OrderedDict[int, tuple[int, Future[bytes]]]):
        super().__init__()
        self.source, self.parts, self.name, self._at = source, parts, source.path, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:  # `tell` calls it
        self._at = offset + (0, self._at, self.source.size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._at >= self.source.size:
            return 0
        block = self._at // _BLOCK_BYTES * _BLOCK_BYTES
        if (begin := self.part_with(self._at)) is None:
            self.begin(begin := block, _BLOCK_BYTES)
        part = self.parts[begin][1]
        self.parts.move_to_end(begin)  # before others come, for which the oldest go
        if begin == block and block - _BLOCK_BYTES in self.parts:
            for coming in range(block + _BLOCK_BYTES, block + (1 + _BLOCKS_AHEAD) * _BLOCK_BYTES, _BLOCK_BYTES):
                if coming not in self.parts and coming < self.source.size:
                    self.begin(coming, _BLOCK_BYTES)
        interrupts.check()
        data = part.result()[self._at - begin : self._at - begin + len(buffer)]
        if not data:
            raise StoreError(f"{self.name}: shorter than it was; it has changed while it was read")
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def part_with(self, offset: int) -> int | None:
        """Where the part begins that has this offset."""
        return next((begin for begin, (end, _) in reversed(self.parts.items()) if begin <= offset < end), None)

    def begin(self, begin: int, length: int) -> None:
        """Begin to read a part."""
        while len(self.parts) >= _PARTS_KEPT:
            self.parts.popitem(last=False)[1][1].cancel()
        end = min(begin + length, self.source.size)
        self.parts[begin] = end, clients.threads("reads").submit(self.source.read_at, begin, end - begin)
