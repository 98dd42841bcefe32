"""Where the images of a set are, and their bytes: in files, in tars, or in rows of tables. Needs no torch."""

import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.data.shards import BESIDE, IMAGE_NAMES
from altalign.errors import UnreadableError, UsageError, first_line

IMAGES = {name[1:] for name in IMAGE_NAMES}  # endings of names of images, in lower case
NO_IMAGE, NO_FILE, UNDECODABLE = "no image", "no such file", "undecodable"  # reasons to leave out a row

_ROWS = 256  # rows of a table that are held: tens of megabytes of images


class Place(NamedTuple):
    """Where an image's bytes are: a file or some of its bytes, or a row of a table where a `column` is named."""

    path: str
    offset: int = 0  # bytes; of a table the row
    length: int | None = None  # bytes; None: to the end
    name: str = ""  # for messages: FILE#ROW, FILE/MEMBER
    column: str = ""


@dataclass(frozen=True)
class Images:
    """Images of a set by number, known at once; their bytes are read when they are needed."""

    identities: Sequence[str]  # what an image is known by: a digest of its content
    names: Sequence[str]  # for messages, and for people who look for it
    # gives the bytes of the images of rising numbers
    read: Callable[[Sequence[int]], Iterator[bytes]] = lambda _: iter(())

    @classmethod
    def at(cls, identities: Sequence[str], places: Sequence[Place]) -> "Images":
        """Those at some places."""
        names = [place.name for place in places]
        return cls(identities, names, lambda rows: read_places([places[row] for row in rows]))

    def __len__(self) -> int:
        return len(self.identities)

    def left_out(self, undecodable: Sequence[int], others: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """What was left out of a set, by reason: the images of these numbers, and others by their names."""
        names = {**others, UNDECODABLE: [self.names[row] for row in undecodable]}
        return {reason: list(some) for reason, some in names.items() if some}


def digest(data: bytes) -> str:
    """SHA-256, which an image is known by."""
    return sha256(data).hexdigest()


def read_places(places: Sequence[Place]) -> Iterator[bytes]:
    """The bytes at each place, in order. Rows of a table rise."""
    for (path, column), some in groupby(places, key=lambda place: (place.path, place.column)):
        if column:
            yield from _read_rows(path, column, [place.offset for place in some])
        else:
            yield from map(read_place, some)


def read_place(place: Place) -> bytes:
    """The bytes at a place that is no row of a table. Raises as `reading`."""
    if place.length is None:
        with reading(place.path, "a file"):
            return storage.read_bytes(place.path)
    with reading(place.path, "tar"):
        data = storage.read_range(place.path, place.offset, place.length)
    if len(data) != place.length:
        raise UnreadableError(f"{place.path}: ends within {place.name}; it was changed since, or is cut")
    return data


@contextmanager
def reading(path: str, what: str) -> Iterator[None]:
    """Around the reading of a file. Raises UnreadableError: it cannot be read as what it should be."""
    try:
        yield
    except (OSError, pa.ArrowException, tarfile.TarError, UnicodeDecodeError) as error:
        reason = first_line(error)
        raise UnreadableError(f"{path}: cannot be read as {what} ({reason}); give a whole one") from error


def text_lines(path: str) -> list[str]:
    """The lines of a text file in UTF-8. Raises as `reading`."""
    with reading(path, "text"):
        return storage.read_bytes(path).decode("utf-8-sig").splitlines()


# Files and folders ---------------------------------------------------------------------------------------------------


def files_in(folder: str, names: Sequence[str]) -> tuple[Images, list[str]]:
    """The images of these files of a folder, each once, and the names of those that are not there."""
    places, missing = list[Place](), list[str]()
    for name in dict.fromkeys(names):
        place = Place(storage.join(folder, name), name=name)
        if storage.exists(place.path):
            places.append(place)
        else:
            missing.append(name)
    return Images.at([digest(data) for data in read_places(places)], places), missing


def folder_of(path: str) -> Images:
    """All images of a folder and the folders in it, by the names of their files. Raises UsageError: there is none."""
    files = sorted(str(each.relative_to(path)) for each in Path(path).rglob("*") if each.suffix.lower()[1:] in IMAGES)
    if not files:
        raise UsageError(f"{path}: no image is in this folder; give another")
    return files_in(path, files)[0]


def paths_of(patterns: Sequence[str]) -> Iterator[str]:
    """The files of globs, each once, sorted within a glob. Raises UsageError: nothing is there, or a folder."""
    seen: set[str] = set()
    for pattern in patterns:
        storage.check(pattern)
        paths = sorted(storage.find(pattern))
        if not paths:
            raise UsageError(f"nothing is at {pattern!r}; give paths relative to the working directory, or globs")
        for path in paths:
            if storage.kind(path) == "folder":
                raise UsageError(f"{path}: a folder; give its files, as a glob: {storage.join(path, '*')}")
            if path not in seen:
                seen.add(path)
                yield path


# Tars ----------------------------------------------------------------------------------------------------------------


@dataclass
class Sample:
    """The members of a tar of one name up to its first dot."""

    key: str
    place: Place  # of the image, or of what stands for it in messages
    image: str | None = None  # SHA-256 of the first member that is an image by its name; None where there is none
    texts: dict[str, bytes] = field(default_factory=dict)  # other members by their extension: `txt`, `cls`, `json`


def samples_of(path: str) -> Iterator[Sample]:
    """The samples of a tar, not compressed, in its order; files of attributes (`._0.jpg`) are none."""
    sample = Sample("", Place(path))
    with reading(path, "tar"), storage.open_read(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all it has met
            folder, _, name = member.name.rpartition("/")
            stem, _, extension = name.partition(".")
            if not member.isfile() or not stem or BESIDE.search(member.name):
                continue
            key, extension = f"{folder}/{stem}" if folder else stem, extension.lower()
            if key != sample.key:
                if sample.key:
                    yield sample
                sample = Sample(key, Place(path, name=f"{path}/{key}"))
            if extension in {*IMAGES, "txt", "json", "cls"}:
                file.seek(member.offset_data)
                data = file.read(member.size)
                if len(data) != member.size:
                    raise tarfile.ReadError(f"it ends within {member.name}")
                if extension not in IMAGES:
                    sample.texts[extension] = data
                elif sample.image is None:
                    sample.place = Place(path, member.offset_data, member.size, f"{path}/{member.name}")
                    sample.image = digest(data)
        file.seek(tar.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # tarfile ends there without a word
            raise tarfile.ReadError(f"no header of a member, nor zeros, at {tar.offset:,}: it is damaged, or cut")
    if sample.key:
        yield sample


# Tables --------------------------------------------------------------------------------------------------------------


@contextmanager
def table(path: str) -> Iterator[pq.ParquetFile]:
    """A table of Parquet. Raises as `reading`."""
    with reading(path, "Parquet"), storage.open_read(path) as file:
        yield pq.ParquetFile(file)


def batches_of(path: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """These columns of a table, some rows at a time."""
    with table(path) as opened:
        names = opened.schema_arrow.names
        for column in columns:
            if names.count(column) != 1:
                wrong = "more than one" if column in names else "no"
                given = ", ".join(names[:10])
                raise UsageError(f"{path}: {wrong} column {column!r} (there are {given}); name another")
        yield from opened.iter_batches(_ROWS, columns=list(columns), use_threads=False)


def table_rows(path: str, image_column: str, column: str) -> Iterator[tuple[str | None, Place, Any]]:
    """Of each row the image's digest (None: no image), its place, and the cell of another column."""
    row = 0
    for batch in batches_of(path, (image_column, column)):
        for image, cell in zip(_images_of(batch, image_column, path), batch.column(column).to_pylist(), strict=True):
            yield digest(image) if image else None, Place(path, row, name=f"{path}#{row}", column=image_column), cell
            row += 1


def _images_of(batch: pa.RecordBatch, column: str, path: str) -> list[bytes | None]:
    """Bytes of each row's image; None where there are none."""
    kind: Any = batch.schema.field(column).type
    inner = kind.field("bytes").type if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
    if inner not in (pa.binary(), pa.large_binary(), pa.binary_view()):
        raise UsageError(f"{path}: column {column!r} is {kind}, not bytes of images; name another image_column")
    values = batch.column(column).to_pylist()
    return [(value["bytes"] if isinstance(value, dict) else value) or None for value in values]


def _read_rows(path: str, column: str, rows: Sequence[int]) -> Iterator[bytes]:
    first, waiting = 0, list(rows)[::-1]
    for batch in batches_of(path, (column,)):
        images = _images_of(batch, column, path)
        while waiting and waiting[-1] < first + len(batch):
            yield images[waiting.pop() - first] or b""
        if not waiting:
            return
        first += len(batch)
    raise UnreadableError(f"{path}: ends before row {waiting[-1]:,}; it was changed since it was listed")
