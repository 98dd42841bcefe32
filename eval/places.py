"""Where the images of a set are, and their bytes: in a file, in a tar, or in a row of a table. Needs no torch."""

import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from altalign import storage
from altalign.errors import UnreadableError, UsageError, first_line
from altalign.shards import IMAGE_NAMES

IMAGES = {name[1:] for name in IMAGE_NAMES}  # endings of names of images, in lower case
NO_IMAGE, NO_FILE, UNDECODABLE = "no image", "no such file", "undecodable"  # reasons to leave out a row


@dataclass(frozen=True)
class Place:
    """Where an image's bytes are: a file or some of its bytes, or a row of a table where a `column` is named."""

    path: str
    offset: int = 0  # bytes; of a table the row
    length: int | None = None  # bytes; None: to the end
    name: str = ""  # for messages: FILE#ROW, FILE/MEMBER
    column: str = ""


@dataclass(frozen=True)
class Images:
    """Images of a set by number, known at once; their bytes are read when they are needed.

    Attributes:
        identities: what an image is known by: a digest of its content.
        names: for messages, and for people who look for it.
        read: gives the bytes of the images of rising numbers.
    """

    identities: Sequence[str]
    names: Sequence[str]
    read: Callable[[Sequence[int]], Iterator[bytes]]

    def __len__(self) -> int:
        return len(self.identities)


def reasons(names: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """What was left out, without the reasons that nothing has."""
    return {reason: list(some) for reason, some in names.items() if some}


def read_places(places: Sequence[Place]) -> Iterator[bytes]:
    """The bytes at each place, in order. Rows of a table rise.

    Raises:
        UnreadableError: a file ends before an image does, or cannot be read.
    """
    from altalign.eval import tables  # which needs what is above

    for (path, column), some in groupby(places, key=lambda place: (place.path, place.column)):
        if column:
            yield from tables.read_rows(path, column, [place.offset for place in some])
        else:
            yield from map(_read, some)


def _read(place: Place) -> bytes:
    if place.length is None:
        with reading(place.path, "a file"):
            return storage.read_bytes(place.path)
    with reading(place.path, "tar"):
        data = storage.read_range(place.path, place.offset, place.length)
    if len(data) != place.length:
        why = "it was changed since it was listed, or is cut: give a whole one"
        raise UnreadableError(f"{place.path}: ends within {place.name}; {why}")
    return data


def files_in(folder: str, names: Sequence[str]) -> tuple[Images, list[str]]:
    """The images of these files of a folder, each once, and the names of those that are not there."""
    paths = {name: storage.join(folder, name) for name in dict.fromkeys(names)}
    missing = [name for name, path in paths.items() if not storage.exists(path)]
    places = [Place(path, name=name) for name, path in paths.items() if name not in set(missing)]
    identities = [digest(data) for data in read_places(places)]
    there = [place.name for place in places]
    return Images(identities, there, lambda rows: read_places([places[row] for row in rows])), missing


def folder_of(path: str) -> Images:
    """All images of a folder and the folders in it, by the names of their files.

    Raises:
        UsageError: there is none.
    """
    files = sorted(str(each.relative_to(path)) for each in Path(path).rglob("*") if each.suffix.lower()[1:] in IMAGES)
    if not files:
        raise UsageError(f"{path}: no image is in this folder; give another")
    return files_in(path, files)[0]


def nothing_read(names: Sequence[str]) -> Images:
    """Rows of an evaluation that are no images: their names."""
    return Images(names, names, lambda _: iter(()))


def found(patterns: Sequence[str]) -> Iterator[str]:
    """The files of globs, each once, sorted within a glob.

    Raises:
        UsageError: nothing is there, or a folder.
    """
    seen: set[str] = set()
    for pattern in patterns:
        storage.check(pattern)
        paths = sorted(storage.find(pattern))
        if not paths:
            repair = "give paths relative to the working directory, or globs"
            raise UsageError(f"nothing is at {pattern!r}; {repair}")
        for path in paths:
            if storage.kind(path) == "folder":
                repair = f"give its files, as a glob: {storage.join(path, '*')}"
                raise UsageError(f"{path}: a folder; {repair}")
            if path not in seen:
                seen.add(path)
                yield path


@contextmanager
def reading(path: str, what: str) -> Iterator[None]:
    """Around the reading of a file.

    Raises:
        UnreadableError: it cannot be read as what it should be.
    """
    try:
        yield
    except (OSError, pa.ArrowException, tarfile.TarError, UnicodeDecodeError) as error:
        reason = first_line(error)
        raise UnreadableError(f"{path}: cannot be read as {what} ({reason}); give a whole one") from error


def digest(data: bytes) -> str:
    """SHA-256, which an image is known by."""
    return sha256(data).hexdigest()
