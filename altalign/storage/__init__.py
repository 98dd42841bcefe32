"""Files of runs and inputs behind one small interface: open, list, write whole, delete.

A path is local, or `s3://BUCKET/…` or `gs://BUCKET/…`. What is read alone may also be `https://…`, or `hf://…` on the
Hugging Face Hub. `local`, `objects` and `web` have the functions of the same names for each kind of path.

Paths are strings, relative ones to the working directory. A file appears whole when its `write` block ends well, or not
at all. The exceptions are `growing`: what came over the web, and the log of that. `move` is for changes of a finished
run alone, whose files were written whole elsewhere.
"""

import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar, cast

from altalign.errors import UnreadableError, UsageError
from altalign.storage import blocks, local
from altalign.storage.blocks import Block, Hashed, Written, noted
from altalign.storage.local import GrowingFile as Growing
from altalign.storage.local import full_disk, is_full_disk, is_partial
from altalign.storage.paths import (
    STORES,
    WEB,
    Stamp,
    absolute,
    folder_of,
    is_inside,
    is_of_web,
    is_remote,
    join,
    name,
    relative,
    resolved,
)

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

__all__ = [
    "Block",
    "Growing",
    "Hashed",
    "Stamp",
    "Written",
    "absolute",
    "folder_of",
    "full_disk",
    "is_full_disk",
    "is_inside",
    "is_of_web",
    "is_partial",
    "is_remote",
    "join",
    "name",
    "noted",
    "relative",
    "resolved",
]

Kind = Literal["file", "folder", "other", "missing"]
_PIECE_BYTES = 1 << 20  # of a file that is read from its first byte to its last: so much stays in a processor's cache
_SEAL = re.compile(rb',\n  "seal": "([0-9a-f]{64})"\n}\n\Z')  # SHA-256 of all bytes before it
_T = TypeVar("_T")
_R = TypeVar("_R")


def at(path: str) -> Any:
    """The module that has the functions for a path; that of the web only reads."""
    if not is_remote(path):
        return local
    if is_of_web(path):
        from altalign.storage import web

        return web
    from altalign.storage import objects  # Arrow, and a client: a third of a second that local runs need not wait for

    return objects


def _reader(path: str) -> Any:
    """The module that reads a file; stores and the web have one."""
    if not is_remote(path):
        return local
    from altalign.storage import reading

    return reading


# Names ---------------------------------------------------------------------------------------------------------------


def check(path: str) -> None:
    """Refuse a path that no run can have, and a store that does not answer or refuses access, by a UsageError."""
    if is_of_web(path):
        raise UsageError(f"{path}: inputs alone can be on the web; give a local path, s3://BUCKET/… or gs://BUCKET/…")
    check_input(path, "s3://BUCKET/… or gs://BUCKET/…")


def check_input(path: str, known: str = "s3://BUCKET/…, gs://BUCKET/…, https://… or hf://…") -> None:
    """The same for an input, which may also be on the web; `known` are the kinds of remote paths that may be given."""
    if "\0" in path:
        raise UsageError(f"{path!r}: a path with a zero byte; give another")
    if is_remote(path) and not path.startswith((*STORES, *WEB)):
        raise UsageError(f"{path}: no kind of storage that is known; give a local path, {known}")
    if is_remote(path):
        at(path).check(path)


# Reading -------------------------------------------------------------------------------------------------------------


def open_read(path: str) -> BinaryIO:
    """A seekable binary file."""
    return _reader(path).open_read(path) if is_remote(path) else Path(path).open("rb")


def open_again(path: str, file: BinaryIO) -> BinaryIO:
    """A second handle of an open file, with its own position, that shares what was read of a store; close it first."""
    return _reader(path).open_again(path, file)


def ask_for(path: str, file: BinaryIO, offset: int, length: int) -> None:
    """Begin to read a range of an open file in the background. Errors are raised when it is read."""
    _reader(path).ask_for(file, offset, length)


def read_range(path: str, offset: int, length: int) -> bytes:
    """`length` bytes from `offset`; fewer at the end of the file."""
    return next(read_ranges(path, [(offset, length)]))


def read_ranges(path: str, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """The bytes of each (offset, length) of one file; fewer at its end."""
    return _reader(path).read_ranges(path, ranges)


def read_pieces(path: str) -> Iterator[bytes]:
    """A file from its first byte to its last, in pieces; of one in a store some are asked for ahead."""
    return read_ranges(path, [(begin, _PIECE_BYTES) for begin in range(0, stamp(path).size, _PIECE_BYTES)])


def read_bytes(path: str) -> bytes:
    """A whole file."""
    return _reader(path).read_bytes(path) if is_remote(path) else Path(path).read_bytes()


def read_json(path: str) -> dict[str, Any]:
    """The object of a JSON file; empty where there is no file. UnreadableError where it is none."""
    try:
        return _object(path, read_bytes(path))
    except FileNotFoundError:
        return {}


def read_sealed(path: str) -> dict[str, Any]:
    """What `write_sealed` wrote; empty where there is no file. UnreadableError where a byte of it has changed."""
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        return {}
    seal = _SEAL.search(data)
    if seal is None or hashlib.sha256(memoryview(data)[: seal.start()]).hexdigest() != seal[1].decode():
        raise UnreadableError(f"{path}: not as it was written: its seal is of other bytes")
    value = _object(path, data)
    del value["seal"]
    return value


def _object(path: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnreadableError(f"{path}: not a JSON object but {value!r:.40}")
    return value


def in_arrow(path: str) -> "tuple[FileSystem, str]":
    """Arrow's file system for a path, and the path in that file system, for lazy scans."""
    if is_remote(path):
        return at(path).in_arrow(path)
    from pyarrow.fs import LocalFileSystem  # a tenth of a second, which most commands need not wait for

    return LocalFileSystem(), absolute(path)


def mappable(path: str) -> str:
    """A local file with the same bytes, to map into memory: itself, or a copy that this machine's processes share."""
    if not is_remote(path):
        return path
    if is_of_web(path):
        return at(path).mappable(path)
    return local.copied(path, stamp(path), lambda copy: copy.writelines(read_pieces(path)))


def each(work: Callable[[_T], _R], things: Iterable[_T], *, place: str) -> Iterator[_R]:
    """The result of `work` for each thing, in order: one after the other on a disk, many at a time in a store."""
    if not is_remote(place):
        return map(work, things)
    from altalign.storage import clients

    return clients.each(work, things)


# What is there -------------------------------------------------------------------------------------------------------


def kind(path: str) -> Kind:
    """What is at a path; links are followed. In a store, a folder is a common prefix of object names."""
    if is_remote(path):
        return at(path).kind(path)
    place = Path(path)
    return "folder" if place.is_dir() else "file" if place.is_file() else "other" if place.exists() else "missing"


def exists(path: str) -> bool:
    """Whether there is a whole file at `path`."""
    return at(path).exists(path) if is_remote(path) else Path(path).is_file()


def stamp(path: str) -> Stamp:
    """Size and time of a file; in a store, size and digest."""
    if is_remote(path):
        return at(path).stamp(path)
    status = os.stat(path)  # noqa: PTH116 - of a million files
    return Stamp(status.st_size, status.st_mtime_ns)


def names(folder: str, suffix: str = "") -> list[str]:
    """Sorted names of the whole files of a folder; none where there is no folder."""
    return at(folder).names(folder, suffix)


def entries(folder: str) -> list[str]:
    """Names of all that a folder has in it, folders too; none where there is no folder."""
    return at(folder).entries(folder)


def below(folder: str, name: str) -> list[str]:
    """Sorted paths of the files of a name (with folders before it: `plan/plan.json`) anywhere below a folder."""
    return sorted(path for path in files_below(folder) if path.endswith(f"/{name}"))


def files_below(folder: str) -> list[str]:
    """Paths of all files below a folder."""
    if is_remote(folder):
        return at(folder).files_below(folder)
    return [str(path) for path in Path(folder).rglob("*") if path.is_file()]


def find(pattern: str) -> list[str]:
    """Paths that match a glob, in which `**` stands for any folders.

    A path that exists as it is written matches itself, whatever brackets it has.
    """
    if is_remote(pattern):
        return at(pattern).find(pattern)
    # Path.glob refuses absolute patterns
    return [pattern] if Path(pattern).exists() else glob.glob(pattern, recursive=True)  # noqa: PTH207


def free_bytes(path: str) -> int | None:
    """Bytes free where `path` is, or will be; None where that cannot be known."""
    return None if is_remote(path) else shutil.disk_usage(local.existing(path)).free


def is_writable(folder: str) -> bool:
    """Whether this user may write there, as far as that can be told without trying."""
    return is_remote(folder) or os.access(folder, os.W_OK)


# Writing -------------------------------------------------------------------------------------------------------------


@contextmanager
def write(path: str, *, durable: bool = False, written: Callable[[], Written] | None = None) -> Iterator[BinaryIO]:
    """A binary file that appears at `path`, whole, once the block has ended well.

    With `durable` it then outlives a power cut. A caller who digests the bytes anyway gives size and digest by
    `written`, which is called after the last byte. FullDiskError where no space is left.
    """
    block = blocks.CURRENT.get()
    with at(path).write(path, durable=durable) as file:
        if block is None:
            yield file
        elif written is not None:
            yield file
            block.files[path] = written()
        else:
            hashed = Hashed(file, block.kind(path))
            yield cast(BinaryIO, hashed)
            block.files[path] = hashed.written


@contextmanager
def growing(path: str, *, keep: int | None = None) -> Iterator[Growing]:
    """A file to append to: the first `keep` bytes of what is there (None: all of it) stay.

    Whoever is killed may leave a part of the last write; in a store, all but what was added since it went there last.
    """
    with at(path).growing(path, keep=keep) as file:
        yield file
    if (block := blocks.CURRENT.get()) is not None:
        block.files[path] = None


def put_file(file: str, path: str) -> None:
    """A copy of a local file in a store, without another copy on the disk."""
    at(path).put_file(file, path)


def take_file(path: str, file: str) -> None:
    """The same the other way: a local file, whole, of one that is anywhere."""
    with local.write(file) as copy:
        copy.writelines(read_pieces(path))


def write_bytes(path: str, data: bytes, *, durable: bool = False) -> None:
    """A whole file at once."""
    with write(path, durable=durable) as file:
        file.write(data)


def write_json(path: str, value: object, *, durable: bool = False) -> None:
    """A JSON file, indented, in the order given."""
    write_bytes(path, _plain(value), durable=durable)


def write_sealed(path: str, value: Mapping[str, object], *, durable: bool = False) -> None:
    """The same with a seal, by which `read_sealed` knows that no byte has changed."""
    body = _plain(value)[: -len(b"\n}\n")]
    data = body + b',\n  "seal": "%b"\n}\n' % hashlib.sha256(body).hexdigest().encode()
    write_bytes(path, data, durable=durable)


def _plain(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def move(path: str, target: str) -> None:
    """Give a whole file another name, in the place of what has that name; in a store it is copied there, then deleted.

    Both are in one run. Whoever is killed leaves the file under its old name, its new one, or, in a store, both.
    """
    at(target).move(path, target)


def link(path: str, target: str) -> None:
    """Give a whole file one more name, in the place of what has that name; copied if it has to be, inside a store.

    Neither name may be written through afterwards: files are replaced, never changed.
    """
    at(target).link(path, target)


def move_folder(path: str, target: str) -> None:
    """Give a folder of units another name, over what has that name; may be done again after a kill.

    In a store the files are copied, and those of before stay.
    """
    if is_remote(target):
        at(target).move_folder(path, target)
    else:
        delete_units([target])
        local.move(path, target)


def sync(block: Block) -> None:
    """Have a disk keep what a block wrote and deleted, whatever happens to the power; a store keeps it anyway."""
    local.sync(block.files, {folder_of(path) for path in (*block.files, *block.deleted)})


def delete(path: str) -> None:
    """Delete a file, or a folder and all in it; nothing where there is none."""
    at(path).delete(path)
    if (block := blocks.CURRENT.get()) is not None:
        block.files.pop(path, None)
        block.deleted.add(path)


def delete_units(folders: Sequence[str], *, but: Sequence[str] = ()) -> None:
    """Delete folders of units so that whoever is killed on the way leaves no unit that seems finished and is not.

    First what says that a stage is done, then every mark of a unit, then the rest, each kept by the disk before the
    next begins; `but` names the endings of files that stay. All are of one store.
    """
    files = {folder: files_below(folder) for folder in folders}
    marks = [path for paths in files.values() for path in paths if path.endswith(".json")]
    _delete_files([path for path in marks if path.endswith("/done.json")])
    _delete_files([path for path in marks if not path.endswith("/done.json")])
    for folder in folders:
        if but:
            _delete_files([path for path in files[folder] if not path.endswith((*but, ".json"))])
        else:
            at(folder).delete(folder)
    local.sync((), map(folder_of, folders))


def _delete_files(paths: Sequence[str]) -> None:
    for _ in each(lambda path: at(path).delete_file(path), paths, place=next(iter(paths), "")):
        pass
    local.sync((), {folder_of(path) for path in paths})


def sweep(folder: str) -> None:
    """Delete what interrupted writes left under a folder; nobody else may be writing there."""
    at(folder).sweep(folder)


# A run as a whole ----------------------------------------------------------------------------------------------------


def _locks(folder: str) -> Any:
    """The module that has the lock on a run."""
    if not is_remote(folder):
        return local
    from altalign.storage import tickets

    return tickets


def locked(folder: str) -> AbstractContextManager[None]:
    """Hold a run folder against a second command, in a store on any machine; UsageError where another one holds it."""
    return _locks(folder).locked(folder)


def holder(folder: str) -> str | None:
    """The process that holds a run folder, and its machine where that is another; None where none does."""
    return _locks(folder).holder(folder)


def temporary(folder: str) -> AbstractContextManager[None]:
    """Use this folder, or the local one that stands for it, for temporary files of libraries and child processes.

    What a killed process has left there goes when the next one begins.
    """
    return local.temporary(local_folder(folder))


def local_folder(folder: str) -> str:
    """Where this machine keeps what a run maps into memory or appends to: in the run itself, if it is local.

    For a run in a store another folder stands for it, which may be deleted while no command is at work.
    """
    return at(folder).local_folder(folder) if is_remote(folder) else folder
