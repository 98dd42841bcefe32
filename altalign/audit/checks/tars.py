"""Reads the tar of a shard from front to back: members with their places, and the digest of all bytes."""

import hashlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from altalign.data import shards

_BLOCK = 512
_END = 2 * _BLOCK  # zeros that end an archive
_READ = 1 << 20


class Member(NamedTuple):
    """A member: its name, the offset of its content, and the content."""

    name: str
    offset: int
    content: bytes


class Tar:
    """A tar that is read once; `bytes` and `sha256` cover what was read so far."""

    def __init__(self, file: BinaryIO) -> None:
        self._digest, self._last, self.bytes = hashlib.sha256(), b"", 0
        self._pieces = self._read(file)

    @property
    def sha256(self) -> str:
        """The SHA-256 in lower-case hex."""
        return self._digest.hexdigest()

    def members(self) -> Iterator[Member]:
        """The members in order, up to the end of the archive.

        Raises:
            ValueError: it is not a whole tar of samples, or does not end with two blocks of zeros.
        """
        place = 0
        for sample in shards.members(self._pieces):
            for name, content in sample:
                yield Member(name, place + _BLOCK, content)
                place += _BLOCK + len(content) + -len(content) % _BLOCK
        self.drain()
        if self.bytes != place + _END or any(self._last):
            raise ValueError(f"byte {place:,}: not two blocks of zeros and the end of the file")

    def drain(self) -> None:
        """Reads the rest, for the digest."""
        for _ in self._pieces:
            pass

    def _read(self, file: BinaryIO) -> Iterator[bytes]:
        while data := file.read(_READ):
            self._digest.update(data)
            self._last = (self._last + data)[-_END:]
            self.bytes += len(data)
            yield data
