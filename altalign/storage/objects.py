"""Files in object stores by `pyarrow.fs`, behind the face of `altalign.storage`. How objects are asked for: ADR 12.

Nothing is streamed to a store: Arrow's stream makes an object of what it was given so far, whatever error ends it. An
object is handed over whole, by one call in a thread that no signal interrupts.
"""

import mmap
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, Literal, cast

import pyarrow as pa
import pyarrow.fs as pafs

from altalign.errors import StoreError, UsageError
from altalign.storage import clients, local
from altalign.storage.clients import asking, client, each, threads
from altalign.storage.paths import Place, Stamp, absolute

_Kind = Literal["file", "folder", "missing"]

ONE_REQUEST_BYTES = 5 << 20  # what is larger waits in a temporary file, and goes over in parts, several at a time
# such uploads: in S3 each has several parts under way, and two keep all of Arrow's 8 threads busy
_LARGE_AT_ONCE = {"s3": 2, "gs": 8}
_COPIED_BYTES = 40 << 20  # of an upload at a time: Arrow copies each of its parts, of 10 MB, before it sends them
_COPIED_BYTES_AT_MOST = 5 << 30  # of S3's request CopyObject
SENT_EVERY_S, SENT_WITHIN_S = 5.0, 60.0  # a growing file
LEASE_S = 120.0  # of a ticket
_KNOWN_FOR_S = 60.0

# what a glob has just met, so that nobody asks for each of its files again
_LISTED: dict[str, tuple[float, _Kind]] = {}
# when the ticket of each run folder that this process holds was written last
HELD: dict[str, float] = {}


# What is there -------------------------------------------------------------------------------------------------------


class OpenObject:
    """An object for reads at any offset, by several threads at once; `size` in bytes."""

    def __init__(self, path: str):
        place = Place.parse(path)
        with asking(path):
            self.file: Any = client(place).open_input_file(place.name)  # a NativeFile, of which the stubs know little
            self.path, self.size = path, cast(int, self.file.size())

    def read_at(self, offset: int, length: int) -> bytes:
        """Bytes from an offset; fewer at the end, where GCS answers with an error."""
        length = min(length, self.size - offset)
        with asking(self.path):
            return self.file.read_at(length, offset) if length > 0 else b""


def get(path: str) -> bytes:
    """A whole object."""
    file = OpenObject(path)
    return file.read_at(0, file.size)


def in_arrow(path: str) -> tuple[pafs.FileSystem, str]:
    place = Place.parse(path)
    return client(place), place.name


def kind(path: str) -> _Kind:
    place = Place.parse(path)
    listed_at, known = _LISTED.get(absolute(path), (0.0, None))
    if known and time.monotonic() - listed_at < _KNOWN_FOR_S:
        return known
    if not place.key:
        return "folder"
    with asking(path):
        return _kind_of(client(place).get_file_info(place.name))


def _kind_of(info: pafs.FileInfo) -> _Kind:
    return "folder" if info.type == pafs.FileType.Directory else "file" if info.is_file else "missing"


def exists(path: str) -> bool:
    """One request, where `kind` may take two."""
    try:
        OpenObject(path)
    except FileNotFoundError:
        return False
    return True


def stamp(path: str) -> Stamp:
    """Size and ETag."""
    opened, place = OpenObject(path), Place.parse(path)
    with asking(path):
        headers: dict[str, bytes] = {name.lower(): value for name, value in opened.file.metadata().items()}
        if digest := headers.get("etag", b"").decode("utf-8", "replace").strip('"'):
            return Stamp(opened.size, 0, digest)
        return Stamp(opened.size, client(place).get_file_info(place.name).mtime_ns or 0)


def listed(folder: str, *, is_recursive: bool) -> list[pafs.FileInfo]:
    """What is in a folder, or below it: one request for a thousand objects. Empty where there is none."""
    place = Place.parse(folder)
    with asking(folder):
        return client(place).get_file_info(pafs.FileSelector(place.name, recursive=is_recursive, allow_not_found=True))


def names(folder: str, suffix: str = "") -> list[str]:
    infos = listed(folder, is_recursive=False)
    return sorted(info.base_name for info in infos if info.is_file and info.base_name.endswith(suffix))


def sizes(folder: str) -> dict[str, int]:
    return {info.base_name: info.size for info in listed(folder, is_recursive=False) if info.is_file}


def entries(folder: str) -> list[str]:
    """In GCS from a list of all below: Arrow's list of one folder leaves folders out there."""
    place = Place.parse(folder)
    infos = listed(folder, is_recursive=place.scheme == "gs")
    return sorted({info.path.removeprefix(f"{place.name}/").partition("/")[0] for info in infos})


def files_below(folder: str) -> list[str]:
    scheme = Place.parse(folder).scheme
    return [f"{scheme}://{info.path}" for info in listed(folder, is_recursive=True) if info.is_file]


def find(pattern: str) -> list[str]:
    """What a glob matches, by one list of the folder that its plain part names."""
    if kind(pattern) != "missing":
        return [pattern]
    scheme, _, inside = absolute(pattern).partition("://")
    parts = inside.split("/")
    plain = next((number for number, part in enumerate(parts) if re.search(r"[*?[]", part)), len(parts))
    if plain == len(parts):
        return []
    from fsspec.utils import glob_translate

    is_deep = plain < len(parts) - 1 or "**" in parts or scheme == "gs"  # Arrow's list of one GCS folder has no folders
    kinds: dict[str, _Kind] = {}
    for info in listed(f"{scheme}://{'/'.join(parts[:plain])}", is_recursive=is_deep):
        kinds |= dict.fromkeys((str(folder) for folder in PurePosixPath(info.path).parents), "folder")
        kinds[info.path] = _kind_of(info)
    # as in the module glob, `**` within a name is `*`, and only a point matches a leading point
    rest = [part if part == "**" else re.sub(r"\*+", "*", part) for part in parts[plain:]]
    pattern, has_hidden = glob_translate("/".join(rest)), any(part.startswith(".") for part in rest)
    hits = []
    for name, kind_of_name in kinds.items():
        below = name.split("/")[plain:]
        is_hidden = any(part.startswith(".") for part in below)
        if below and re.match(pattern, "/".join(below)) and (has_hidden or not is_hidden):
            hits.append(f"{scheme}://{name}")
            _LISTED[hits[-1]] = time.monotonic(), kind_of_name
    return sorted(hits)


def check(path: str) -> None:
    """See whether the store answers and lets us in."""
    place = Place.parse(path)
    if re.search(r"[*?[]", place.bucket):
        raise UsageError(f"{path}: the name of a bucket is no glob; give it in full")
    try:
        clients.probe(place)
    except (OSError, pa.ArrowException) as error:
        raise UsageError(str(clients.trouble(error, path))) from error


# Writing -------------------------------------------------------------------------------------------------------------


@contextmanager
def write(path: str, *, durable: bool = False) -> Iterator[BinaryIO]:  # noqa: ARG001 - a store keeps what it took
    """An object that is uploaded once the block has ended well.

    Until then its bytes are in memory, or in a temporary file where they are many.
    """
    with tempfile.SpooledTemporaryFile(ONE_REQUEST_BYTES) as file:
        with local.naming_a_full_disk(tempfile.gettempdir(), path.rpartition("/")[2]):
            yield cast(BinaryIO, file)
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        upload(path, _mapped(file, size) if size > ONE_REQUEST_BYTES else file.read())


def put_file(file: str, path: str) -> None:
    with Path(file).open("rb") as original:
        upload(path, _mapped(original, os.fstat(original.fileno()).st_size))


def _mapped(file: IO[bytes], size: int) -> Any:
    """So many bytes of a local file, of which a large one is not read into memory."""
    file.flush()
    return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""


def upload(path: str, data: Any) -> None:
    """Make an object of these bytes (any buffer), whole or not at all, whatever happens to the waiting thread."""
    buffer, place = pa.py_buffer(data), Place.parse(path)
    is_large = buffer.size > ONE_REQUEST_BYTES
    own = threads(f"large-uploads-{place.scheme}", _LARGE_AT_ONCE[place.scheme]) if is_large else threads("uploads")
    _LISTED.pop(path, None)

    def begin() -> None:
        _check_held(path)  # large uploads wait for one another
        _put(place, buffer)

    with asking(path):
        uploading = own.submit(begin)
        try:
            uploading.result()
        finally:
            uploading.cancel()  # where it has not begun, and nobody waits for it


def _check_held(path: str) -> None:
    """Refuse to write to a run whose ticket others may consider expired."""
    for folder, written in list(HELD.items()):
        if path.startswith(f"{folder}/") and time.monotonic() - written > LEASE_S:
            raise StoreError(
                f"{folder}: held no longer: the store was not reached for {time.monotonic() - written:.0f} s, and "
                "another command may be at work; run the same command again, it continues"
            )


def _put(place: Place, data: pa.Buffer) -> None:
    """One request, or an upload in parts, after which the store is asked how many bytes it has."""
    is_large = data.size > ONE_REQUEST_BYTES
    # else by the name: what ends in .gz would be compressed
    stream = client(place, in_parts=is_large).open_output_stream(place.name, compression=None)
    try:
        for begin in range(0, data.size, _COPIED_BYTES):
            stream.write(data.slice(begin, min(_COPIED_BYTES, data.size - begin)))
            stream.flush()  # waits for the parts that are under way
    except BaseException:
        with suppress(OSError, pa.ArrowException):
            stream.close()  # repeats the error of a part, and makes no object
            client(place).delete_file(place.name)  # after another error it made one, of what it was given so far
        raise
    stream.close()
    if is_large and (arrived := client(place).get_file_info(place.name).size) != data.size:
        client(place).delete_file(place.name)
        raise OSError(f"{arrived} bytes arrived of {data.size}")


class GrowingObject(local.GrowingFile):
    """A file that grows in a store, which cannot append: bytes wait in a local file, and all of it goes up anew.

    That is 5 seconds after the last time, or ten times as long as it took, a minute at most; a kill loses the rest.
    """

    def __init__(self, path: str, file: IO[bytes], size: int):
        super().__init__(file.fileno(), Path(tempfile.gettempdir(), path.rpartition("/")[2]), size)
        self._path, self._whole, self._sent = path, file, size
        self._lock = threading.Lock()
        self._due_s = time.monotonic() + SENT_EVERY_S
        self._sending: Future[None] | None = None

    def write(self, data: bytes) -> None:
        """Add bytes."""
        with self._lock:
            super().write(data)
            if time.monotonic() >= self._due_s and (self._sending is None or self._sending.done()):
                if self._sending is not None:
                    self._sending.result()
                self._sending = threads("growing").submit(self.send, self.bytes)

    def send(self, size: int) -> None:
        """Upload so many bytes of it."""
        begun = time.monotonic()
        upload(self._path, _mapped(self._whole, size))
        self._sent = size
        self._due_s = time.monotonic() + min(max(SENT_EVERY_S, 10 * (time.monotonic() - begun)), SENT_WITHIN_S)

    def finish(self) -> None:
        """Upload what has come since the last time."""
        if self._sending is not None:
            wait([self._sending])  # where it failed, all of it is sent once more
        if self.bytes != self._sent:
            self.send(self.bytes)


@contextmanager
def growing(path: str, *, keep: int | None = None) -> Iterator[GrowingObject]:
    with tempfile.TemporaryFile() as file:
        with suppress(FileNotFoundError):
            file.write(get(path))
        before = file.tell()
        size = file.truncate(before if keep is None else min(keep, before))
        file.seek(size)
        grown = GrowingObject(path, file, size)
        if size != before or not before:
            grown.send(size)
        try:
            yield grown
        finally:
            grown.finish()


def move(path: str, target: str) -> None:
    link(path, target)
    delete_file(path)


def link(path: str, target: str) -> None:
    """Copy an object inside the store; S3 does not copy the largest ones, which come through this machine."""
    _check_held(target)
    _LISTED.pop(target, None)
    with asking(target):
        try:
            client(Place.parse(target)).copy_file(Place.parse(path).name, Place.parse(target).name)
            return
        except OSError:
            if (original := OpenObject(path)).size <= _COPIED_BYTES_AT_MOST:
                raise
    with asking(path), write(target) as copy:
        shutil.copyfileobj(original.file, copy, 8 << 20)


def move_folder(path: str, target: str) -> None:
    source, copy = absolute(path), absolute(target)
    names = [file.removeprefix(f"{source}/") for file in files_below(path)]
    list(each(lambda name: link(f"{source}/{name}", f"{copy}/{name}"), names))
    list(each(delete_file, sorted({*files_below(target)} - {f"{copy}/{name}" for name in names})))


def delete_file(path: str) -> None:
    place = Place.parse(path)
    with asking(path), suppress(FileNotFoundError):
        client(place).delete_file(place.name)


def delete(path: str) -> None:
    _LISTED.pop(absolute(path), None)
    place = Place.parse(path)
    with asking(path):
        info = client(place).get_file_info(place.name)
        if info.is_file:
            client(place).delete_file(place.name)
        # GCS has no request for a folder, and Arrow's wants an object that stands for it
        elif info.type == pafs.FileType.Directory and place.scheme == "gs":
            list(each(delete_file, [*files_below(path), f"{absolute(path)}/"]))
        # S3 deletes a thousand objects a request. Some stores are file systems, where a folder that is not empty stays
        elif info.type == pafs.FileType.Directory:
            folders = [each.path for each in listed(path, is_recursive=True) if not each.is_file]
            for folder in sorted([place.name, *folders], key=lambda folder: folder.count("/"), reverse=True):
                with suppress(FileNotFoundError):
                    client(place).delete_dir(folder)


def sweep(_: str) -> None:
    """An upload that never ended left no object; what it left in the store, the store's own rules delete."""


emptied = nullcontext  # a store deletes at once


def local_folder(folder: str) -> str:
    return str(local.standing_for(absolute(folder), "runs"))
