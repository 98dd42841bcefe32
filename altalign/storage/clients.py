"""Clients of object stores, one a bucket, and the words for their errors.

Credentials and endpoints come from the environment alone.

Nothing is streamed to a store: Arrow's stream makes an object of what it was given so far, whatever error ends it (ADR
12). An object is handed over whole, by one call in a thread that no signal interrupts.
"""

import errno
import mmap
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, cast

import pyarrow as pa
import pyarrow.fs as pafs

from altalign.errors import AltalignError, FullDiskError, StoreError, UsageError, first_line
from altalign.machine import ahead
from altalign.storage.paths import is_of_web
from altalign.storage.waiting import ANSWERS_WITHIN_S, ATTEMPTS, CONNECT_WITHIN_S

_T = TypeVar("_T")
_R = TypeVar("_R")
AT_ONCE = 32  # requests under way: a store answers in tens of milliseconds, whatever the machine
ONE_REQUEST_BYTES = 5 << 20  # what is larger waits in a temporary file, and goes over in parts, several at a time
# such uploads: in S3 each has several parts under way, and two keep all of Arrow's 8 threads busy
LARGE_AT_ONCE = {"s3": 2, "gs": 8}
_COPIED_BYTES = 40 << 20  # of an upload at a time: Arrow copies each of its parts, of 10 MB, before it sends them
_GCS_RETRIES_FOR_S = 60

_FULL = re.compile(r"StorageFull|QuotaExceeded|InsufficientStorage|NotEnoughSpace|status 507", re.IGNORECASE)
_NO_BUCKET = re.compile(r"NO_SUCH_BUCKET|NoSuchBucket|bucket does not exist|The specified bucket", re.IGNORECASE)
_REGION = re.compile(
    r"AuthorizationHeaderMalformed|PermanentRedirect|HTTP status 301|IllegalLocationConstraint|region", re.IGNORECASE
)
_DENIED = re.compile(
    r"ACCESS_DENIED|SIGNATURE|INVALID_ACCESS_KEY|InvalidAccessKeyId|UserNotFound|INVALID_CLIENT_TOKEN|ExpiredToken|EXPIRED|\b40[13]\b|PERMISSION|UNAUTH|credentials",
    re.IGNORECASE,
)
_NETWORK = re.compile(
    r"NETWORK_CONNECTION|curlCode|UNAVAILABLE|Could not resolve|connect|REQUEST_TIMEOUT|timed? ?out", re.IGNORECASE
)


class Place(NamedTuple):
    """Where an object is, or a folder of them."""

    scheme: str
    bucket: str
    key: str  # empty: the bucket itself

    @classmethod
    def of(cls, path: str) -> "Place":
        """The place of a path.

        Raises:
            UsageError: it names no bucket, or has a part that no client takes as it is.
        """
        scheme, _, rest = path.partition("://")
        bucket, _, key = rest.partition("/")
        if not bucket:
            raise UsageError(f"{path}: no bucket is named; give {scheme}://BUCKET/…")
        if {"", ".", ".."} & set(key.strip("/").split("/")) and key.strip("/"):
            raise UsageError(f"{path}: a store has no folders named '', '.' or '..'; give the path without them")
        return cls(scheme, bucket, key.strip("/"))

    @property
    def name(self) -> str:
        """The name that clients use: bucket and key."""
        return f"{self.bucket}/{self.key}" if self.key else self.bucket

    @property
    def client(self) -> pafs.FileSystem:
        """The client of this bucket; it writes a small object by one request."""
        return _client(self.scheme, self.bucket, os.getpid(), in_parts=False)

    @property
    def client_of_parts(self) -> pafs.FileSystem:
        """The writer of an object in parts.

        Were it to begin only with the first part, it would make an empty object where that fails.
        """
        return _client(self.scheme, self.bucket, os.getpid(), in_parts=True)


def forget_clients() -> None:
    """Forget all clients, so that the next request reads the environment again."""
    _client.cache_clear()


@cache
# clients have threads, which a forked process has not
def _client(scheme: str, bucket: str, _process: int, *, in_parts: bool) -> pafs.FileSystem:
    endpoint = endpoint_of(scheme)
    transport, _, host = endpoint.rpartition("://")
    there: dict[str, Any] = {"scheme": transport or "https", "endpoint_override": host.rstrip("/")} if endpoint else {}
    if scheme == "gs":
        from datetime import timedelta

        return pafs.GcsFileSystem(
            anonymous=bool(endpoint), retry_time_limit=timedelta(seconds=_GCS_RETRIES_FOR_S), **there
        )
    return cast(Any, pafs.S3FileSystem)(  # the stubs know not all of it
        region=_region(bucket, endpoint),
        allow_delayed_open=not in_parts,
        background_writes=True,
        connect_timeout=CONNECT_WITHIN_S,
        request_timeout=ANSWERS_WITHIN_S,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        **there,
    )


def endpoint_of(scheme: str) -> str:
    """The endpoint that the environment names; empty: the provider's own."""
    names = ("STORAGE_EMULATOR_HOST",) if scheme == "gs" else ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    return next((value for name in names if (value := os.environ.get(name))), "")


def _region(bucket: str, endpoint: str) -> str | None:
    """The bucket's region: AWS itself says where it is, another store takes what the environment says."""
    named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint:
        return named or "us-east-1"
    with suppress(OSError):
        return pafs.resolve_s3_region(bucket)
    return named


# Requests ------------------------------------------------------------------------------------------------------------


def threads(of: str, count: int = AT_ONCE) -> ThreadPoolExecutor:
    """The threads of this process that requests of a kind wait in."""
    return _threads(of, count, os.getpid())


@cache
def _threads(of: str, count: int, _process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix=f"altalign-{of}")


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
        if error.filename == path:
            raise
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
    except (OSError, pa.ArrowException) as error:
        raise trouble(error, path) from error


def put(path: str, data: Any, *, allowed: Callable[[], None] = lambda: None) -> None:
    """Make an object of these bytes (any buffer), whole or not at all, whatever happens to the waiting thread.

    `allowed` raises where it is not to begin any more: large uploads wait for one another.
    """
    buffer, place = pa.py_buffer(data), Place.of(path)
    is_large = buffer.size > ONE_REQUEST_BYTES
    own = threads(f"large-uploads-{place.scheme}", LARGE_AT_ONCE[place.scheme]) if is_large else threads("uploads")

    def upload() -> None:
        allowed()
        _put(place, buffer)

    with asking(path):
        uploading = own.submit(upload)
        try:
            uploading.result()
        finally:
            uploading.cancel()  # where it has not begun, and nobody waits for it


def put_file(path: str, file: IO[bytes], *, allowed: Callable[[], None]) -> None:
    """Make an object of a whole local file, as `put` does; a large one is mapped, not read."""
    size = file.seek(0, os.SEEK_END)
    if size > ONE_REQUEST_BYTES:
        file.flush()
        put(path, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), allowed=allowed)
    else:
        file.seek(0)
        put(path, file.read(), allowed=allowed)


def _put(place: Place, data: pa.Buffer) -> None:
    """One request, or an upload in parts, after which the store is asked how many bytes it has."""
    is_large = data.size > ONE_REQUEST_BYTES
    client = place.client_of_parts if is_large else place.client
    # else by the name: what ends in .gz would be compressed
    stream = client.open_output_stream(place.name, compression=None)
    try:
        for begin in range(0, data.size, _COPIED_BYTES):
            stream.write(data.slice(begin, min(_COPIED_BYTES, data.size - begin)))
            stream.flush()  # waits for the parts that are under way
    except BaseException:
        with suppress(OSError, pa.ArrowException):
            stream.close()  # repeats the error of a part, and makes no object
            place.client.delete_file(place.name)  # after another error it made one, of what it was given so far
        raise
    stream.close()
    if is_large and (there := place.client.get_file_info(place.name).size) != data.size:
        place.client.delete_file(place.name)
        raise OSError(f"{there} bytes arrived of {data.size}")


def get(path: str) -> bytes:
    """A whole object."""
    with asking(path), opened(path) as file:
        return read_at(file, 0, file.size())


def read_at(file: Any, offset: int, length: int) -> bytes:
    """Bytes of an open object; fewer at its end, where GCS answers with an error."""
    length = min(length, file.size() - offset)
    return file.read_at(length, offset) if length > 0 else b""


def opened(path: str) -> Any:  # a NativeFile, of which the stubs know little
    """An object for reads at any offset; use it within `asking`."""
    if is_of_web(path):
        from altalign.storage.web_files import WebFile

        return WebFile(path)
    place = Place.of(path)
    return place.client.open_input_file(place.name)


def listed(folder: str, *, is_recursive: bool) -> list[pafs.FileInfo]:
    """What is in a folder, or below it: one request for a thousand objects. Empty where there is none."""
    place = Place.of(folder)
    with asking(folder):
        return place.client.get_file_info(pafs.FileSelector(place.name, recursive=is_recursive, allow_not_found=True))


def delete_object(path: str) -> None:
    """Delete an object; nothing where there is none."""
    place = Place.of(path)
    with asking(path), suppress(FileNotFoundError):
        place.client.delete_file(place.name)


def each(work: Callable[[_T], _R], things: Iterable[_T]) -> Iterator[_R]:
    """The result of `work` for each thing, in order, many at a time."""
    with ThreadPoolExecutor(AT_ONCE) as own:
        begun = ((None, own.submit(work, thing), 1) for thing in things)
        with closing(ahead.in_order(begun, bytes_at_most=4 * AT_ONCE)) as results:
            for _, result in results:
                yield result


# Trouble -------------------------------------------------------------------------------------------------------------


def check(path: str) -> None:
    """Ask for an object that cannot exist, to see whether the store answers and lets us in.

    Raises:
        UsageError: it does not, and why.
    """
    place = Place.of(path)
    if re.search(r"[*?[]", place.bucket):
        raise UsageError(f"{path}: the name of a bucket is no glob; give it in full")
    try:
        _probe(place)
    except (OSError, pa.ArrowException) as error:
        raise UsageError(str(trouble(error, path))) from error


def _probe(place: Place) -> None:
    prefix = Place(place.scheme, place.bucket, f"{place.key}/.altalign".lstrip("/"))
    place.client.get_file_info(pafs.FileSelector(prefix.name, allow_not_found=True))
    # a list of a bucket that is not there may be empty
    if place.client.get_file_info(place.bucket).type == pafs.FileType.NotFound:
        raise OSError("NoSuchBucket")


def trouble(error: BaseException, path: str) -> AltalignError:
    """The message for a client's error: what, where, what to do."""
    place, said = Place.of(path), _message(error)
    if "No response body" in said:  # an answer to HEAD has no reason in it; one to a list has
        try:
            _probe(place)
        except (OSError, pa.ArrowException) as reason:
            said = _message(reason)
    shown = re.sub(r"^.* operation: (?:\w+ Message: )?(?!No response body)", "", said)
    endpoint = endpoint_of(place.scheme)
    at = f" at {endpoint}" if endpoint else ""
    if _FULL.search(said):
        return FullDiskError(
            f"{path}: no space left in the store{at} ({shown}); make room and run the same command again, it continues"
        )
    if _NO_BUCKET.search(said):
        return StoreError(f"{path}: there is no bucket {place.bucket}{at}; make it, or give another")
    if _NETWORK.search(said):
        return StoreError(
            f"{path}: the store{at} does not answer ({shown}); look at the network and {_ENDPOINTS[place.scheme]}, and "
            "run the same command again"
        )
    if place.scheme == "s3" and (_REGION.search(said) or "HTTP status 400" in said):
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "not set"
        return StoreError(
            f"{path}: the store{at} refuses the region, AWS_REGION is {region} ({shown}); set it to that of s3://{place.bucket}"
        )
    if _DENIED.search(said):
        repair = (
            _has_credentials(place.scheme) or f"no credentials are in the environment; {_CREDENTIALS[place.scheme]}"
        )
        return StoreError(f"{path}: access denied{at} ({shown}); {repair}")
    return StoreError(
        f"{path}: the store{at} refuses ({shown}); put that right and run the same command again, it continues"
    )


_ENDPOINTS = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST"}
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": (
        "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account, or log in with gcloud auth "
        "application-default login"
    ),
}


def _has_credentials(scheme: str) -> str:
    """What to do about credentials that are there; empty where none are."""
    home = Path("~").expanduser()
    if scheme == "gs":
        known = home / ".config" / "gcloud" / "application_default_credentials.json"
        has_any = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS") or known.exists()
    else:
        names = (
            "AWS_ACCESS_KEY_ID",
            "AWS_PROFILE",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        )
        has_any = (
            any(os.environ.get(name) for name in names)
            or (home / ".aws" / "credentials").exists()
            or (home / ".aws" / "config").exists()
        )
    return "look whether the credentials are right, and may list, read, write and delete there" if has_any else ""


def _message(error: BaseException) -> str:
    """The store's own message, shortened."""
    line = first_line(error)
    line = line.rpartition("AWS Error ")[2]
    line = re.sub(r" \(Request ID: [^)]*\)|Unable to parse ExceptionName: |; Details: .*", "", line)
    return line.strip().rstrip(".")
