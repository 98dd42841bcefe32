"""What a block of code writes and deletes: each file's size and digest, made while it is written.

SHA-256, because it can be signed, every system has a command for it, and processors have instructions for it. XXH3 of
files that a run hands on to itself alone: fifteen times as fast, and made to find damage, not forgery. ADR 20.
"""

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, NamedTuple

from altalign.errors import UsageError

try:
    from xxhash import xxh3_128  # pyright: ignore[reportMissingImports]
except ImportError:  # an environment of before it was needed; SHA-256 then, and slower
    xxh3_128 = None


class Written(NamedTuple):
    """Size of a file in bytes, and its digest in hex: 64 digits of SHA-256, or 32 of XXH3."""

    bytes: int
    digest: str


Kind = Literal["SHA-256", "XXH3"]
QUICK: Kind = "SHA-256" if xxh3_128 is None else "XXH3"


def kind_of(digest: str) -> Kind:
    """Of which kind a digest is, by its length: XXH3 has 128 bits."""
    return "XXH3" if len(digest) == 32 else "SHA-256"


def begun(kind: Kind = "SHA-256") -> Any:
    """A digest of nothing yet, with the methods of those of `hashlib`.

    Raises:
        UsageError: the package that makes it is not there.
    """
    if kind == "SHA-256":
        return hashlib.sha256()
    if xxh3_128 is None:
        raise UsageError("xxhash: no such package, with which the run was begun; install altalign with what it needs")
    return xxh3_128()


@dataclass(frozen=True)
class Block:
    """What a block has written and deleted.

    Attributes:
        files: by path, with None for what grew, whose digest nobody has made.
        deleted: paths of files.
        own: the folder of what a run hands on to itself alone; empty: there is none.
    """

    files: dict[str, Written | None] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    own: str = ""

    def kind(self, path: str) -> Kind:
        """The kind of digest that a file gets."""
        return QUICK if self.own and path.startswith(f"{self.own}/") else "SHA-256"


_CURRENT: ContextVar[Block | None] = ContextVar("block", default=None)


def current() -> Block | None:
    """The block that this thread is in."""
    return _CURRENT.get()


@contextmanager
def entered(own: str) -> Iterator[Block]:
    """Around a block whose writes and deletions are noted, those of this thread; `own` as of `Block`."""
    block = Block(own=own)
    token = _CURRENT.set(block)
    try:
        yield block
    finally:
        _CURRENT.reset(token)


class Hashed(io.RawIOBase):
    """A file that is written from its first byte to its last, and digested on the way.

    Closing it does nothing to the file: the caller closes that.
    """

    def __init__(self, file: BinaryIO, kind: Kind = "SHA-256"):
        super().__init__()
        self._file, self._digest, self._bytes = file, begun(kind), 0

    def write(self, data: Any) -> int:
        """Write the bytes of a buffer."""
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self._bytes += len(view)
        return self._file.write(view)

    def tell(self) -> int:
        """How many bytes were written."""
        return self._bytes

    def writable(self) -> bool:
        """It is, but not readable or seekable: a digest goes forward."""
        return True

    @property
    def written(self) -> Written:
        """What was written so far."""
        return Written(self._bytes, self._digest.hexdigest())
