"""What readers hand on: stretches of a file, bounded in size, in input order. What they open, and how they fail."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, NoReturn, cast

import pyarrow as pa

from altalign.data.schema import BROKEN, CANDIDATE, EXTRACTED, IMAGE_PLACE, PAYLOAD
from altalign.errors import UnreadableError

STRETCH_ROWS = 8_192
STRETCH_BYTES = 16 << 20
LINE_BYTES = 16 << 20  # a line, a page or a JSON text beyond this is a broken record

_MAGIC: dict[bytes, Literal["gzip", "zstd"]] = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd"}
ADVICE = "; repair or remove the file, or set skip_unreadable = true"


@dataclass(frozen=True)
class Stretch:
    """The content of one stretch of a file, in input order."""

    rows: pa.RecordBatch  # schema.EXTRACTED
    broken: pa.RecordBatch  # schema.BROKEN
    places: pa.RecordBatch  # schema.IMAGE_PLACE
    payloads: pa.RecordBatch | None = None  # schema.PAYLOAD
    notices: Sequence[int] = ()  # the numbers of the places that have a robots.txt or tdmrep.json, rising


class Gatherer:
    """Gathers rows, broken records and places one at a time; a reader takes them as a `Stretch` once it is `full`.

    `finish` turns the gathered rows, tuples as given to `row`, into a batch of `schema.EXTRACTED`.
    """

    def __init__(self, path: str, finish: Callable[[Sequence[tuple[Any, ...]]], pa.RecordBatch]):
        self._path, self._finish = path, finish
        self._start()

    def _start(self) -> None:
        self._rows: list[tuple[object, ...]] = []
        self._broken: list[tuple[str, int, str]] = []
        self._places: list[tuple[str, int | None, int | None, bytes | None]] = []
        self._payloads: list[tuple[int | None, str | None, str]] = []
        self._notices: list[int] = []
        self._bytes = self._things = 0

    @property
    def full(self) -> bool:
        """Whether so much is gathered that it should be taken."""
        return self._bytes >= STRETCH_BYTES or self._things >= STRETCH_ROWS

    def row(self, values: tuple[object, ...], *, size: int) -> None:
        """Add a row of about this many bytes."""
        self._rows.append(values)
        self._bytes += size
        self._things += 1

    def broken(self, offset: int, error: str, *, path: str = "") -> None:
        """Add a record that cannot be read; `path` is its file where that is another."""
        self._broken.append((path or self._path, offset, error))
        self._things += 1

    def place(self, identity: str, offset: int | None, length: int | None, data: bytes | None) -> None:
        """Add the place of an image, or its bytes."""
        self._places.append((identity, offset, length, data))
        self._bytes += len(data or b"")
        self._things += 1

    def payload(self, names: Sequence[str]) -> None:
        """Add what the payload of the last place is called."""
        self._payloads += [(len(self._places) - 1, None, name) for name in names]

    def notice(self) -> None:
        """Say that the last place is no image, but what its origin says of all that it has."""
        self._notices.append(len(self._places) - 1)

    def revisit(self, identity: str, names: Sequence[str]) -> None:
        """Add an image whose payload is in another record, which is called so."""
        self._payloads += [(None, identity, name) for name in names]
        self._things += 1

    def take(self) -> Stretch:
        """Everything gathered since the last take."""
        parts = batch(self._broken, BROKEN), batch(self._places, IMAGE_PLACE), batch(self._payloads, PAYLOAD)
        stretch = Stretch(self._finish(self._rows), *parts, self._notices)
        self._start()
        return stretch


def kept(candidates: pa.RecordBatch) -> pa.RecordBatch:
    """The candidates as rows of `schema.EXTRACTED` that extract keeps."""
    rows = candidates.num_rows
    none = pa.ListArray.from_arrays(pa.array([0] * (rows + 1), pa.int32()), pa.array([], pa.string()))
    return pa.record_batch([*candidates.columns, pa.nulls(rows, pa.string()), none], schema=EXTRACTED)


def as_stretch(candidates: pa.RecordBatch, places: pa.RecordBatch | None = None) -> Stretch:
    """A stretch of kept candidates without a broken record."""
    none = batch([], IMAGE_PLACE) if places is None else places
    return Stretch(kept(candidates.select(CANDIDATE.names)), batch([], BROKEN), none)


def batch(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """A batch of rows given as tuples."""
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def decompressed(file: BinaryIO) -> tuple[BinaryIO, bool]:
    """The content of a file, over all its members or frames, and whether it is compressed, by its first bytes.

    Reading it raises OSError if it is broken or cut.
    """
    compression = _MAGIC.get(file.read(2))
    file.seek(0)
    if compression is None:
        return file, False
    stream = pa.CompressedInputStream(pa.PythonFile(cast(Any, file), "r"), compression)
    return cast(BinaryIO, io.BufferedReader(cast(Any, stream), 1 << 20)), True


def unreadable(path: str, what: str) -> NoReturn:
    """Refuse a file that cannot be read as a whole, by an UnreadableError."""
    raise UnreadableError(f"{path}: {what}{ADVICE}")


@contextmanager
def readable(path: str, what: str) -> Iterator[None]:
    """An UnreadableError names the file where it is broken, or the stream compressed in it; `what` is the format."""
    try:
        yield
    except (OSError, EOFError, pa.ArrowInvalid, pa.ArrowIndexError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnreadableError(f"{path}: cannot be read as {what} ({reason}){ADVICE}") from error
