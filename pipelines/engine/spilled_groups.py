"""Groups by partition number without moving bulk data: units write spill files and pass on the places of slices.

A bucket is a partition of one kind of data. Elements are `(group, bytes)`; a group is a range of buckets that one
worker goes through in order. The bytes name a file and say where in it the places of the slices are; there are few
groups, for an element costs more than its content. The slices of a bucket come back in the order of units, so results
do not depend on the engine.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, BinaryIO

import apache_beam as beam
import numpy as np
import numpy.typing as npt

from altalign import storage
from altalign.errors import UnreadableError
from altalign.pipelines.engine.map_units import pooled
from altalign.pipelines.run.units import F, Marks, Run, Unit, map_unit

Element = tuple[int, bytes]

GROUPS_AT_MOST = 64
HELD_BYTES = 16 << 20  # so much of a unit's slices is held before it is written
SLICE = np.dtype([("bucket", "<i8"), ("offset", "<i8"), ("length", "<i8")])  # where a slice lies
# the unit's place in the order of units, offset and number of the places of its slices; the names of both files follow
_HEAD = struct.Struct("<qqq")

Slices = npt.NDArray[np.void]  # SLICE[n]


class Groups:
    """How the buckets of so many partitions, a power of two, are grouped; each has so many kinds of data."""

    def __init__(self, partitions: int, *, kinds: int = 1):
        self.partitions, self.kinds = partitions, kinds
        self.count = min(partitions, GROUPS_AT_MOST)

    def bucket(self, partition: Any, kind: int) -> Any:
        """The bucket with one kind of data of a partition; of an array of partitions an array of buckets."""
        return partition * self.kinds + kind

    @property
    def size(self) -> int:
        """How many partitions a group has."""
        return self.partitions // self.count


class SpillWriter:
    """Writes slices to the spill file of a unit, and their places at its end.

    Some megabytes are held and then written in the order of buckets, all data of one bucket as one slice: merging reads
    each slice by itself.
    """

    def __init__(self, file: BinaryIO):
        self._file, self._end = file, 0
        self._held: dict[int, list[bytes]] = {}
        self._held_bytes = 0
        self._places: list[tuple[int, int, int]] = []

    def add(self, bucket: int, data: Any) -> None:
        """Add data, a contiguous buffer, to a bucket; the caller may then change the buffer."""
        if part := bytes(data):
            self._held.setdefault(bucket, []).append(part)
            self._held_bytes += len(part)
            if self._held_bytes >= HELD_BYTES:
                self._flush()

    def _flush(self) -> None:
        slices = sorted(self._held.items())
        for bucket, parts in slices:
            size = sum(map(len, parts))
            self._places.append((bucket, self._end, size))
            self._end += size
        self._file.write(b"".join(part for _, parts in slices for part in parts))
        self._held, self._held_bytes = {}, 0

    def finish(self) -> list[int]:
        """Write the held slices and all places; returns offset and number of the places, for the unit's facts."""
        self._flush()
        places = np.array(self._places, np.int64).reshape(-1, 3)
        places = places[np.argsort(places[:, 0], kind="stable")]
        self._file.write(places.tobytes())
        return [self._end, len(places)]


def slices_of(index: str, where: Sequence[int]) -> Slices:
    """The places that `finish` wrote, sorted by bucket; `where` is what it returned."""
    offset, size = where[0], where[1] * SLICE.itemsize
    return np.frombuffer(_whole(index, storage.read_range(index, offset, size), size), SLICE)


def elements(path: str, order: int, index: str, where: Sequence[int], groups: Groups) -> Iterator[Element]:
    """Yields one element for each group that has slices in the spill file `path` of a unit.

    `order` is the unit's place in the order of units; `where` in the file `index` the places of slices lie, as `finish`
    returned it.
    """
    places = slices_of(index, where)
    size = groups.size * groups.kinds
    cuts = np.searchsorted(places["bucket"], np.arange(groups.count + 1) * size).tolist()
    names = path.encode() + b"\0" + index.encode()
    for group, (begin, end) in enumerate(pairwise(cuts)):
        if begin < end:
            yield group, _HEAD.pack(order, where[0] + begin * SLICE.itemsize, end - begin) + names


class Spilled:
    """The slices that all units handed on for one group; `values` of its elements come in any order."""

    def __init__(self, values: Iterable[bytes]):
        self._values = sorted(filter(None, values), key=lambda value: _HEAD.unpack_from(value)[0])

    @cached_property
    def _units(self) -> list[tuple[str, dict[int, list[tuple[int, int]]]]]:
        """Of each unit, in order, its spill file, and offset and length of the slices of each bucket.

        They are read when the group is worked on: those of all groups are too many for one process.
        """
        units = []
        for value in self._values:
            _, *where = _HEAD.unpack_from(value)
            path, index = value[_HEAD.size :].decode().split("\0")
            places: dict[int, list[tuple[int, int]]] = {}
            for bucket, offset, length in slices_of(index, where).tolist():
                places.setdefault(bucket, []).append((offset, length))
            units.append((path, places))
        return units

    def slices(self, buckets: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yields (bucket, slice) for these buckets, in the order of units and, within one, of bucket and writing."""
        for path, places in self._units:
            of_buckets = [(bucket, place) for bucket in buckets for place in places.get(bucket, ())]
            if of_buckets:  # an empty range opens no file
                parts = storage.read_ranges(path, [place for _, place in of_buckets])
                for (bucket, (_, length)), part in zip(of_buckets, parts, strict=True):
                    yield bucket, _whole(path, part, length)

    def size(self, buckets: Sequence[int]) -> int:
        """How many bytes these buckets have."""
        return sum(length for _, places in self._units for each in buckets for _, length in places.get(each, ()))

    def arrays(self, buckets: Sequence[int], dtype: Any = np.uint64) -> list[npt.NDArray[Any]]:
        """All slices of each bucket as one array of this dtype, in the same order."""
        filled = [np.empty(self.size([bucket]), np.uint8) for bucket in buckets]
        rests = {bucket: array.data for bucket, array in zip(buckets, filled, strict=True)}
        for bucket, data in self.slices(buckets):  # each is copied while it is in the CPU's cache
            rests[bucket][: len(data)] = data
            rests[bucket] = rests[bucket][len(data) :]
        return [array.view(dtype) for array in filled]


class MergePartitions(beam.PTransform[Any, Any]):
    """Collections of elements in, numbers of finished partitions out: every partition, also one that no element names.

    `merge` makes one partition from the slices that units handed on; each partition is a unit with its own mark.
    """

    def __init__(self, run: Run, marks: Marks[F], groups: Groups, merge: Callable[[Run, int, Spilled], F]):
        super().__init__()
        self._run, self._marks, self._groups, self._do = run, marks, groups, merge

    def expand(self, input_or_inputs: Any) -> Any:  # collections of elements; Beam reads a hint of several wrongly
        """Group by number of group, merge the partitions of each."""
        count = self._groups.count  # a job holds few elements, so workers count the groups themselves
        names = beam.FlatMap(lambda _: ((group, b"") for group in range(count))).with_output_types(tuple[int, bytes])
        every = input_or_inputs[0].pipeline | beam.Impulse() | "NameGroups" >> names
        gathered = (*input_or_inputs, every) | beam.Flatten() | "GatherGroups" >> beam.GroupByKey()
        return gathered | "MergeGroups" >> pooled(self._run, self._merge)

    def _merge(self, grouped: tuple[int, Iterable[bytes]]) -> Iterator[int]:
        group, values = grouped
        spilled = Spilled(values)
        for partition in range(group * self._groups.size, (group + 1) * self._groups.size):
            unit = Unit(name=f"{partition:05d}")
            map_unit(self._run, self._marks, unit, lambda run, _, p=partition: self._do(run, p, spilled))
            yield partition


def _whole(path: str, data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise UnreadableError(f"{path}: cut short")
    return data
