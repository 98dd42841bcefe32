"""Grouping by partition number without moving bulk data: a unit writes one spill file and hands on where each partition's slices lie.

Elements are `(partition, bytes)`. With `engine.shuffle = "files"` the bytes say where the slices are; with "beam" they are
the slices themselves, for engines whose workers share no fast disk. Either way the values of a partition come back in the
order of units, so that results depend on neither engine nor mode.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Literal

from altalign import storage

Mode = Literal["files", "beam"]
Element = tuple[int, bytes]

_PLACE = struct.Struct("<qq")


class SpillWriter:
    """Writes slices to the spill file of a unit and remembers where they lie; JSON-able by `index`."""

    def __init__(self, file: BinaryIO):
        self._file, self._end = file, 0
        self.index: dict[int, list[tuple[int, int]]] = {}

    def add(self, partition: int, data: bytes | memoryview) -> None:
        """Write one slice of a partition."""
        size = memoryview(data).nbytes
        if size:
            self.index.setdefault(partition, []).append((self._end, size))
            self._file.write(data)
            self._end += size

    def places(self) -> dict[str, list[tuple[int, int]]]:
        """The index for a unit's facts."""
        return {str(partition): places for partition, places in sorted(self.index.items())}


def elements(path: str, order: int, places: dict[str, list[tuple[int, int]]], mode: Mode) -> Iterator[Element]:
    """One element a partition: the unit's place in the order of units, then its slices or where they lie."""
    for partition, slices in places.items():
        head = struct.pack("<q?H", order, mode == "files", len(path.encode())) + path.encode()
        body = b"".join(_PLACE.pack(*place) for place in slices)
        if mode == "beam":
            body = b"".join(storage.read_range(path, *place) for place in slices)
        yield int(partition), head + body


def slices(values: Iterable[bytes]) -> Iterator[bytes]:
    """The slices of one partition's values, in the order of units and, within one, of writing."""
    fixed = struct.calcsize("<q?H")
    for value in sorted(values, key=lambda v: struct.unpack_from("<q", v)[0]):
        _, is_place, name = struct.unpack_from("<q?H", value)
        path, body = value[fixed : fixed + name].decode(), value[fixed + name :]
        if is_place:
            with storage.open_read(path) as file:
                for offset, length in _PLACE.iter_unpack(body):
                    file.seek(offset)
                    yield file.read(length)
        elif body:
            yield body
