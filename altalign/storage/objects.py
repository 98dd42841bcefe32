"""Files in object stores by `pyarrow.fs`, behind the face of `altalign.storage`. How objects are asked for: ADR 12.

Credentials and endpoints come from the environment alone. Nothing is streamed to a store: Arrow's stream makes an
object of what it was given so far, whatever error ends it. An object is handed over whole, by one call in a thread
that no signal interrupts.
"""

import errno
import json
import mmap
import os
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, Literal, NamedTuple, TypeVar, cast
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs

from altalign.errors import AltalignError, FullDiskError, StoreError, UsageError, first_line
from altalign.machine.threads import in_order
from altalign.storage import local
from altalign.storage.paths import Place, Stamp, absolute

_T = TypeVar("_T")
_R = TypeVar("_R")
_Kind = Literal["file", "folder", "missing"]

AT_ONCE = 32  # requests under way: a store answers in tens of milliseconds, whatever the machine
ATTEMPTS = 5  # of a request
CONNECT_WITHIN_S = 10
ANSWERS_WITHIN_S = 120  # a store may think long about the parts of a large object
ONE_REQUEST_BYTES = 5 << 20  # what is larger waits in a temporary file, and goes over in parts, several at a time
# such uploads: in S3 each has several parts under way, and two keep all of Arrow's 8 threads busy
_LARGE_AT_ONCE = {"s3": 2, "gs": 8}
_COPIED_BYTES = 40 << 20  # of an upload at a time: Arrow copies each of its parts, of 10 MB, before it sends them
_COPIED_BYTES_AT_MOST = 5 << 30  # of S3's request CopyObject
SENT_EVERY_S, SENT_WITHIN_S = 5.0, 60.0  # a growing file
LEASE_S = 120.0  # of a ticket
REFRESH_EVERY_S = 20.0
_TICKET = "lock-"
_KNOWN_FOR_S = 60.0

# what a glob has just met, so that nobody asks for each of its files again
_LISTED: dict[str, tuple[float, _Kind]] = {}
# when the ticket of each run folder that this process holds was written last
HELD: dict[str, float] = {}


# Clients -------------------------------------------------------------------------------------------------------------


def client(place: Place, *, in_parts: bool = False) -> pafs.FileSystem:
    """The client of a bucket; it writes a small object by one request, and with `in_parts` a large one in parts.

    Were the latter to begin only with the first part, it would make an empty object where that fails.
    """
    return _client(place.scheme, place.bucket, os.getpid(), in_parts=in_parts)


def forget_clients() -> None:
    """Forget all clients, so that the next request reads the environment again."""
    _client.cache_clear()


@cache
# clients have threads, which a forked process has not
def _client(scheme: str, bucket: str, _process: int, *, in_parts: bool) -> pafs.FileSystem:
    endpoint, region = _endpoint(scheme), _named_region()
    transport, _, host = endpoint.rpartition("://")
    options: dict[str, Any] = (
        {"scheme": transport or "https", "endpoint_override": host.rstrip("/")} if endpoint else {}
    )
    if scheme == "gs":
        from datetime import timedelta

        return pafs.GcsFileSystem(anonymous=bool(endpoint), retry_time_limit=timedelta(seconds=60), **options)
    if endpoint:
        region = region or "us-east-1"
    else:  # AWS itself says where a bucket is
        with suppress(OSError):
            region = pafs.resolve_s3_region(bucket)
    return cast(Any, pafs.S3FileSystem)(  # the stubs know not all of it
        region=region,
        allow_delayed_open=not in_parts,
        background_writes=True,
        connect_timeout=CONNECT_WITHIN_S,
        request_timeout=ANSWERS_WITHIN_S,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        **options,
    )


def _endpoint(scheme: str) -> str:
    """The endpoint that the environment names; empty: the provider's own."""
    names = ("STORAGE_EMULATOR_HOST",) if scheme == "gs" else ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    return next((value for name in names if (value := os.environ.get(name))), "")


def _named_region() -> str | None:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def threads(purpose: str, count: int = AT_ONCE) -> ThreadPoolExecutor:
    """The threads of this process in which requests of one purpose wait."""
    return _threads(purpose, count, os.getpid())


@cache
def _threads(_purpose: str, count: int, _process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count)


def each(work: Callable[[_T], _R], things: Iterable[_T]) -> Iterator[_R]:
    """The result of `work` for each thing, in order, many at a time."""
    with ThreadPoolExecutor(AT_ONCE) as own:
        begun = ((None, own.submit(work, thing), 1) for thing in things)
        with closing(in_order(begun, bytes_at_most=4 * AT_ONCE)) as results:
            for _, result in results:
                yield result


@contextmanager
def asking(path: str) -> Iterator[None]:
    """Turns the errors of requests about a path into ours.

    Raises:
        FileNotFoundError: there is no such object; it has the path as its `filename`.
        FullDiskError: the store has no space left.
        StoreError: anything else that the store or the network says.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
    except (OSError, pa.ArrowException) as error:
        raise trouble(error, path) from error


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


def in_arrow(path: str) -> tuple[pafs.FileSystem, str]:
    place = Place.parse(path)
    return client(place), place.name


def kind(path: str) -> _Kind:
    """What is at a path: an object, or a prefix of others."""
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
    """Whether there is an object: one request, where `kind` may take two."""
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


def _listed(folder: str, *, is_recursive: bool) -> list[pafs.FileInfo]:
    """What is in a folder, or below it: one request for a thousand objects. Empty where there is none."""
    place = Place.parse(folder)
    with asking(folder):
        return client(place).get_file_info(pafs.FileSelector(place.name, recursive=is_recursive, allow_not_found=True))


def names(folder: str, suffix: str = "") -> list[str]:
    infos = _listed(folder, is_recursive=False)
    return sorted(info.base_name for info in infos if info.is_file and info.base_name.endswith(suffix))


def entries(folder: str) -> list[str]:
    """Names of objects and folders, from a list of all below: Arrow's list of one GCS folder leaves folders out."""
    inside = f"{Place.parse(folder).name}/"
    infos = _listed(folder, is_recursive=True)
    return sorted({info.path.removeprefix(inside).partition("/")[0] for info in infos})


def files_below(folder: str) -> list[str]:
    scheme = Place.parse(folder).scheme
    return [f"{scheme}://{info.path}" for info in _listed(folder, is_recursive=True) if info.is_file]


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
    for info in _listed(f"{scheme}://{'/'.join(parts[:plain])}", is_recursive=is_deep):
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
            path = f"{scheme}://{name}"
            _LISTED[path] = time.monotonic(), kind_of_name
            hits.append(path)
    return sorted(hits)


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
    """A file to append to; see `GrowingObject`."""
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


def get(path: str) -> bytes:
    """A whole object."""
    file = OpenObject(path)
    return file.read_at(0, file.size)


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
    _all(lambda name: link(f"{source}/{name}", f"{copy}/{name}"), names)
    _all(delete_file, sorted({*files_below(target)} - {f"{copy}/{name}" for name in names}))


def delete_file(path: str) -> None:
    """Delete an object; nothing where there is none."""
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
            _all(delete_file, [*files_below(path), f"{absolute(path)}/"])
        # S3 deletes a thousand objects a request. Some stores are file systems, where a folder that is not empty stays
        elif info.type == pafs.FileType.Directory:
            folders = [each.path for each in _listed(path, is_recursive=True) if not each.is_file]
            for folder in sorted([place.name, *folders], key=lambda folder: folder.count("/"), reverse=True):
                with suppress(FileNotFoundError):
                    client(place).delete_dir(folder)


def _all(work: Callable[[str], None], paths: Iterable[str]) -> None:
    for _ in each(work, paths):
        pass


def sweep(_: str) -> None:
    """An upload that never ended left no object; what it left in the store, the store's own rules delete."""


def local_folder(folder: str) -> str:
    return str(local.standing_for(absolute(folder), "runs"))


# The lock on a run ----------------------------------------------------------------------------------------------------
#
# Tickets, small objects that are renewed, hold a run against commands on any machine. A command writes its ticket, then
# lists all tickets. If another ticket is fresh, it deletes its own and gives up. Two commands that start at once may
# both give up, but they never both win: S3 and GCS list every object that was written before. The age of a ticket is a
# difference of the store's own times, so the clocks of machines do not matter. On one machine a file lock decides at
# once, and shows which tickets are of killed commands. One case is not covered: a command that is suspended for longer
# than `LEASE_S` and then resumes. It notices within seconds and writes nothing more, but an upload that was under way
# may still arrive.


class _Ticket(NamedTuple):
    path: str
    time_ns: int  # of the store, when it was written last
    owner: dict[str, Any]

    @property
    def is_of_this_machine(self) -> bool:
        return self.owner.get("machine") == local.machine_name()

    def __str__(self) -> str:
        return f"{self.owner.get('process')} on {self.owner.get('host')}"


def _check_held(path: str) -> None:
    """Refuse to write to a run whose ticket others may consider expired."""
    for folder, written in list(HELD.items()):
        if path.startswith(f"{folder}/") and time.monotonic() - written > LEASE_S:
            raise StoreError(
                f"{folder}: held no longer: the store was not reached for {time.monotonic() - written:.0f} s, and "
                "another command may be at work; run the same command again, it continues"
            )


@contextmanager
def locked(folder: str) -> Iterator[None]:
    folder = folder.rstrip("/")
    path = f"{folder}/log/{_TICKET}{uuid4().hex}"
    owner = {"host": socket.gethostname(), "process": os.getpid(), "machine": local.machine_name()}
    data, stop = json.dumps(owner).encode(), threading.Event()

    def refresh() -> None:
        while not stop.wait(REFRESH_EVERY_S):
            with suppress(AltalignError):  # tried again; an expired ticket is not renewed, and `_check_held` says so
                begun = time.monotonic()
                upload(path, data)
                if time.monotonic() - begun < LEASE_S:
                    HELD[folder] = time.monotonic()

    thread = threading.Thread(target=refresh, daemon=True)
    with local.locked(folder, _lock(folder)):
        try:
            upload(path, data)
        except StoreError as error:
            raise UsageError(f"{folder}: cannot be written to: {error}") from error
        try:
            tickets = {ticket.path: ticket for ticket in _tickets(folder)}
            own = tickets.pop(path, None)
            for other in tickets.values():
                age_s = (own.time_ns - other.time_ns) / 1e9 if own else 0.0
                if not other.is_of_this_machine and age_s <= LEASE_S:
                    raise local.at_work(folder, f"process {other}, seen {max(0.0, age_s):.0f} s ago")
                delete_file(other.path)  # its command has ended
            HELD[folder] = time.monotonic()
            thread.start()
            try:
                yield
            finally:
                stop.set()
                thread.join()
        finally:
            HELD.pop(folder, None)
            with suppress(AltalignError):
                delete_file(path)


def _tickets(folder: str) -> list[_Ticket]:
    tickets = []
    for info in _listed(f"{folder}/log", is_recursive=False):
        if info.is_file and info.base_name.startswith(_TICKET):
            path = f"{folder}/log/{info.base_name}"
            with suppress(FileNotFoundError, ValueError):  # its owner has ended meanwhile
                tickets.append(_Ticket(path, info.mtime_ns or 0, json.loads(get(path))))
    return tickets


def holder(folder: str) -> str | None:
    folder = folder.rstrip("/")
    if (process := local.holder_of(_lock(folder))) is not None:
        return process
    for ticket in _tickets(folder):
        if not ticket.is_of_this_machine and time.time() - ticket.time_ns / 1e9 < LEASE_S:
            return str(ticket)
    return None


def _lock(folder: str) -> Path:
    return local.standing_for(folder, "locks")


# Trouble -------------------------------------------------------------------------------------------------------------


def check(path: str) -> None:
    """Ask for an object that cannot exist, to see whether the store answers and lets us in."""
    place = Place.parse(path)
    if re.search(r"[*?[]", place.bucket):
        raise UsageError(f"{path}: the name of a bucket is no glob; give it in full")
    try:
        _probe(place)
    except (OSError, pa.ArrowException) as error:
        raise UsageError(str(trouble(error, path))) from error


def _probe(place: Place) -> None:
    prefix = Place(place.scheme, place.bucket, f"{place.key}/.altalign".lstrip("/"))
    client(place).get_file_info(pafs.FileSelector(prefix.name, allow_not_found=True))
    # a list of a bucket that is not there may be empty
    if client(place).get_file_info(place.bucket).type == pafs.FileType.NotFound:
        raise OSError("NoSuchBucket")


# Arrow's errors have no code, only words: what the first row says whose pattern is in "SCHEME: WORDS"
_TROUBLES = {
    r"NO_SUCH_BUCKET|NoSuchBucket|bucket does not exist|The specified bucket": (
        "there is no bucket {bucket}{at}; make it, or give another"
    ),
    r"NETWORK_CONNECTION|curlCode|UNAVAILABLE|Could not resolve|connect|REQUEST_TIMEOUT|timed? ?out": (
        "the store{at} does not answer ({reason}); look at the network and {endpoint}, and run the same command again"
    ),
    r"^s3: .*(HeaderMalformed|PermanentRedirect|HTTP status (301|400)|IllegalLocationConstraint|region)": (
        "the store{at} refuses the region, AWS_REGION is {region} ({reason}); set it to that of s3://{bucket}"
    ),
    r"ACCESS_DENIED|SIGNATURE|INVALID_ACCESS_KEY|InvalidAccessKeyId|UserNotFound|INVALID_CLIENT_TOKEN|Expired_?Token"
    r"|EXPIRED|\b40[13]\b|PERMISSION|UNAUTH|credentials": "access denied{at} ({reason}); {credentials}",
    "": "the store{at} refuses ({reason}); put that right and run the same command again, it continues",
}
_FULL = r"StorageFull|QuotaExceeded|InsufficientStorage|NotEnoughSpace|status 507"
_ENDPOINTS = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST"}
# where clients look for credentials (variables, files in the home folder), and how a user gives them
_CREDENTIALS = {
    "s3": (
        ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
        (".aws/credentials", ".aws/config"),
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    ),
    "gs": (
        ("GOOGLE_APPLICATION_CREDENTIALS",),
        (".config/gcloud/application_default_credentials.json",),
        "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account, or log in with gcloud auth "
        "application-default login",
    ),
}


def trouble(error: BaseException, path: str) -> AltalignError:
    """The message for a client's error: what, where, what to do."""
    place, message = Place.parse(path), _message(error)
    if "No response body" in message:  # an answer to HEAD has no reason in it; one to a list has
        try:
            _probe(place)
        except (OSError, pa.ArrowException) as reason:
            message = _message(reason)
    endpoint = _endpoint(place.scheme)
    variables, files, advice = _CREDENTIALS[place.scheme]
    has_credentials = any(map(os.environ.get, variables)) or any((Path.home() / file).exists() for file in files)
    facts = {
        "at": f" at {endpoint}" if endpoint else "",
        "reason": re.sub(r"^.* operation: (?:\w+ Message: )?(?!No response body)", "", message),
        "bucket": place.bucket,
        "endpoint": _ENDPOINTS[place.scheme],
        "region": _named_region() or "not set",
        "credentials": "look whether the credentials are right, and may list, read, write and delete there"
        if has_credentials
        else f"no credentials are in the environment; {advice}",
    }
    if re.search(_FULL, message, re.IGNORECASE):
        text = "no space left in the store{at} ({reason}); make room and run the same command again, it continues"
        return FullDiskError(f"{path}: {text.format(**facts)}")
    words = f"{place.scheme}: {message}"
    text = next(text for pattern, text in _TROUBLES.items() if re.search(pattern, words, re.IGNORECASE))
    return StoreError(f"{path}: {text.format(**facts)}")


def _message(error: BaseException) -> str:
    """The store's own message, shortened."""
    line = first_line(error).rpartition("AWS Error ")[2]
    return re.sub(r" \(Request ID: [^)]*\)|Unable to parse ExceptionName: |; Details: .*", "", line).strip().rstrip(".")
