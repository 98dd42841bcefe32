"""Files of runs and inputs behind one small interface: open, list, write whole, delete.

A path is local, or `s3://BUCKET/…` or `gs://BUCKET/…`. What is read alone may also be `https://…`, or `hf://…` on the
Hugging Face Hub.

Paths are strings, relative ones to the working directory. Nothing is ever renamed by a caller: a file appears whole
when its `write` block ends well, or not at all. The exceptions are `growing`: what came over the web, and the log of
that.
"""

import json
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar

from altalign.errors import UnreadableError, UsageError
from altalign.storage import local
from altalign.storage.local import full_disk, is_forbidden, is_full_disk, is_partial
from altalign.storage.stamp import Growing, Stamp

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

__all__ = ["Growing", "Stamp", "full_disk", "is_forbidden", "is_full_disk", "is_partial"]

Kind = Literal["file", "folder", "other", "missing"]
_SCHEMES = ("s3://", "gs://")
_WEB = ("https://", "http://", "hf://")
_T = TypeVar("_T")
_R = TypeVar("_R")


def is_remote(path: str) -> bool:
    """Whether a path is in an object store or on the web."""
    return "://" in path


def is_of_web(path: str) -> bool:
    """Whether a path is on a web server or on the Hugging Face Hub, where it can only be read."""
    return path.startswith(_WEB)


def _at(path: str) -> Any:  # one of three modules of the same functions, of which that of the web only reads
    if not is_remote(path):
        return local
    if is_of_web(path):
        from altalign.storage import web

        return web
    # Arrow, and a client of the store: a third of a second that local runs need not wait for
    from altalign.storage import objects

    return objects


# Names ---------------------------------------------------------------------------------------------------------------


def join(*parts: str) -> str:
    """A path of its parts."""
    return posixpath.join(*parts)


def check(path: str) -> None:
    """Refuse what cannot be the path of a run, and a store that does not answer or lets nobody in.

    Raises:
        UsageError: saying what to do.
    """
    if is_of_web(path):
        raise UsageError(f"{path}: inputs alone can be on the web; give a local path, s3://BUCKET/… or gs://BUCKET/…")
    _check(path, "s3://BUCKET/… or gs://BUCKET/…")


def check_input(path: str) -> None:
    """The same for what is only read, which may be on the web.

    Raises:
        UsageError: saying what to do.
    """
    _check(path, "s3://BUCKET/…, gs://BUCKET/…, https://… or hf://…")


def _check(path: str, known: str) -> None:
    if "\0" in path:
        raise UsageError(f"{path!r}: a path with a zero byte; give another")
    if is_remote(path) and not path.startswith((*_SCHEMES, *_WEB)):
        raise UsageError(f"{path}: no kind of storage that is known; give a local path, {known}")
    if is_remote(path):
        _at(path).check(path)


def absolute(path: str) -> str:
    """The path from the root; links stay."""
    return _at(path).absolute(path)


def resolved(path: str) -> str:
    """The path from the root, wherever links lead."""
    return _at(path).resolved(path)


def folder_of(path: str) -> str:
    """The folder that a path is in."""
    return path.rpartition("/")[0] if is_remote(path) else str(Path(path).parent)


def name(path: str) -> str:
    """The name of a file, of a URL without its query."""
    return PurePath(path.partition("?")[0] if is_of_web(path) else path).name


def relative(path: str, folder: str) -> str | None:
    """The path as seen from a folder that it is in, with `/`; None of one that is elsewhere.

    Links are not looked at.
    """
    return _relative(absolute(path), absolute(folder)) if is_remote(path) == is_remote(folder) else None


def is_inside(path: str, folder: str) -> bool:
    """Whether a path is a folder or in it, wherever links lead."""
    return is_remote(path) == is_remote(folder) and _relative(resolved(path), resolved(folder)) is not None


def _relative(path: str, folder: str) -> str | None:
    if path == folder:
        return "."
    inside = folder if folder.endswith("/") else f"{folder}/"
    return path.removeprefix(inside) if path.startswith(inside) else None


# Reading -------------------------------------------------------------------------------------------------------------


def open_read(path: str) -> BinaryIO:
    """A seekable binary file."""
    return _at(path).open_read(path)


def open_again(path: str, file: BinaryIO) -> BinaryIO:
    """A file that is open, a second time, with a position of its own.

    What one of the two has read of a store, the other need not ask for.
    """
    return _at(path).open_again(path, file)


def ask_for(path: str, file: BinaryIO, offset: int, length: int) -> None:
    """Have a disk or a store begin with what will be read of an open file; its trouble comes up when it is read."""
    _at(path).ask_for(file, offset, length)


def read_range(path: str, offset: int, length: int) -> bytes:
    """`length` bytes from `offset`; fewer at the end of the file."""
    return _at(path).read_range(path, offset, length)


def read_ranges(path: str, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """The bytes of each (offset, length) of one file; fewer at its end."""
    return _at(path).read_ranges(path, ranges)


def read_bytes(path: str) -> bytes:
    """A whole file."""
    return _at(path).read_bytes(path)


def read_json(path: str) -> dict[str, Any]:
    """A JSON file; empty where there is none.

    Raises:
        UnreadableError: it is no JSON, or no object.
    """
    try:
        value = json.loads(read_bytes(path))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnreadableError(f"{path}: not a JSON object but {value!r:.40}")
    return value


def in_arrow(path: str) -> "tuple[FileSystem, str]":
    """Arrow's file system of a path, and the path as that has it: for what scans files lazily."""
    return _at(path).in_arrow(path)


def mappable(path: str) -> str:
    """A local file of the same bytes, which can be mapped into memory.

    It is the file itself, or a copy that all processes of this machine share.
    """
    return _at(path).mappable(path)


def each(work: Callable[[_T], _R], things: Iterable[_T], *, of: str) -> Iterator[_R]:
    """What `work` gives for each thing, in order.

    One after the other where the files are on a disk, many at a time where `of` is in a store.
    """
    return _at(of).each(work, things)


# What is there -------------------------------------------------------------------------------------------------------


def kind(path: str) -> Kind:
    """What is at a path; links are followed. A folder of a store is what names of objects have in common."""
    return _at(path).kind(path)


def exists(path: str) -> bool:
    """Whether there is a whole file at `path`."""
    return _at(path).exists(path)


def stamp(path: str) -> Stamp:
    """Size and time of a file; in a store, size and digest."""
    return _at(path).stamp(path)


def stamps(paths: Sequence[str]) -> Iterator[Stamp]:
    """The stamps of many files, in order."""
    return each(stamp, paths, of=next(filter(is_remote, paths), ""))


def names(folder: str, suffix: str = "") -> list[str]:
    """Sorted names of the whole files of a folder; none where there is no folder."""
    return _at(folder).names(folder, suffix)


def entries(folder: str) -> list[str]:
    """Names of all that a folder has in it, folders too; none where there is no folder."""
    return _at(folder).entries(folder)


def below(folder: str, name: str) -> list[str]:
    """Sorted paths of the files of a name (with folders before it: `plan/plan.json`) anywhere below a folder."""
    return _at(folder).below(folder, name)


def files_below(folder: str) -> list[str]:
    """Paths of all files below a folder."""
    return _at(folder).files_below(folder)


def find(pattern: str) -> list[str]:
    """Paths that match a glob, in which `**` stands for any folders.

    A path that exists as it is written matches itself, whatever brackets it has.
    """
    return _at(pattern).find(pattern)


def free_bytes(path: str) -> int | None:
    """Bytes free where `path` is, or will be; None where that cannot be known."""
    return _at(path).free_bytes(path)


def is_writable(folder: str) -> bool:
    """Whether this user may write there, as far as that can be told without trying."""
    return _at(folder).is_writable(folder)


# Writing -------------------------------------------------------------------------------------------------------------


def write(path: str) -> AbstractContextManager[BinaryIO]:
    """A binary file that is at `path`, whole, once the block ended well.

    Raises:
        FullDiskError: no space is left.
    """
    return _at(path).write(path)


def growing(path: str, *, keep: int | None = None) -> AbstractContextManager[Growing]:
    """A file to be added to: the first `keep` bytes of what is there (None: all of it) stay.

    Whoever is killed may leave a part of the last write; in a store, all but what was added within the last seconds.

    Raises:
        FullDiskError: no space is left.
    """
    return _at(path).growing(path, keep=keep)


def write_bytes(path: str, data: bytes) -> None:
    """A whole file at once."""
    with write(path) as file:
        file.write(data)


def write_json(path: str, value: object) -> None:
    """A JSON file, indented, in the order given."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def delete(path: str) -> None:
    """Delete a file, or a folder and all in it; nothing where there is none."""
    _at(path).delete(path)


def delete_units(folders: Sequence[str], *, but: Sequence[str] = ()) -> None:
    """Delete folders of units so that whoever is killed on the way leaves no unit that seems finished and is not.

    First what says that a stage is done, then every mark of a unit, then the rest; `but` names the endings of files
    that stay. All are of one store.
    """
    if folders:
        _at(folders[0]).delete_units(folders, but=but)


def sweep(folder: str) -> None:
    """Delete what writes that never ended have left under a folder, and make whole what grew.

    Nobody else may be writing there.
    """
    _at(folder).sweep(folder)


# A run as a whole ----------------------------------------------------------------------------------------------------


def locked(folder: str) -> AbstractContextManager[None]:
    """Hold a run folder against a second command: on this machine; in a store, on any.

    Raises:
        UsageError: another one holds it, or nobody may write there.
    """
    return _at(folder).locked(folder)


def holder(folder: str) -> str | None:
    """The process that holds a run folder, and its machine where that is another; None where none does."""
    return _at(folder).holder(folder)


def temporary(folder: str) -> AbstractContextManager[None]:
    """Use this folder instead of the system's for temporary files of libraries and child processes, in this block.

    A killed process cannot delete what it left there; the next one does. Of a folder in a store it is one on this
    machine that stands for it.
    """
    return _at(folder).temporary(folder)


def local_file(path: str) -> str:
    """The local path where another program writes a file of a run.

    For a run in a store, it is a place of this machine that stands for it.
    """
    return _at(path).local_file(path)
