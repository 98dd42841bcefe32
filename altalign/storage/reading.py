"""An object as a file, read in blocks that grow while reading is sequential.

The next block is asked for meanwhile. Or in ranges that were asked for before.

A store takes tens of milliseconds to answer, and then sends a megabyte in ten: small reads one after the other are what
costs.
"""

import io
import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import Any, NamedTuple

from altalign.errors import StoreError
from altalign.machine import interrupts
from altalign.storage import clients

WHOLE_BYTES = 1 << 20  # an object up to this is read at once
_FIRST_BYTES = 128 << 10  # asked for where reading begins
_BLOCK_BYTES = 4 << 20  # and so much at a time once it goes on
_KEPT_BYTES = 32 << 20  # at hand: columns of a table are read side by side
_ASKED_BYTES = 2 << 20  # of a range, before it is read
_NEAR_BYTES = 1 << 20  # whoever leaves out less than this reads on


class _Block(NamedTuple):
    data: Future[bytes]
    end: int
    length: int


class _Blocks:
    """The blocks of an object that are in memory; several threads may share them."""

    def __init__(self, path: str):
        self.path = path
        with clients.asking(path):
            self._file = clients.opened(path)
            self.size: int = self._file.size()
        self._lock = threading.Lock()
        self._blocks = OrderedDict[int, _Block]()  # by their first byte, what was used last at the end

    def at(self, offset: int) -> memoryview:
        """Bytes from an offset on, at least one of them; none at the end."""
        if offset >= self.size:
            return memoryview(b"")
        with self._lock:
            begin = self._holding(offset)
            if begin is None:
                begin = self._begin(offset)
            block = self._blocks[begin]
            self._blocks.move_to_end(begin)
        interrupts.check()
        with clients.asking(self.path):
            data = block.data.result()
        if len(data) <= offset - begin:
            raise StoreError(f"{self.path}: shorter than it was; it has changed while it was read")
        return memoryview(data)[offset - begin :]

    def ask_for(self, offset: int, length: int) -> None:
        """Begin to read a range."""
        with self._lock:
            if self._holding(offset) is None and offset < self.size:
                self._ask(offset, min(length, _ASKED_BYTES, self.size - offset))

    def close(self) -> None:
        with self._lock:
            self._blocks.clear()

    def _holding(self, offset: int) -> int | None:
        return next((begin for begin in reversed(self._blocks) if begin <= offset < self._blocks[begin].end), None)

    def _begin(self, offset: int) -> int:
        """Request the block of an offset, and the next one if reading is sequential."""
        if self.size <= WHOLE_BYTES:
            return self._ask(0, self.size)
        blocks = reversed(self._blocks.values())
        before = next((block for block in blocks if 0 <= offset - block.end <= _NEAR_BYTES), None)
        if before is None:
            return self._ask(offset, min(_FIRST_BYTES, self.size - offset))
        begin = before.end
        length = min(_BLOCK_BYTES, 4 * before.length, self.size - begin)
        if begin + length <= offset:
            begin, length = offset, min(length, self.size - offset)
        self._ask(begin, length)
        after = begin + length
        if length == _BLOCK_BYTES and after < self.size and after not in self._blocks:
            self._ask(after, min(_BLOCK_BYTES, self.size - after))
            self._blocks.move_to_end(begin)
        return begin

    def _ask(self, begin: int, length: int) -> int:
        while self._blocks and sum(block.length for block in self._blocks.values()) + length > _KEPT_BYTES:
            self._blocks.popitem(last=False)[1].data.cancel()
        data = clients.threads("reads").submit(clients.read_at, self._file, begin, length)
        self._blocks[begin] = _Block(data, begin + length, length)
        return begin


class ObjectFile(io.RawIOBase):
    """An object as a file to read; closing frees its blocks."""

    def __init__(self, path: str, blocks: _Blocks | None = None):
        super().__init__()
        self.name = path
        self._blocks = blocks or _Blocks(path)
        self._is_shared = blocks is not None
        self._at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position; sends no request."""
        self._at = offset + (0, self._at, self._blocks.size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read up to the end of the block in memory."""
        data = self._blocks.at(self._at)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        self._at += size
        return size

    def close(self) -> None:
        """Free the blocks."""
        if not self.closed and not self._is_shared:
            self._blocks.close()
        super().close()

    def ask_for(self, offset: int, length: int) -> None:
        """Begin to read a range; it is kept until as many others have been requested."""
        self._blocks.ask_for(offset, length)

    def again(self) -> "ObjectFile":
        """A second handle with its own position, sharing the blocks; close it first."""
        return ObjectFile(self.name, self._blocks)
