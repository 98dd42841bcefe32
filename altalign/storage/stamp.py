"""What disks and object stores have in common: a file's stamp, and a growing file."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Stamp:
    """Tells whether a file has changed: its size in bytes and a version.

    The version is the store's digest of it (ETag), or on a disk the time of the last change.
    """

    size: int
    time_ns: int
    digest: str = ""

    def to_json(self) -> list[int | str]:
        """The stamp as it stands in the facts of a run."""
        return [self.size, self.digest or self.time_ns]


class Growing(Protocol):
    """A file that grows at its end; `bytes` is its length."""

    def write(self, data: bytes) -> None:
        """Add bytes.

        Raises:
            FullDiskError: no space is left.
        """
        ...

    bytes: int
