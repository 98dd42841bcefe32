"""Files of runs and inputs behind one small interface: open, list, write whole, delete.

A path is local, or `s3://BUCKET/…` or `gs://BUCKET/…`. What is read alone may also be `https://…`, or `hf://…` on the
Hugging Face Hub. Modules have functions of the same names for each kind of path; `local` says what each promises.

Paths are strings, relative ones to the working directory. A file appears whole when its `write` block ends well, or not
at all. The exceptions are `growing`: what came over the web, and the log of that. `move` is for changes of a finished
run alone, whose files were written whole elsewhere.
"""
# ruff: noqa: F401 - names that callers use by way of this module

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from altalign.errors import UnreadableError, UsageError
from altalign.storage import blocks, local
from altalign.storage.blocks import Block, Hashed, Written, noted
from altalign.storage.local import GrowingFile as Growing
from altalign.storage.local import free_bytes, full_disk, is_full_disk, is_partial
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

_PIECE_BYTES = 1 << 20  # of a file that is read from its first byte to its last: so much stays in a processor's cache
_SEAL = re.compile(rb',\n  "seal": "([0-9a-f]{64})"\n}\n\Z')  # SHA-256 of all bytes before it
_SEAL_BYTES = 128  # at most
_T = TypeVar("_T")
_R = TypeVar("_R")
_F = TypeVar("_F", bound=Callable[..., Any])


def at(path: str, remote: str = "") -> Any:
    """The module for a path. `remote`: of one that is not local; by default `objects`, or `web`, which only reads.

    They import Arrow and clients, a third of a second that local runs need not wait for.
    """
    if not is_remote(path):
        return local
    return import_module(f"{__name__}.{remote or ('web' if is_of_web(path) else 'objects')}")


def _everywhere(on_a_disk: _F, remote: str = "") -> _F:
    """A function of `local`, and for other paths that of its name in their module."""

    @wraps(on_a_disk)
    def function(path: str, *more: Any, **named: Any) -> Any:
        return getattr(at(path, remote), on_a_disk.__name__)(path, *more, **named)

    return cast(_F, function)


kind, exists, stamp = _everywhere(local.kind), _everywhere(local.exists), _everywhere(local.stamp)
names, entries, sizes = _everywhere(local.names), _everywhere(local.entries), _everywhere(local.sizes)
files_below, find = _everywhere(local.files_below), _everywhere(local.find)
in_arrow, local_folder = _everywhere(local.in_arrow), _everywhere(local.local_folder)
open_read, open_again = _everywhere(local.open_read, "reading"), _everywhere(local.open_again, "reading")
ask_for = _everywhere(local.ask_for, "reading")
read_bytes, read_ranges = _everywhere(local.read_bytes, "reading"), _everywhere(local.read_ranges, "reading")
move, link = _everywhere(local.move), _everywhere(local.link)
delete_file, sweep = _everywhere(local.delete_file), _everywhere(local.sweep)
emptied = _everywhere(local.emptied)
locked, holder = _everywhere(local.locked, "tickets"), _everywhere(local.holder, "tickets")


def check(path: str) -> None:
    """Refuse a path that no run can have, and a store that does not answer or refuses access, by a UsageError."""
    if is_of_web(path):
        raise UsageError(f"{path}: inputs alone can be on the web; give a local path, s3://BUCKET/… or gs://BUCKET/…")
    check_input(path, "s3://BUCKET/… or gs://BUCKET/…")


def check_input(path: str, known: str = "s3://BUCKET/…, gs://BUCKET/…, https://… or hf://…") -> None:
    """The same for an input, which may also be on the web; `known` are the kinds of remote paths that may be given."""
    if "\0" in path:
        raise UsageError(f"{path!r}: a path with a zero byte; give another")
    if is_remote(path):
        if not path.startswith((*STORES, *WEB)):
            raise UsageError(f"{path}: no kind of storage that is known; give a local path, {known}")
        at(path).check(path)


# Reading -------------------------------------------------------------------------------------------------------------


def read_range(path: str, offset: int, length: int) -> bytes:
    """`length` bytes from `offset`; fewer at the end of the file."""
    return next(read_ranges(path, [(offset, length)]))


def read_pieces(path: str) -> Iterator[bytes]:
    """A file from its first byte to its last, in pieces; of one in a store some are asked for ahead."""
    return read_ranges(path, [(begin, _PIECE_BYTES) for begin in range(0, stamp(path).size, _PIECE_BYTES)])


def read_json(path: str) -> dict[str, Any]:
    """The object of a JSON file; empty where there is no file. UnreadableError where it is none."""
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
    """What `write_sealed` wrote; empty where there is no file. UnreadableError where a byte of it has changed."""
    try:
        return json.loads(read_sealed_bytes(path) + b"}")
    except FileNotFoundError:
        return {}


def read_sealed_bytes(path: str) -> bytes:
    """The same as it lies there, from its bracket to the seal, which has the last one."""
    data = read_bytes(path)
    seal = _SEAL.search(data, max(0, len(data) - _SEAL_BYTES))
    if seal is None or hashlib.sha256(memoryview(data)[: seal.start()]).hexdigest() != seal[1].decode():
        raise UnreadableError(f"{path}: not as it was written: its seal is of other bytes")
    return data[: seal.start()]


def mappable(path: str) -> str:
    """A local file with the same bytes, to map into memory: itself, or a copy that this machine's processes share."""
    if not is_remote(path):
        return path
    return local.copied(path, stamp(path), lambda copy: copy.writelines(read_pieces(path)))


def each(work: Callable[[_T], _R], things: Iterable[_T], *, place: str) -> Iterator[_R]:
    """The result of `work` for each thing, in order: one after the other on a disk, many at a time in a store."""
    return at(place, "clients").each(work, things) if is_remote(place) else map(work, things)


def below(folder: str, file: str) -> list[str]:
    """Sorted paths of the files of a name (with folders before it: `plan/plan.json`) anywhere below a folder."""
    return sorted(path for path in files_below(folder) if path.endswith(f"/{file}"))


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
        if block is None or written is not None:
            yield file
        else:
            hashed = Hashed(file, block.kind(path))
            yield cast(BinaryIO, hashed)
            block.files[path] = hashed.written
        if block is not None and written is not None:
            block.files[path] = written()


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
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode(), durable=durable)


def write_sealed(path: str, value: Mapping[str, object], *, durable: bool = False) -> None:
    """The same with a seal, by which `read_sealed` knows that no byte has changed."""
    write_sealed_bytes(path, json.dumps(value, indent=2, ensure_ascii=False).encode(), durable=durable)


def write_sealed_bytes(path: str, data: bytes, *, durable: bool = False) -> None:
    """The same of a JSON object, which ends in a line with its bracket alone."""
    body = data.removesuffix(b"\n}")
    data = body + b',\n  "seal": "%b"\n}\n' % hashlib.sha256(body).hexdigest().encode()
    write_bytes(path, data, durable=durable)


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
    local.sync({*block.files, *map(folder_of, (*block.files, *block.deleted))})


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

    def delete_files(paths: list[str]) -> None:
        for _ in each(delete_file, paths, place=next(iter(paths), "")):
            pass
        local.sync(set(map(folder_of, paths)))

    files = {folder: files_below(folder) for folder in folders}
    marks = [path for paths in files.values() for path in paths if path.endswith(".json")]
    delete_files([path for path in marks if path.endswith("/done.json")])
    delete_files([path for path in marks if not path.endswith("/done.json")])
    for folder in folders:
        if but:
            delete_files([path for path in files[folder] if not path.endswith((*but, ".json"))])
        else:
            at(folder).delete(folder)
    local.sync(map(folder_of, folders))


def discard(paths: Sequence[str], folder: str) -> None:
    """Take files and folders away, each whole and kept by the disk before the next, however many files they have.

    On a disk they move to `folder`, which `emptied` empties. A store has no such move, and deletes them
    (`delete_units`).
    """
    delete_units([path for path in paths if is_remote(path) or not local.discard(path, folder)])


@contextmanager
def temporary(folder: str) -> Iterator[None]:
    """Use this folder, or the local one that stands for it, for temporary files of libraries and child processes.

    What a killed process has left there goes when the next one begins.
    """
    import tempfile  # a hundredth of a second, which other commands need not wait for

    place = Path(local_folder(folder)).absolute()
    local.delete(str(place))
    place.mkdir(parents=True)
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = str(place)
    try:
        yield
    finally:
        tempfile.tempdir = before[0]
        os.environ.pop("TMPDIR")
        os.environ |= {"TMPDIR": before[1]} if before[1] is not None else {}
        shutil.rmtree(place, ignore_errors=True)
