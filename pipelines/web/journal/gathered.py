"""A growing file that takes many small parts in one write."""

from altalign.storage import Growing


class Gathered:
    """Gathers what is to be added to a file. For each write a thread gives way to others, and waits for its turn again.

    Attributes:
        bytes: the length of the file once everything is written.
        gathered_bytes: how much of it is not written yet.
    """

    def __init__(self, file: Growing):
        self._file, self._parts = file, list[bytes]()
        self.bytes, self.gathered_bytes = file.bytes, 0

    def write(self, data: bytes) -> None:
        """Adds bytes, which the next `flush` writes."""
        self._parts.append(data)
        self.bytes += len(data)
        self.gathered_bytes += len(data)

    def flush(self) -> None:
        """Writes what was added.

        Raises:
            FullDiskError: no space is left.
        """
        if parts := self.take():
            self._file.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def take(self) -> list[bytes]:
        """Forgets what was added since the last `flush`, and returns it."""
        parts, self._parts, self.gathered_bytes = self._parts, [], 0
        return parts
