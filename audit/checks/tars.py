"""A strict reader of the tars of shards: it accepts no extended headers and no data after the end.

It shares no code with the writer, and holds a megabyte and one member in memory at a time.
"""

import hashlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_BLOCK = 512
_READ = 1 << 20
_BLANKS = b" " * 8


class NotATarError(Exception):
    """The bytes are not a shard's; says where and what is wrong."""


class Member(NamedTuple):
    """A member: its name, the offset of its content, and the content."""

    name: str
    offset: int
    content: bytes


class Tar:
    """Reads a shard from front to back; `bytes` and `sha256` cover what was read so far."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.sha256()
        self._held, self._at = b"", 0
        self.bytes = 0

    @property
    def sha256(self) -> str:
        """The SHA-256 in lower-case hex."""
        return self._digest.hexdigest()

    def members(self) -> Iterator[Member]:
        """The members in order, up to the two zero blocks that end an archive.

        Raises:
            NotATarError: a header is missing or damaged, a member is cut, or the archive does not end as it should.
        """
        place = 0
        while any(header := self._take(_BLOCK, place)):
            name, size = _named(header, place)
            padded = -(-size // _BLOCK) * _BLOCK
            content = self._take(padded, place + _BLOCK)
            if any(content[size:]):
                raise NotATarError(f"byte {place + _BLOCK + size:,}: the padding of {name} is not zero")
            yield Member(name, place + _BLOCK, content[:size])
            place += _BLOCK + padded
        if any(self._take(_BLOCK, place + _BLOCK)):
            raise NotATarError(f"byte {place + _BLOCK:,}: one zero block, but an archive ends with two")
        if self._at < len(self._held) or self._more():
            raise NotATarError(f"byte {place + 2 * _BLOCK:,}: data after the end of the archive")

    def drain(self) -> None:
        """Reads the rest, for the digest."""
        while self._more():
            self._held, self._at = b"", 0

    def _take(self, number: int, place: int) -> bytes:
        while (missing := number - (len(self._held) - self._at)) > 0:
            if not self._more(missing):
                raise NotATarError(f"byte {place:,}: the file ends {missing:,} bytes too early")
        self._at += number
        return self._held[self._at - number : self._at]

    def _more(self, missing: int = 0) -> bool:
        """Reads a megabyte, or more if more is missing; returns False at the end of the file."""
        data = self._file.read(max(_READ, missing))
        self._digest.update(data)
        self.bytes += len(data)
        self._held, self._at = self._held[self._at :] + data, 0
        return bool(data)


def _named(header: bytes, place: int) -> tuple[str, int]:
    """The name and size of a member."""
    total = sum(header[:148]) + sum(_BLANKS) + sum(header[156:])
    try:
        checksum, size = (int(field.split(b"\0")[0], 8) for field in (header[148:156], header[124:136]))
        name = header[:100].partition(b"\0")[0].decode("ascii")
    except ValueError:
        raise NotATarError(f"byte {place:,}: not the header of a member") from None
    if checksum != total or size < 0:
        raise NotATarError(f"byte {place:,}: the header of {name!r} has a checksum of {total}, but says {checksum}")
    if header[156:157] != b"0":
        raise NotATarError(f"byte {place:,}: {name!r} is not a plain file")
    return name, size
