"""Groups by partition number without moving bulk data: units write spill files and pass on their names.

A bucket is a partition of one kind of data. Each time that a unit writes, it writes the slices of all buckets in their
order, so the offsets of buckets, one line of numbers each time, say where they are. A group is a range of buckets that
one worker goes through in order; it reads the offsets of its buckets alone. The slices of a bucket come back in the
order of units, so results do not depend on the engine.

A partition that is too large for the memory of a thread is cut into parts by a second pass, through a temporary file.
"""

import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.errors import UnreadableError
from altalign.pipelines.engine.map_units import pooled
from altalign.pipelines.run.units import F, Marks, Run, Unit, map_unit
from altalign.storage import parquet

Element = tuple[int, bytes]
Cut = Callable[[int, bytes, int], Iterable[tuple[int, Any]]]  # kind, slice and number of parts in; part and data out

GROUPS_AT_MOST = 512
HELD_BYTES = 16 << 20  # so much of a unit's slices is held before it is written
MERGED_BYTES = 1 << 30  # of memory that a thread takes to merge, at most
BYTES_PER_SPILLED = 3  # of memory for each byte that is merged
PARTS_AT_MOST = 1 << 12
OFFSET = np.dtype("<i8")
# the unit's place in the order of units, where its offsets are and how often it has written; the names of the files
# with slices and offsets follow
_HEAD = struct.Struct("<qqq")
_LIST = pa.schema([("path", pa.string()), ("index", pa.string()), ("offset", pa.int64()), ("times", pa.int64())])

Offsets = npt.NDArray[np.int64]  # int64[times, buckets + 1]


class Groups:
    """How the buckets of so many partitions, a power of two, are grouped; each has so many kinds of data."""

    def __init__(self, partitions: int, *, kinds: int = 1, at_most: int = GROUPS_AT_MOST):
        self.partitions, self.kinds = partitions, kinds
        self.count = min(partitions, at_most)

    def bucket(self, partition: Any, kind: int) -> Any:
        """The bucket with one kind of data of a partition; of an array of partitions an array of buckets."""
        return partition * self.kinds + kind

    @property
    def size(self) -> int:
        """How many partitions a group has."""
        return self.partitions // self.count


class SpillWriter:
    """Writes slices to the spill file of a unit, and the offsets of all buckets at its end.

    Some megabytes are held and then written in the order of buckets, all data of one bucket as one slice: merging reads
    each slice by itself.
    """

    def __init__(self, file: BinaryIO, groups: Groups):
        self._file, self._end, self._buckets = file, 0, groups.partitions * groups.kinds
        self._held: dict[int, list[bytes]] = {}
        self._held_bytes = 0
        self._offsets: list[Offsets] = []

    def add(self, bucket: int, data: Any) -> None:
        """Add data, a contiguous buffer, to a bucket; the caller may then change the buffer."""
        if part := bytes(data):
            self._held.setdefault(bucket, []).append(part)
            self._held_bytes += len(part)
            if self._held_bytes >= HELD_BYTES:
                self._flush()

    def _flush(self) -> None:
        slices, offsets = sorted(self._held.items()), np.zeros(self._buckets + 1, OFFSET)
        for bucket, parts in slices:
            offsets[bucket + 1] = sum(map(len, parts))
        offsets[0] = self._end
        self._offsets.append(np.cumsum(offsets))
        self._end += self._held_bytes
        self._file.write(b"".join(part for _, parts in slices for part in parts))
        self._held, self._held_bytes = {}, 0

    def finish(self) -> list[int]:
        """Write the held slices and all offsets; returns where these are, and how often it has written: for facts."""
        if self._held:
            self._flush()
        self._file.write(b"".join(offsets.tobytes() for offsets in self._offsets))
        return [self._end, len(self._offsets)]


def elements(path: str, order: int, index: str, where: Sequence[int]) -> Iterator[Element]:
    """Yields the element of a unit with the spill file `path`; none where it has no slices.

    `order` is the unit's place in the order of units; `where` in the file `index` the offsets lie, as `finish` returned
    it.
    """
    if where[1]:
        yield 0, _HEAD.pack(order, *where) + path.encode() + b"\0" + index.encode()


class Spilled:
    """The slices that all units handed on for one group; `units` reads the table of `listed` when it is worked on."""

    def __init__(self, units: Callable[[], pa.Table], groups: Groups, group: int):
        self._read, self._buckets, self._width = units, groups.partitions * groups.kinds, groups.size * groups.kinds
        self._first = group * self._width

    @cached_property
    def _units(self) -> list[tuple[str, str, int, int]]:
        columns: list[list[Any]] = [self._read()[name].to_pylist() for name in _LIST.names]
        return list(zip(*columns, strict=True))

    @cached_property
    def _place(self) -> str:
        return self._units[0][0] if self._units else ""

    @cached_property
    def _offsets(self) -> list[Offsets]:
        """Of each unit, int64[times, buckets of the group + 1]. They are read when the group is worked on."""
        size = (self._width + 1) * OFFSET.itemsize

        def read(unit: tuple[str, str, int, int]) -> Offsets:
            _, index, offset, times = unit
            line, begin = (self._buckets + 1) * OFFSET.itemsize, offset + self._first * OFFSET.itemsize
            lines = storage.read_ranges(index, [(begin + line * number, size) for number in range(times)])
            data = b"".join(_whole(index, part, size) for part in lines)
            return np.frombuffer(data, OFFSET).reshape(-1, self._width + 1)

        return list(storage.each(read, self._units, place=self._place))

    def slices(self, buckets: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yields (bucket, slice) for these buckets, in the order of units and, within one, of bucket and writing."""
        at = np.array(buckets, np.int64) - self._first

        def read(unit: int) -> list[tuple[int, bytes]]:
            begins, ends = self._offsets[unit][:, at].T, self._offsets[unit][:, at + 1].T
            of_buckets, times = np.nonzero(ends > begins)
            lengths = (ends - begins)[of_buckets, times].tolist()
            ranges = list(zip(begins[of_buckets, times].tolist(), lengths, strict=True))
            if not ranges:  # opens no file
                return []
            path, named = self._units[unit][0], [buckets[each] for each in of_buckets.tolist()]
            parts = zip(storage.read_ranges(path, ranges), lengths, strict=True)
            return list(zip(named, (_whole(path, part, length) for part, length in parts), strict=True))

        for of_unit in storage.each(read, range(len(self._units)), place=self._place):
            yield from of_unit

    def size(self, buckets: Sequence[int]) -> int:
        """How many bytes these buckets have."""
        at = np.array(buckets, np.int64) - self._first
        return sum(int((lines[:, at + 1] - lines[:, at]).sum()) for lines in self._offsets)

    def arrays(self, buckets: Sequence[int], dtype: Any = np.uint64) -> list[npt.NDArray[Any]]:
        """All slices of each bucket as one array of this dtype, in the same order."""
        filled = [np.empty(self.size([bucket]), np.uint8) for bucket in buckets]
        rests = {bucket: array.data for bucket, array in zip(buckets, filled, strict=True)}
        for bucket, data in self.slices(buckets):  # each is copied while it is in the CPU's cache
            rests[bucket][: len(data)] = data
            rests[bucket] = rests[bucket][len(data) :]
        return [array.view(dtype) for array in filled]


@contextmanager
def parted(spilled: Spilled, buckets: Sequence[int], cut: Cut) -> Iterator[list[tuple[Spilled, Sequence[int]]]]:
    """The buckets of a partition, one of each kind: as they are, or those of each part in order.

    Parts are a power of two, so many that one takes no more than `MERGED_BYTES` where they are even.
    """
    needed = -(-spilled.size(buckets) * BYTES_PER_SPILLED // MERGED_BYTES)
    parts = min(PARTS_AT_MOST, 1 << max(0, needed - 1).bit_length())
    if parts == 1:
        yield [(spilled, buckets)]
        return
    with tempfile.TemporaryDirectory() as folder:
        path, groups = str(Path(folder, "parts.spill")), Groups(parts, kinds=len(buckets), at_most=1)
        with Path(path).open("wb") as file:
            spill = SpillWriter(file, groups)
            for bucket, data in spilled.slices(buckets):
                kind = buckets.index(bucket)
                for part, of_part in cut(kind, data, parts):
                    spill.add(groups.bucket(part, kind), of_part)
            begin, times = spill.finish()
        # each write is a unit, so that as little is in memory as of the units before
        line = (groups.partitions * groups.kinds + 1) * OFFSET.itemsize
        writes = [value for n in range(times) for _, value in elements(path, n, path, [begin + n * line, 1])]
        of_parts = Spilled(lambda: listed(writes), groups, 0)
        yield [(of_parts, [groups.bucket(part, kind) for kind in range(groups.kinds)]) for part in range(parts)]


def by_part(rows: npt.NDArray[Any], parts: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yields each part and its rows; `parts`, int64[rows], numbers the part of each row."""
    order = np.argsort(parts.astype(np.uint16), kind="stable")  # 16 bits: a radix sort
    rows, parts = rows[order], parts[order]
    begins = np.flatnonzero(np.diff(parts, prepend=-1))
    for begin, end in pairwise([*begins.tolist(), len(rows)]):
        yield int(parts[begin]), rows[begin:end]


def listed(values: Iterable[bytes]) -> pa.Table:
    """The files of units from the elements that name them, in any order: a row a unit, in the order of units."""
    rows = sorted((*_HEAD.unpack_from(value), *value[_HEAD.size :].decode().split("\0")) for value in values if value)
    names = ("order", "offset", "times", "path", "index")
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], _LIST)


class MergePartitions(beam.PTransform[Any, Any]):
    """Collections of elements in, numbers of finished partitions out: every partition, also one that no unit has.

    `merge` makes one partition from the slices that units handed on; each partition is a unit with its own mark.
    """

    def __init__(self, run: Run, marks: Marks[F], groups: Groups, merge: Callable[[Run, int, Spilled], F]):
        super().__init__()
        self._run, self._marks, self._groups, self._do = run, marks, groups, merge
        self._list = run.work(marks.step, "spilled", "units.parquet")

    def expand(self, input_or_inputs: Any) -> Any:  # collections of elements; Beam reads a hint of several wrongly
        """List all units in a file, which every group reads; merge the partitions of each group."""
        begun = beam.Map(lambda _: (0, b"")).with_output_types(tuple[int, bytes])
        begun = input_or_inputs[0].pipeline | beam.Impulse() | "Begin" >> begun
        gathered = (*input_or_inputs, begun) | beam.Flatten() | "GatherUnits" >> beam.GroupByKey()
        named = gathered | "NameGroups" >> pooled(self._run, self._named).with_output_types(int)
        if self._run.config.engine.runner != "embedded":  # one process does without
            named = named | beam.Reshuffle()
        return named | "MergeGroups" >> pooled(self._run, self._merge)

    def _named(self, gathered: tuple[int, Iterable[bytes]]) -> Iterable[int]:
        parquet.write(self._list, listed(gathered[1]), _LIST)
        return range(self._groups.count)

    def _merge(self, group: int) -> Iterator[int]:
        spilled = Spilled(lambda: parquet.read_table(self._list), self._groups, group)
        for partition in range(group * self._groups.size, (group + 1) * self._groups.size):
            unit = Unit(name=f"{partition:05d}")
            map_unit(self._run, self._marks, unit, lambda run, _, p=partition: self._do(run, p, spilled))
            yield partition


def _whole(path: str, data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise UnreadableError(f"{path}: cut short")
    return data
