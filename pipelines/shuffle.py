"""Grouping by partition number without moving bulk data: a unit writes one spill file and hands on where each bucket's slices lie.

A bucket is a partition of one kind of data. Elements are `(group, bytes)`, a group being a range of buckets that one worker goes
through in order. With `engine.shuffle = "files"` the bytes say where the slices are, and there are few groups, for elements cost
more than what they say; with "beam" they are the slices themselves, for engines whose workers share no fast disk, and a group is one
partition, which fits in memory. Either way the slices of a bucket come back in the order of units, so that results depend on neither
engine nor mode.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO, Literal, NamedTuple

import apache_beam as beam
import numpy as np

from altalign import storage
from altalign.errors import UnreadableError

Mode = Literal["files", "beam"]
Element = tuple[int, bytes]

GROUPS_AT_MOST = 64  # of files
SLICE = np.dtype([("bucket", "<i8"), ("offset", "<i8"), ("length", "<i8")])  # where a slice lies
_HEAD = struct.Struct("<q?HI")  # place of the unit in the order of units, whether the slices lie in a file, bytes of its path, number of places


@dataclass(frozen=True, slots=True)
class Groups:
    """How the buckets are grouped."""

    partitions: int
    count: int
    kinds: int  # a bucket is partition * kinds + kind

    @classmethod
    def of(cls, partitions: int, mode: Mode, *, kinds: int = 1) -> "Groups":
        """For a power of two of partitions."""
        return cls(partitions, min(partitions, GROUPS_AT_MOST) if mode == "files" else partitions, kinds)

    def partitions_of(self, group: int) -> range:
        """The partitions of a group."""
        size = self.partitions // self.count
        return range(group * size, (group + 1) * size)


class SpillWriter:
    """Writes slices to the spill file of a unit; their places at its end."""

    def __init__(self, file: BinaryIO):
        self._file, self._end = file, 0
        self._places: list[tuple[int, int, int]] = []

    def add(self, bucket: int, data: Any) -> None:
        """Write one slice, a contiguous buffer."""
        size = memoryview(data).nbytes
        if size:
            self._places.append((bucket, self._end, size))
            self._file.write(data)
            self._end += size

    def finish(self) -> list[int]:
        """Write the places; returns, for the unit's facts, where they are."""
        places = np.array(self._places, np.int64).reshape(-1, 3)
        places = places[np.argsort(places[:, 0], kind="stable")]
        self._file.write(places.tobytes())
        return [self._end, len(places)]


def slices_of(path: str, spilled: Sequence[int]) -> np.ndarray:
    """The places that `finish` wrote: SLICE[n], by bucket."""
    offset, count = spilled
    return np.frombuffer(_whole(path, storage.read_range(path, offset, count * SLICE.itemsize), count * SLICE.itemsize), SLICE)


def elements(path: str, order: int, places: np.ndarray, groups: Groups, mode: Mode) -> Iterator[Element]:
    """One element for each group that has slices (SLICE[n], by bucket) in the file of one unit."""
    size = groups.partitions // groups.count * groups.kinds
    cuts = np.searchsorted(places["bucket"], np.arange(groups.count + 1) * size).tolist()
    name = path.encode()
    for group, (begin, end) in enumerate(pairwise(cuts)):
        if begin == end:
            continue
        of_group = places[begin:end]
        head = _HEAD.pack(order, mode == "files", len(name), end - begin) + name + of_group.tobytes()
        data = b"".join(storage.read_range(path, int(place["offset"]), int(place["length"])) for place in of_group) if mode == "beam" else b""
        yield group, head + data


class Gather(beam.PTransform[Any, Any]):
    """Collections of elements in, (group, values) out: every group, also one that no element names."""

    def __init__(self, groups: Groups):
        super().__init__()
        self._groups = groups

    def expand(self, input_or_inputs: Any) -> Any:  # collections of elements; Beam reads a hint of several wrongly
        """Group by number of group."""
        names = beam.Create([(group, b"") for group in range(self._groups.count)], reshuffle=False).with_output_types(tuple[int, bytes])
        every = input_or_inputs[0].pipeline | "NameGroups" >> names
        return (*input_or_inputs, every) | beam.Flatten() | beam.GroupByKey()


class _FromUnit(NamedTuple):
    order: int
    path: str
    places: np.ndarray
    slices: list[bytes] | None  # None: they lie in the file


class Spilled:
    """What units handed on for one group."""

    def __init__(self, values: Iterable[bytes]):
        """Of the values of a group's elements, in any order."""
        self._units = sorted((_parsed(value) for value in values if value), key=lambda unit: unit.order)

    def slices(self, buckets: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """(bucket, slice) of these buckets, in the order of units and, within one, of bucket and writing."""
        for unit in self._units:
            at = [i for bucket in buckets for i in range(*np.searchsorted(unit.places["bucket"], [bucket, bucket + 1]).tolist())]
            if unit.slices is not None:
                yield from ((int(unit.places["bucket"][i]), unit.slices[i]) for i in at)
            elif at:
                with storage.open_read(unit.path) as file:
                    for bucket, offset, length in unit.places[at].tolist():
                        file.seek(offset)
                        yield bucket, _whole(unit.path, file.read(length), length)

    def arrays(self, buckets: Sequence[int], dtype: Any = np.uint64) -> list[np.ndarray]:
        """All slices of each bucket as one array, in the same order."""
        found: dict[int, list[bytes]] = {bucket: [] for bucket in buckets}
        for bucket, data in self.slices(buckets):
            found[bucket].append(data)
        return [np.frombuffer(bytearray().join(found.pop(bucket)), dtype) for bucket in buckets]


def _parsed(value: bytes) -> _FromUnit:
    order, is_in_file, name, count = _HEAD.unpack_from(value)
    begin = _HEAD.size + name
    places = np.frombuffer(value, SLICE, count, begin)
    path = value[_HEAD.size : begin].decode()
    if is_in_file:
        return _FromUnit(order, path, places, None)
    at = begin + count * SLICE.itemsize
    ends = np.cumsum([at, *places["length"].tolist()]).tolist()
    return _FromUnit(order, path, places, [value[a:b] for a, b in pairwise(ends)])


def _whole(path: str, data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise UnreadableError(f"{path}: cut short")
    return data
