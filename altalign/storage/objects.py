"""Files in object stores, behind the face of `altalign.storage`, which says what each function promises.

How objects are asked for: ADR 12.
"""

import fnmatch
import io
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TypeVar, cast

import pyarrow.fs as pafs

from altalign.machine import ahead, interrupts
from altalign.storage import clients, disk_errors, local, local_copies, locks
from altalign.storage.clients import Place, asking, check
from altalign.storage.growing_objects import growing, is_part, whole_name
from altalign.storage.locks import holder, locked
from altalign.storage.reading import ObjectFile
from altalign.storage.stamp import Stamp

__all__ = ["check", "growing", "holder", "locked"]

_T = TypeVar("_T")
_R = TypeVar("_R")
_BUFFER_BYTES = 64 << 10
_GAP_BYTES = 256 << 10  # ranges nearer to one another are one request
_RANGE_BYTES = 8 << 20  # of several ranges as one
_AHEAD = 16  # requests for ranges under way, fewer where they are large
_AHEAD_BYTES = 64 << 20
_COMPARED_BYTES = 1 << 20  # of an object that may be there already: a smaller one is as soon copied as looked at
_COPIED_BYTES_AT_MOST = 5 << 30  # of S3's request CopyObject
_KNOWN_FOR_S = 60.0
_MAGIC = re.compile(r"[*?[]")

_Kind = Literal["file", "folder", "missing"]
_Request = tuple[int, int, list[tuple[int, int]]]  # begin, end, the ranges (offset, length) in it
# what a glob has just met, so that nobody asks for each of its files again
_LISTED: dict[str, tuple[float, _Kind]] = {}


def absolute(path: str) -> str:
    """The path without a slash at its end."""
    place = Place.of(path)
    return f"{place.scheme}://{place.name}"


resolved = absolute  # a store has no links


# Reading -------------------------------------------------------------------------------------------------------------


def open_read(path: str) -> BinaryIO:
    """A seekable binary file."""
    return cast(BinaryIO, io.BufferedReader(ObjectFile(path), _BUFFER_BYTES))


def open_again(_: str, file: BinaryIO) -> BinaryIO:
    """The same object, sharing its blocks."""
    return cast(BinaryIO, io.BufferedReader(cast(ObjectFile, cast(Any, file).raw).again(), _BUFFER_BYTES))


def ask_for(file: BinaryIO, offset: int, length: int) -> None:
    """Begin to read a range of an open file."""
    cast(ObjectFile, cast(Any, file).raw).ask_for(offset, length)


def read_range(path: str, offset: int, length: int) -> bytes:
    """Bytes from an offset."""
    interrupts.check()
    with asking(path), clients.opened(path) as file:
        return clients.read_at(file, offset, length)


def read_ranges(path: str, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """Ranges of one object; neighbouring ranges are one request."""
    wanted = list(ranges)
    if not wanted:
        return
    with asking(path):
        file = clients.opened(path)

    def read(request: _Request) -> bytes:
        begin, end, _ = request
        with asking(path):
            return clients.read_at(file, begin, end - begin)

    own = clients.threads("reads")
    begun = (
        (request, own.submit(read, request), max(request[1] - request[0], _AHEAD_BYTES // _AHEAD))
        for request in _together(wanted)
    )
    for (begin, _, parts), data in ahead.in_order(begun, bytes_at_most=_AHEAD_BYTES):
        interrupts.check()
        for offset, length in parts:
            yield data[offset - begin : offset - begin + length]


def _together(wanted: Sequence[tuple[int, int]]) -> Iterator[_Request]:
    """Requests in the order of the ranges."""
    begin, end, parts = wanted[0][0], wanted[0][0], list[tuple[int, int]]()
    for offset, length in wanted:
        if not (end <= offset <= end + _GAP_BYTES and offset + length - begin <= _RANGE_BYTES):
            if parts:
                yield begin, end, parts
            begin, parts = offset, []
        end = offset + length
        parts.append((offset, length))
    yield begin, end, parts


def read_bytes(path: str) -> bytes:
    """A whole object."""
    return clients.get(path)


def in_arrow(path: str) -> tuple[pafs.FileSystem, str]:
    """The client of its bucket."""
    place = Place.of(path)
    return place.client, place.name


def mappable(path: str) -> str:
    """A local copy."""
    found = stamp(path)
    pieces = [(begin, _RANGE_BYTES) for begin in range(0, found.size, _RANGE_BYTES)]
    return local_copies.copy(path, found, lambda copy: copy.writelines(read_ranges(path, pieces)))


def each(work: Callable[[_T], _R], things: Iterable[_T]) -> Iterator[_R]:
    """Many at a time, in order."""
    return clients.each(work, things)


# What is there -------------------------------------------------------------------------------------------------------


def kind(path: str) -> _Kind:
    """What is at a path: an object, or a prefix of others."""
    place = Place.of(path)
    listed_at, known = _LISTED.get(absolute(path), (0.0, "missing"))
    if listed_at and time.monotonic() - listed_at < _KNOWN_FOR_S:
        return cast(_Kind, known)
    if not place.key:
        return "folder"
    with asking(path):
        return _KINDS[place.client.get_file_info(place.name).type]


_KINDS: dict[pafs.FileType, _Kind] = {
    pafs.FileType.File: "file",
    pafs.FileType.Directory: "folder",
    pafs.FileType.NotFound: "missing",
    pafs.FileType.Unknown: "missing",
}


def exists(path: str) -> bool:
    """Whether there is an object: one request, where `kind` may take two."""
    try:
        with asking(path), clients.opened(path):
            return True
    except FileNotFoundError:
        return False


def stamp(path: str) -> Stamp:
    """Size and ETag."""
    place = Place.of(path)
    with asking(path), clients.opened(path) as file:
        told: dict[str, bytes] = {name.lower(): value for name, value in file.metadata().items()}
        if digest := told.get("etag", b"").decode("utf-8", "replace").strip('"'):
            return Stamp(file.size(), 0, digest)
        return Stamp(file.size(), place.client.get_file_info(place.name).mtime_ns or 0)


def names(folder: str, suffix: str = "") -> list[str]:
    """Names of the objects of a folder."""
    found = (info.base_name for info in clients.listed(folder, is_recursive=False) if info.type == pafs.FileType.File)
    return sorted(name for name in found if name.endswith(suffix) and not is_part(name))


def entries(folder: str) -> list[str]:
    """Names of objects and folders, from a list of all below: Arrow's list of one GCS folder leaves folders out."""
    inside = f"{Place.of(folder).name}/"
    return sorted(
        {info.path.removeprefix(inside).partition("/")[0] for info in clients.listed(folder, is_recursive=True)}
    )


def below(folder: str, name: str) -> list[str]:
    """Paths of the objects of a name, by one list of all."""
    return sorted(path for path in files_below(folder) if path.endswith(f"/{name}"))


def files_below(folder: str) -> list[str]:
    """Paths of all objects below a folder: one request for a thousand."""
    scheme = Place.of(folder).scheme
    return [
        f"{scheme}://{info.path}"
        for info in clients.listed(folder, is_recursive=True)
        if info.type == pafs.FileType.File
    ]


def find(pattern: str) -> list[str]:
    """What a glob matches, by one list of the folder that its plain part names."""
    parts = absolute(pattern).partition("://")[2].split("/")
    plain = next((number for number, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    if kind(pattern) != "missing":
        return [pattern]
    if plain == len(parts):
        return []
    folder = f"{Place.of(pattern).scheme}://{'/'.join(parts[:plain])}"
    found = []
    for info in clients.listed(folder, is_recursive=plain < len(parts) - 1 or "**" in parts):
        if _matches(info.path.split("/")[plain:], parts[plain:]):
            path = f"{Place.of(pattern).scheme}://{info.path}"
            _LISTED[path] = time.monotonic(), _KINDS[info.type]
            found.append(path)
    return sorted(found)


def _matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Matches as the module glob does: `**` is any folders, and only a point matches a leading point."""
    if not names or not pattern:
        return not names and not pattern
    first, *rest = pattern
    if first == "**":
        is_hidden = names[0].startswith(".")
        return (bool(rest) and _matches(names, rest)) or (
            not is_hidden and (_matches(names[1:], pattern) or (not rest and len(names) == 1))
        )
    is_met = fnmatch.fnmatchcase(names[0], first) and (first.startswith(".") or not names[0].startswith("."))
    return is_met and _matches(names[1:], rest)


def free_bytes(_: str) -> None:
    """Unknown for a store."""
    return


def is_writable(_: str) -> bool:
    """True: only a write can tell."""
    return True


# Writing -------------------------------------------------------------------------------------------------------------


@contextmanager
def write(path: str, *, durable: bool = False) -> Iterator[BinaryIO]:  # noqa: ARG001 - a store keeps what it took
    """An object that is uploaded once the block has ended well.

    Until then its bytes are in memory, or in a temporary file where they are many.
    """
    with tempfile.SpooledTemporaryFile(clients.ONE_REQUEST_BYTES) as file:
        with disk_errors.naming_a_full_disk(tempfile.gettempdir(), path.rpartition("/")[2]):
            yield cast(BinaryIO, file)
        _put_file(path, file)


def put_file(file: str, path: str) -> None:
    """Upload a local file as it is."""
    with Path(file).open("rb") as of:
        _put_file(path, of)


def _put_file(path: str, file: IO[bytes]) -> None:
    _LISTED.pop(path, None)
    locks.put_file(path, file)


def move(path: str, target: str) -> None:
    """Copy an object inside the store, then delete it."""
    link(path, target)
    clients.delete_object(path)


def link(path: str, target: str) -> None:
    """Copy an object inside the store; S3 does not copy the largest ones, which come through this machine."""
    locks.HELD.check(target)
    _LISTED.pop(target, None)
    with asking(target):
        try:
            Place.of(target).client.copy_file(Place.of(path).name, Place.of(target).name)
            return
        except OSError:
            if stamp(path).size <= _COPIED_BYTES_AT_MOST:
                raise
    with open_read(path) as file, write(target) as copy:
        shutil.copyfileobj(file, copy, _RANGE_BYTES)


def move_folder(path: str, target: str) -> None:
    """Copy objects inside the store, then delete all others of the other folder.

    A large one that is there already is left alone: an addition has copied it from there.
    """
    sizes, there = _sizes(path), _sizes(target)

    def place(name: str) -> None:
        source, copy = f"{absolute(path)}/{name}", f"{absolute(target)}/{name}"
        is_large = sizes[name] == there.get(name, -1) >= _COMPARED_BYTES
        if not is_large or stamp(source) != stamp(copy):
            link(source, copy)

    _all(place, list(sizes))
    _all(clients.delete_object, [f"{absolute(target)}/{name}" for name in there if name not in sizes])


def _sizes(folder: str) -> dict[str, int]:
    """The bytes of all objects below a folder, by their names there."""
    inside = f"{Place.of(folder).name}/"
    found = (info for info in clients.listed(folder, is_recursive=True) if info.type == pafs.FileType.File)
    return {info.path.removeprefix(inside): info.size or 0 for info in found}


def delete(path: str) -> None:
    """Delete an object, or all whose names begin with the folder's."""
    _LISTED.pop(absolute(path), None)
    place = Place.of(path)
    with asking(path):
        info = place.client.get_file_info(place.name)
        if info.type == pafs.FileType.File:
            place.client.delete_file(place.name)
        elif info.type == pafs.FileType.Directory and place.scheme == "s3":
            _delete_folder(path, place)
        # GCS has no such request, and Arrow's wants an object that stands for the folder
        elif info.type == pafs.FileType.Directory:
            _all(clients.delete_object, [*files_below(path), f"{absolute(path)}/"])


def _delete_folder(path: str, place: Place) -> None:
    """Delete objects, a thousand a request, the deepest folders first.

    Some stores are file systems, where a folder that is not empty stays.
    """
    folders = {place.name}
    for info in clients.listed(path, is_recursive=True):
        folder = info.path if info.type == pafs.FileType.Directory else info.path.rpartition("/")[0]
        while folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    for folder in sorted(folders, key=lambda folder: folder.count("/"), reverse=True):
        with suppress(FileNotFoundError):
            place.client.delete_dir(folder)


def delete_units(folders: Sequence[str], *, but: Sequence[str] = ()) -> None:
    """Marks first; one list a folder."""
    there = {folder: files_below(folder) for folder in folders}
    marks = [path for paths in there.values() for path in paths if path.endswith(".json")]
    for some in (
        [path for path in marks if path.endswith("/done.json")],
        [path for path in marks if not path.endswith("/done.json")],
    ):
        _all(clients.delete_object, some)
    for folder, paths in there.items():
        if but:
            _all(clients.delete_object, [path for path in paths if not whole_name(path).endswith((*but, ".json"))])
        elif paths:
            delete(folder)


def _all(work: Callable[[str], None], paths: Sequence[str]) -> None:
    for _ in each(work, paths):
        pass


def sweep(folder: str) -> None:
    """Complete the objects that were growing.

    An upload that never ended left no object; what it left in the store, the store's own rules delete.
    """
    for path in sorted({whole_name(path) for path in files_below(folder) if is_part(path)}):
        with growing(path):  # which begins with what a killed writer has left
            pass


@contextmanager
def temporary(folder: str) -> Iterator[None]:
    """A local folder that stands for the run's."""
    with local.temporary(str(local_copies.standing_for(folder, "temporary"))):
        yield


def local_file(path: str) -> str:
    """A path in the local folder."""
    place = local_copies.standing_for(path.rpartition("/")[0], "logs") / Path(path).name
    place.parent.mkdir(parents=True, exist_ok=True)
    return str(place)


def local_folder(folder: str) -> str:
    """A folder of this machine that stands for the run's."""
    return str(local_copies.standing_for(absolute(folder), "runs"))
