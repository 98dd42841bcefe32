"""Clients of object stores, one a bucket: single requests, and the words for their errors.

Credentials and endpoints come from the environment alone.

Nothing is streamed to a store: Arrow's stream makes an object of what it was given so far, whatever error ends it (ADR
12). An object is handed over whole, by one call in a thread that no signal interrupts.
"""

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa
import pyarrow.fs as pafs

from altalign.errors import AltalignError, FullDiskError, StoreError, UsageError, first_line
from altalign.machine.threads import in_order
from altalign.storage.paths import Place

_T = TypeVar("_T")
_R = TypeVar("_R")
AT_ONCE = 32  # requests under way: a store answers in tens of milliseconds, whatever the machine
ATTEMPTS = 5  # of a request
CONNECT_WITHIN_S = 10
ANSWERS_WITHIN_S = 120  # a store may think long about the parts of a large object
_GCS_RETRIES_FOR_S = 60
ONE_REQUEST_BYTES = 5 << 20  # what is larger waits in a temporary file, and goes over in parts, several at a time
# such uploads: in S3 each has several parts under way, and two keep all of Arrow's 8 threads busy
LARGE_AT_ONCE = {"s3": 2, "gs": 8}
_COPIED_BYTES = 40 << 20  # of an upload at a time: Arrow copies each of its parts, of 10 MB, before it sends them


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

        retry_limit = timedelta(seconds=_GCS_RETRIES_FOR_S)
        return pafs.GcsFileSystem(anonymous=bool(endpoint), retry_time_limit=retry_limit, **options)
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


# Requests ------------------------------------------------------------------------------------------------------------


def threads(purpose: str, count: int = AT_ONCE) -> ThreadPoolExecutor:
    """The threads of this process in which requests of one purpose wait."""
    return _threads(purpose, count, os.getpid())


@cache
def _threads(_purpose: str, count: int, _process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count)


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


def put(path: str, data: Any, *, allowed: Callable[[], None]) -> None:
    """Make an object of these bytes (any buffer), whole or not at all, whatever happens to the waiting thread.

    `allowed` raises where it is not to begin any more: large uploads wait for one another.
    """
    buffer, place = pa.py_buffer(data), Place.parse(path)
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


def _put(place: Place, data: pa.Buffer) -> None:
    """One request, or an upload in parts, after which the store is asked how many bytes it has."""
    is_large = data.size > ONE_REQUEST_BYTES
    writer = client(place, in_parts=is_large)
    # else by the name: what ends in .gz would be compressed
    stream = writer.open_output_stream(place.name, compression=None)
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


def listed(folder: str, *, is_recursive: bool) -> list[pafs.FileInfo]:
    """What is in a folder, or below it: one request for a thousand objects. Empty where there is none."""
    place = Place.parse(folder)
    with asking(folder):
        return client(place).get_file_info(pafs.FileSelector(place.name, recursive=is_recursive, allow_not_found=True))


def delete_object(path: str) -> None:
    """Delete an object; nothing where there is none."""
    place = Place.parse(path)
    with asking(path), suppress(FileNotFoundError):
        client(place).delete_file(place.name)


def each(work: Callable[[_T], _R], things: Iterable[_T]) -> Iterator[_R]:
    """The result of `work` for each thing, in order, many at a time."""
    with ThreadPoolExecutor(AT_ONCE) as own:
        begun = ((None, own.submit(work, thing), 1) for thing in things)
        with closing(in_order(begun, bytes_at_most=4 * AT_ONCE)) as results:
            for _, result in results:
                yield result


# Trouble -------------------------------------------------------------------------------------------------------------


def check(path: str) -> None:
    """Ask for an object that cannot exist, to see whether the store answers and lets us in.

    Raises:
        UsageError: it does not, and why.
    """
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


def trouble(error: BaseException, path: str) -> AltalignError:
    """The message for a client's error: what, where, what to do."""
    place, message = Place.parse(path), _message(error)
    if "No response body" in message:  # an answer to HEAD has no reason in it; one to a list has
        try:
            _probe(place)
        except (OSError, pa.ArrowException) as reason:
            message = _message(reason)
    endpoint = _endpoint(place.scheme)
    facts = {
        "at": f" at {endpoint}" if endpoint else "",
        "reason": re.sub(r"^.* operation: (?:\w+ Message: )?(?!No response body)", "", message),
        "bucket": place.bucket,
        "endpoint": _ENDPOINTS[place.scheme],
        "region": _named_region() or "not set",
        "credentials": _advice(place.scheme),
    }
    if re.search(_FULL, message, re.IGNORECASE):
        text = "no space left in the store{at} ({reason}); make room and run the same command again, it continues"
        return FullDiskError(f"{path}: {text.format(**facts)}")
    words = f"{place.scheme}: {message}"
    text = next(text for pattern, text in _TROUBLES.items() if re.search(pattern, words, re.IGNORECASE))
    return StoreError(f"{path}: {text.format(**facts)}")


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


def _advice(scheme: str) -> str:
    """What to do about access that was denied."""
    variables, files, advice = _CREDENTIALS[scheme]
    home = Path("~").expanduser()
    if any(map(os.environ.get, variables)) or any((home / file).exists() for file in files):
        return "look whether the credentials are right, and may list, read, write and delete there"
    return f"no credentials are in the environment; {advice}"


def _message(error: BaseException) -> str:
    """The store's own message, shortened."""
    line = first_line(error).rpartition("AWS Error ")[2]
    return re.sub(r" \(Request ID: [^)]*\)|Unable to parse ExceptionName: |; Details: .*", "", line).strip().rstrip(".")
