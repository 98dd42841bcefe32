"""What disks and object stores both give of a file: its stamp, and one that grows."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Stamp:
    """What tells that a file has not changed: its size in bytes and a version.

    The version is the store's digest of it (ETag), or on a disk the time of the last change.
    """

    size: int
    time_ns: int
    digest: str = ""

    def to_json(self) -> list[int | str]:
        """For the facts of a run."""
        return [self.size, self.digest or self.time_ns]


class Growing(Protocol):
    """A file that is added to at its end; `bytes` is how long it is."""

    def write(self, data: bytes) -> None:
        """Add bytes.

        Raises:
            FullDiskError: no space is left.
        """
        ...

    bytes: int
