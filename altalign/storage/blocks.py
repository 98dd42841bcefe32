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

from xxhash import xxh3_128

Kind = Literal["SHA-256", "XXH3"]


class Written(NamedTuple):
    """Size of a file in bytes, and its digest in hex: 64 digits of SHA-256, or 32 of XXH3."""

    bytes: int
    digest: str


def kind_of(digest: str) -> Kind:
    """Of which kind a digest is, by its length: XXH3 has 128 bits."""
    return "XXH3" if len(digest) == 32 else "SHA-256"


def begun(kind: Kind = "SHA-256") -> Any:
    """A digest of nothing yet, with the methods of those of `hashlib`."""
    return hashlib.sha256() if kind == "SHA-256" else xxh3_128()


@dataclass(frozen=True)
class Block:
    """Files that a block has written, by path (None: one that grew, without a digest), and paths that it has deleted.

    `own` is the folder of what a run hands on to itself alone, whose files get XXH3; empty: there is none.
    """

    files: dict[str, Written | None] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    own: str = ""

    def kind(self, path: str) -> Kind:
        """The kind of digest that a file gets."""
        return "XXH3" if self.own and path.startswith(f"{self.own}/") else "SHA-256"


CURRENT: ContextVar[Block | None] = ContextVar("block", default=None)  # of this thread


@contextmanager
def noted(own: str = "") -> Iterator[Block]:
    """Note what this block writes and deletes in this thread; `own` as of `Block`."""
    block = Block(own=own)
    token = CURRENT.set(block)
    try:
        yield block
    finally:
        CURRENT.reset(token)


class Hashed(io.RawIOBase):
    """A file that is written from its first byte to its last, and digested on the way; closing it does nothing."""

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
        """Whether it can be written: yes."""
        return True

    @property
    def written(self) -> Written:
        """What was written so far."""
        return Written(self._bytes, self._digest.hexdigest())
