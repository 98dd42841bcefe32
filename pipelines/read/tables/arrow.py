"""Arrow IPC, as Hugging Face's `save_to_disk` leaves it: streams in a folder, which `state.json` lists.

A file is mapped into memory, so that a record batch of any size costs what is read of it.
"""

import re
import struct
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from altalign import storage
from altalign.errors import UsageError
from altalign.pipelines.read.stretches import STRETCH_ROWS, readable
from altalign.pipelines.read.tables.values import longest_of_dictionaries
from altalign.storage import parquet
from altalign.terminal import shown

_MAGIC = b"ARROW1"  # of the form with a footer; streams have none
_TAIL = struct.Struct("<i6s")  # bytes of the footer, and the magic again
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream
_ERRORS = (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError, pa.ArrowIndexError, UnicodeDecodeError)
_TIMES_AT_MOST = 1_000  # compressed buffers say how long they are; what is longer than so many times the file is a lie
# Compressed buffers of a message beyond this that have more than so many times its bytes are a bomb, or a lie: Arrow
# unpacks them at once.
_UNPACKED_AT_MOST, _PACKED_AT_MOST = 256 << 20, 32
# rows at a time where a dictionary has a value that is longer, and may stand in all of them
_LONG_BYTES, _ROWS_OF_LONG_VALUES = 4 << 10, 512
_HEADER, _BUFFERS, _COMPRESSION = 2, 2, 3  # fields of Message and RecordBatch
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3  # kinds of messages; the first holds one of the second kind as its field 1


@dataclass(frozen=True)
class Table:
    """An open file: its schema, and its record batches."""

    schema: pa.Schema
    _batches: Iterator[pa.RecordBatch]

    def stretches(self, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
        """Yields these columns in parts of at most `STRETCH_ROWS` rows, and checks them.

        Raises:
            pa.ArrowInvalid: the file contradicts itself.
        """
        for batch in self._batches:
            wanted = batch.select(list(columns))
            wanted.validate(full=True)
            wanted = parquet.plain(wanted)
            has_long = any(longest_of_dictionaries(column) > _LONG_BYTES for column in wanted.columns)
            at_once = _ROWS_OF_LONG_VALUES if has_long else STRETCH_ROWS
            for first in range(0, wanted.num_rows, at_once):
                yield wanted.slice(first, at_once)


@contextmanager
def reading(path: str) -> Iterator[Table]:
    """An open Arrow file.

    Raises:
        UnreadableError: it is none, is cut off, or contradicts itself.
    """
    with readable(path, "Arrow"), pa.memory_map(storage.mappable(path)) as file:
        try:
            if file.read(len(_MAGIC)) == _MAGIC:
                _check_claims(_of_footer(file))
                of_file = pa.ipc.open_file(file)
                yield Table(of_file.schema, map(of_file.get_batch, range(of_file.num_record_batches)))
                return
            file.seek(max(0, file.size() - len(_END)))
            if file.read() != _END:
                raise pa.ArrowInvalid("it ends without the mark of its end, as one that is cut does")
            file.seek(0)
            _check_claims(_of_stream(file))
            file.seek(0)
            stream = pa.ipc.open_stream(file)
            yield Table(stream.schema, iter(stream))
        except _ERRORS as error:
            raise pa.ArrowInvalid(str(error)) from error
        except pa.ArrowMemoryError as error:
            claimed = re.search(r"size (\d+)", str(error))
            if claimed is None or int(claimed[1]) < _TIMES_AT_MOST * file.size():
                raise
            raise pa.ArrowInvalid(f"a buffer that says it has {int(claimed[1]):,} bytes") from error


def _check_claims(messages: Iterator[tuple[Any, Any]]) -> None:
    """Refuse a file with a message (metadata, body) whose compressed buffers say that they are far longer than it.

    Raises:
        pa.ArrowInvalid: there is one, or the file breaks off.
    """
    for metadata, body in messages:
        claimed = sum(_claims(metadata, body))
        if claimed > max(_UNPACKED_AT_MOST, _PACKED_AT_MOST * body.size):
            raise pa.ArrowInvalid(f"buffers of {body.size:,} bytes that unpack to {claimed:,}")


def _of_stream(file: Any) -> Iterator[tuple[Any, Any]]:
    reader = pa.ipc.MessageReader.open_stream(file)
    for message in iter(partial(_next_message, reader), None):
        yield message.metadata.to_pybytes(), message.body


def _of_footer(file: Any) -> Iterator[tuple[Any, Any]]:
    """The messages of a file where its footer says they are, as Arrow reads them; others may lie between."""
    end = file.size() - _TAIL.size
    file.seek(max(0, end))
    length, mark = _TAIL.unpack(file.read(_TAIL.size).rjust(_TAIL.size, b"\0"))
    if mark != _MAGIC or not 0 < length <= end:
        raise pa.ArrowInvalid("it ends without the mark of its end, as one that is cut does")
    file.seek(end - length)
    footer = file.read(length)
    try:
        top = _Flat(footer, int.from_bytes(footer[:4], "little"))
        for offset, size, _ in dict.fromkeys([*top.structs(2, "<qi4xq"), *top.structs(3, "<qi4xq")]):
            if not (0 <= offset <= end and 8 <= size <= end):
                raise IndexError
            file.seek(offset)
            metadata = memoryview(file.read_buffer(size)).cast("B")
            metadata = metadata[8 if metadata[:4] == b"\xff" * 4 else 4 :]  # its length; older ones begin with that
            body = _Flat(metadata, int.from_bytes(metadata[:4], "little")).number(3)
            yield metadata, file.read_buffer(min(max(0, body), end))
    except (struct.error, IndexError, OverflowError):
        raise pa.ArrowInvalid("a footer that leads to no message") from None


def _next_message(reader: Any) -> Any:
    try:
        return reader.read_next_message()
    except (StopIteration, EOFError):
        return None


def _claims(metadata: bytes | memoryview, body: Any) -> Iterator[int]:
    """How long each compressed buffer of a message says it is; the metadata is a Flatbuffer."""
    try:
        message = _Flat(metadata, int.from_bytes(metadata[:4], "little"))
        kind, header = message.byte(1), message.table(_HEADER)
        batch = header.table(1) if header and kind == _DICTIONARY_BATCH else header
        if batch is None or kind not in (_DICTIONARY_BATCH, _RECORD_BATCH) or batch.table(_COMPRESSION) is None:
            return
        for offset, length in batch.structs(_BUFFERS, "<qq"):
            if length >= 8:
                yield max(0, int.from_bytes(body[offset : offset + 8].to_pybytes(), "little", signed=True))
    except (struct.error, IndexError, OverflowError):
        raise pa.ArrowInvalid("a message that breaks off") from None


class _Flat(NamedTuple):
    """A table of a Flatbuffer, and where in its bytes it begins."""

    data: bytes | memoryview
    at: int

    def _place(self, field: int) -> int:
        """Where a field is; 0 for one that is not there."""
        names = self.at - struct.unpack_from("<i", self.data, self.at)[0]
        if 4 + 2 * field >= struct.unpack_from("<H", self.data, names)[0]:
            return 0
        inside = struct.unpack_from("<H", self.data, names + 4 + 2 * field)[0]
        return self.at + inside if inside else 0

    def byte(self, field: int) -> int:
        """A number of one byte."""
        place = self._place(field)
        return self.data[place] if place else 0

    def table(self, field: int) -> "_Flat | None":
        """A table that a field leads to."""
        place = self._place(field)
        return _Flat(self.data, place + struct.unpack_from("<I", self.data, place)[0]) if place else None

    def number(self, field: int) -> int:
        """A number of eight bytes."""
        place = self._place(field)
        return struct.unpack_from("<q", self.data, place)[0] if place else 0

    def structs(self, field: int, form: str) -> Iterator[tuple[int, ...]]:
        """A vector of structs."""
        if vector := self.table(field):
            (count,), begin = struct.unpack_from("<I", self.data, vector.at), vector.at + 4
            yield from struct.iter_unpack(form, self.data[begin : begin + struct.calcsize(form) * count])


def listed(folder: str) -> Sequence[str]:
    """The files of a data set that was saved to a folder, in order; of any other folder, the folder itself.

    Raises:
        UsageError: it holds several splits.
        UnreadableError: what says which files there are is damaged.
    """
    splits = storage.read_json(storage.join(folder, "dataset_dict.json")).get("splits")
    if isinstance(splits, list) and splits:
        names = ", ".join(shown(str(name)) for name in splits)
        raise UsageError(
            f"{folder}: a data set of splits ({names}); name one, such as {folder.rstrip('/')}/{splits[0]}"
        )
    entries = storage.read_json(storage.join(folder, "state.json")).get("_data_files")
    if not isinstance(entries, list):
        return [folder]
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    if wrong := [name for name in names if not isinstance(name, str) or "/" in name]:
        where = storage.join(folder, "state.json")
        raise UsageError(f"{where}: {wrong[0]!r} is no name of a file; save the data set anew")
    return [storage.join(folder, str(name)) for name in names]
