"""Files in object stores, behind the face of `altalign.storage`, which says what each function promises.

How objects are asked for: ADR 12.
"""

import fnmatch
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Literal, cast

import pyarrow.fs as pafs

from altalign.storage import clients, disk_errors, local_copies, locks
from altalign.storage.clients import asking, check, each
from altalign.storage.clients import delete_object as delete_file
from altalign.storage.growing_objects import growing
from altalign.storage.locks import holder, locked
from altalign.storage.paths import Place, absolute, whole_name
from altalign.storage.reading import open_read, read_ranges
from altalign.storage.stamp import Stamp

__all__ = ["check", "delete_file", "growing", "holder", "locked"]

_COPIED_AT_ONCE_BYTES = 8 << 20
_COMPARED_BYTES = 1 << 20  # of an object that may be there already: a smaller one is as soon copied as looked at
_COPIED_BYTES_AT_MOST = 5 << 30  # of S3's request CopyObject
_KNOWN_FOR_S = 60.0
_MAGIC = re.compile(r"[*?[]")

_Kind = Literal["file", "folder", "missing"]
# what a glob has just met, so that nobody asks for each of its files again
_LISTED: dict[str, tuple[float, _Kind]] = {}


def in_arrow(path: str) -> tuple[pafs.FileSystem, str]:
    """The client of its bucket."""
    place = Place.of(path)
    return clients.client(place), place.name


def mappable(path: str) -> str:
    """A local copy."""
    version = stamp(path)
    pieces = [(begin, _COPIED_AT_ONCE_BYTES) for begin in range(0, version.size, _COPIED_AT_ONCE_BYTES)]
    return local_copies.copy(path, version, lambda copy: copy.writelines(read_ranges(path, pieces)))


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
        return _KINDS[clients.client(place).get_file_info(place.name).type]


_KINDS: dict[pafs.FileType, _Kind] = {
    pafs.FileType.File: "file",
    pafs.FileType.Directory: "folder",
    pafs.FileType.NotFound: "missing",
    pafs.FileType.Unknown: "missing",
}


def exists(path: str) -> bool:
    """Whether there is an object: one request, where `kind` may take two."""
    try:
        clients.OpenObject(path)
    except FileNotFoundError:
        return False
    return True


def stamp(path: str) -> Stamp:
    """Size and ETag."""
    opened, place = clients.OpenObject(path), Place.of(path)
    with asking(path):
        headers: dict[str, bytes] = {name.lower(): value for name, value in opened.file.metadata().items()}
        if digest := headers.get("etag", b"").decode("utf-8", "replace").strip('"'):
            return Stamp(opened.size, 0, digest)
        return Stamp(opened.size, clients.client(place).get_file_info(place.name).mtime_ns or 0)


def names(folder: str, suffix: str = "") -> list[str]:
    """Names of the objects of a folder."""
    infos = clients.listed(folder, is_recursive=False)
    names = [info.base_name for info in infos if info.type == pafs.FileType.File]
    return sorted(name for name in names if name.endswith(suffix) and name == whole_name(name))


def entries(folder: str) -> list[str]:
    """Names of objects and folders, from a list of all below: Arrow's list of one GCS folder leaves folders out."""
    inside = f"{Place.of(folder).name}/"
    infos = clients.listed(folder, is_recursive=True)
    return sorted({info.path.removeprefix(inside).partition("/")[0] for info in infos})


def files_below(folder: str) -> list[str]:
    """Paths of all objects below a folder: one request for a thousand."""
    return [f"{absolute(folder)}/{name}" for name in _sizes(folder)]


def _sizes(folder: str) -> dict[str, int]:
    """The bytes of all objects below a folder, by their names there."""
    inside = f"{Place.of(folder).name}/"
    infos = clients.listed(folder, is_recursive=True)
    return {info.path.removeprefix(inside): info.size or 0 for info in infos if info.type == pafs.FileType.File}


def find(pattern: str) -> list[str]:
    """What a glob matches, by one list of the folder that its plain part names."""
    parts = absolute(pattern).partition("://")[2].split("/")
    plain = next((number for number, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    if kind(pattern) != "missing":
        return [pattern]
    if plain == len(parts):
        return []
    scheme = Place.of(pattern).scheme
    is_deep = plain < len(parts) - 1 or "**" in parts or scheme == "gs"  # Arrow's list of one GCS folder has no folders
    infos = clients.listed(f"{scheme}://{'/'.join(parts[:plain])}", is_recursive=is_deep)
    kinds: dict[str, _Kind] = {}
    if scheme == "gs":
        kinds = dict.fromkeys((str(folder) for info in infos for folder in PurePosixPath(info.path).parents), "folder")
    kinds |= {info.path: _KINDS[info.type] for info in infos}
    found = []
    for name, kind_of_name in kinds.items():
        if _matches(name.split("/")[plain:], parts[plain:]):
            path = f"{scheme}://{name}"
            _LISTED[path] = time.monotonic(), kind_of_name
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
            clients.client(Place.of(target)).copy_file(Place.of(path).name, Place.of(target).name)
            return
        except OSError:
            if stamp(path).size <= _COPIED_BYTES_AT_MOST:
                raise
    with open_read(path) as file, write(target) as copy:
        shutil.copyfileobj(file, copy, _COPIED_AT_ONCE_BYTES)


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


def delete(path: str) -> None:
    """Delete an object, or all whose names begin with the folder's."""
    _LISTED.pop(absolute(path), None)
    place = Place.of(path)
    with asking(path):
        info = clients.client(place).get_file_info(place.name)
        if info.type == pafs.FileType.File:
            clients.client(place).delete_file(place.name)
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
            clients.client(place).delete_dir(folder)


def _all(work: Callable[[str], None], paths: Sequence[str]) -> None:
    for _ in each(work, paths):
        pass


def sweep(folder: str) -> None:
    """Complete the objects that were growing.

    An upload that never ended left no object; what it left in the store, the store's own rules delete.
    """
    for path in sorted({whole_name(path) for path in files_below(folder) if whole_name(path) != path}):
        with growing(path):  # which begins with what a killed writer has left
            pass


def local_folder(folder: str) -> str:
    """A folder of this machine that stands for the run's."""
    return str(local_copies.standing_for(absolute(folder), "runs"))
