"""Files of runs and inputs behind one small interface: open, list, write whole, delete.

A path is local, or `s3://BUCKET/…` or `gs://BUCKET/…`. What is read alone may also be `https://…`, or `hf://…` on the
Hugging Face Hub.

Paths are strings, relative ones to the working directory. A file appears whole when its `write` block ends well, or not
at all. The exceptions are `growing`: what came over the web, and the log of that. `move` is for changes of a finished
run alone, whose files were written whole elsewhere.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar, cast

from altalign.errors import UnreadableError, UsageError
from altalign.storage import blocks, local, seals
from altalign.storage.blocks import Block, Hashed, Written
from altalign.storage.disk_errors import full_disk, is_forbidden, is_full_disk
from altalign.storage.local import is_partial
from altalign.storage.paths import STORES, WEB, folder_of, is_of_web, is_remote, join, name
from altalign.storage.stamp import Growing, Stamp

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

__all__ = [
    "Block",
    "Growing",
    "Hashed",
    "Stamp",
    "Written",
    "folder_of",
    "full_disk",
    "is_forbidden",
    "is_full_disk",
    "is_of_web",
    "is_partial",
    "is_remote",
    "join",
    "name",
]

Kind = Literal["file", "folder", "other", "missing"]
_PIECE_BYTES = 1 << 20  # of a file that is read from its first byte to its last: so much stays in a processor's cache
_T = TypeVar("_T")
_R = TypeVar("_R")


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


def check(path: str) -> None:
    """Refuse a path that no run can have, and a store that does not answer or refuses access.

    Raises:
        UsageError: saying what to do.
    """
    if is_of_web(path):
        raise UsageError(f"{path}: inputs alone can be on the web; give a local path, s3://BUCKET/… or gs://BUCKET/…")
    _check(path, "s3://BUCKET/… or gs://BUCKET/…")


def check_input(path: str) -> None:
    """The same for an input, which may also be on the web.

    Raises:
        UsageError: saying what to do.
    """
    _check(path, "s3://BUCKET/…, gs://BUCKET/…, https://… or hf://…")


def _check(path: str, known: str) -> None:
    if "\0" in path:
        raise UsageError(f"{path!r}: a path with a zero byte; give another")
    if is_remote(path) and not path.startswith((*STORES, *WEB)):
        raise UsageError(f"{path}: no kind of storage that is known; give a local path, {known}")
    if is_remote(path):
        _at(path).check(path)


def absolute(path: str) -> str:
    """The path from the root; links stay."""
    return _at(path).absolute(path)


def resolved(path: str) -> str:
    """The path from the root, wherever links lead."""
    return _at(path).resolved(path)


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
    """A second handle of an open file, with its own position.

    What one of the two has read of a store, the other need not ask for.
    """
    return _at(path).open_again(path, file)


def ask_for(path: str, file: BinaryIO, offset: int, length: int) -> None:
    """Begin to read a range of an open file in the background. Errors are raised when it is read."""
    _at(path).ask_for(file, offset, length)


def read_range(path: str, offset: int, length: int) -> bytes:
    """`length` bytes from `offset`; fewer at the end of the file."""
    return _at(path).read_range(path, offset, length)


def read_ranges(path: str, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """The bytes of each (offset, length) of one file; fewer at its end."""
    return _at(path).read_ranges(path, ranges)


def read_pieces(path: str) -> Iterator[bytes]:
    """A file from its first byte to its last, in pieces; of one in a store some are asked for ahead."""
    return read_ranges(path, [(begin, _PIECE_BYTES) for begin in range(0, stamp(path).size, _PIECE_BYTES)])


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


def read_sealed(path: str) -> dict[str, Any]:
    """What `write_sealed` wrote; empty where there is no file.

    Raises:
        UnreadableError: a byte of it is not as it was written.
    """
    try:
        value = seals.opened(read_bytes(path))
    except FileNotFoundError:
        return {}
    except ValueError:
        raise UnreadableError(f"{path}: not as it was written: its seal is of other bytes") from None
    return value


def in_arrow(path: str) -> "tuple[FileSystem, str]":
    """Arrow's file system for a path, and the path in that file system, for lazy scans."""
    return _at(path).in_arrow(path)


def mappable(path: str) -> str:
    """A local file with the same bytes, to map into memory.

    It is the file itself, or a copy that all processes of this machine share.
    """
    return _at(path).mappable(path)


def each(work: Callable[[_T], _R], things: Iterable[_T], *, of: str) -> Iterator[_R]:
    """The result of `work` for each thing, in order.

    One after the other where the files are on a disk, many at a time where `of` is in a store.
    """
    return _at(of).each(work, things)


# What is there -------------------------------------------------------------------------------------------------------


def kind(path: str) -> Kind:
    """What is at a path; links are followed. In a store, a folder is a common prefix of object names."""
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


@contextmanager
def write(path: str, *, durable: bool = False, found: Callable[[], Written] | None = None) -> Iterator[BinaryIO]:
    """A binary file that appears at `path`, whole, once the block has ended well.

    Args:
        path: where.
        durable: whether it then outlives a power cut.
        found: size and digest, asked after the last byte, of a caller who digests the bytes anyway.

    Raises:
        FullDiskError: no space is left.
    """
    block = blocks.current()
    with _at(path).write(path, durable=durable) as file:
        if block is None or found is not None:
            yield file
        else:
            hashed = Hashed(file, block.kind(path))
            yield cast(BinaryIO, hashed)
            found = lambda: hashed.written  # noqa: E731 - of the file that was just written
    if block is not None and found is not None:
        block.files[path] = found()


@contextmanager
def growing(path: str, *, keep: int | None = None) -> Iterator[Growing]:
    """A file to append to: the first `keep` bytes of what is there (None: all of it) stay.

    Whoever is killed may leave a part of the last write; in a store, all but what was added within the last seconds.

    Raises:
        FullDiskError: no space is left.
    """
    with _at(path).growing(path, keep=keep) as file:
        yield file
    if (block := blocks.current()) is not None:
        block.files[path] = None


def put_file(file: str, path: str) -> None:
    """A copy of a local file; in a store, without another copy on the disk."""
    _at(path).put_file(file, path)


def take_file(path: str, file: str) -> None:
    """The same the other way: a local file, whole, of one that is anywhere.

    Raises:
        FullDiskError: no space is left.
    """
    with local.write(file) as made:
        made.writelines(read_pieces(path))


def write_bytes(path: str, data: bytes, *, durable: bool = False) -> None:
    """A whole file at once."""
    with write(path, durable=durable) as file:
        file.write(data)


def write_json(path: str, value: object, *, durable: bool = False) -> None:
    """A JSON file, indented, in the order given."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode(), durable=durable)


def write_sealed(path: str, value: Mapping[str, object], *, durable: bool = False) -> None:
    """The same with a seal, by which `read_sealed` knows that no byte has changed."""
    write_bytes(path, seals.sealed(value), durable=durable)


def move(path: str, target: str) -> None:
    """Give a whole file another name, in the place of what has that name; in a store it is copied there, then deleted.

    Both are in one run. Whoever is killed leaves the file under its old name, its new one, or, in a store, both.
    """
    _at(target).move(path, target)


def link(path: str, target: str) -> None:
    """Give a whole file one more name, in the place of what has that name; copied if it has to be, inside a store.

    Neither name may be written through afterwards: files are replaced, never changed.
    """
    _at(target).link(path, target)


def move_folder(path: str, target: str) -> None:
    """Give a folder of units another name, in the place of what has that name.

    Whoever is killed may do it again. In a store the files are copied, and those of before stay.
    """
    _at(target).move_folder(path, target)


def noted(own: str = "") -> AbstractContextManager[Block]:
    """Note what this block writes and deletes in this thread: size and digest of each file.

    `own` is the folder of what a run hands on to itself alone: a quick digest is enough of that.
    """
    return blocks.entered(own)


def sync(block: Block) -> None:
    """Have a disk keep what a block wrote and deleted, whatever happens to the power; a store keeps it anyway."""
    files, deleted = ([path for path in paths if not is_remote(path)] for paths in (block.files, block.deleted))
    local.sync(files, {folder_of(path) for path in (*files, *deleted)})


def delete(path: str) -> None:
    """Delete a file, or a folder and all in it; nothing where there is none."""
    _at(path).delete(path)
    if (block := blocks.current()) is not None:
        block.files.pop(path, None)
        block.deleted.add(path)


def delete_units(folders: Sequence[str], *, but: Sequence[str] = ()) -> None:
    """Delete folders of units so that whoever is killed on the way leaves no unit that seems finished and is not.

    First what says that a stage is done, then every mark of a unit, then the rest; `but` names the endings of files
    that stay. All are of one store.
    """
    if folders:
        _at(folders[0]).delete_units(folders, but=but)


def sweep(folder: str) -> None:
    """Delete what interrupted writes left under a folder, and complete files that were growing.

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


def local_folder(folder: str) -> str:
    """The folder where this machine keeps what a run maps into memory or appends to: the run's own, if it is local.

    Of a run in a store it is one that stands for it, and may be deleted while no command is at work.
    """
    return _at(folder).local_folder(folder)
