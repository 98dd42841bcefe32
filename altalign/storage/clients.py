"""Clients of object stores by `pyarrow.fs`, the threads that wait for them, and their errors in words.

Credentials and endpoints come from the environment alone.
"""

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar, cast

import pyarrow as pa
import pyarrow.fs as pafs

from altalign.errors import AltalignError, FullDiskError, StoreError, first_line
from altalign.machine.threads import in_order
from altalign.storage.paths import Place

_T = TypeVar("_T")
_R = TypeVar("_R")

AT_ONCE = 32  # requests under way: a store answers in tens of milliseconds, whatever the machine
ATTEMPTS = 5  # of a request
CONNECT_WITHIN_S = 10
ANSWERS_WITHIN_S = 120  # a store may think long about the parts of a large object


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
    endpoint, region = _endpoint(scheme), os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    transport, _, host = endpoint.rpartition("://")
    options: dict[str, Any] = {"scheme": transport or "https", "endpoint_override": host.rstrip("/")} if host else {}
    if scheme == "gs":
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


def probe(place: Place) -> None:
    """Ask for an object that cannot exist: it raises what is wrong with the store, or with our access."""
    prefix = Place(place.scheme, place.bucket, f"{place.key}/.altalign".lstrip("/"))
    client(place).get_file_info(pafs.FileSelector(prefix.name, allow_not_found=True))
    # a list of a bucket that is not there may be empty
    if client(place).get_file_info(place.bucket).type == pafs.FileType.NotFound:
        raise OSError("NoSuchBucket")


# Arrow's errors have no code, only words: what the first row says whose pattern is in "SCHEME: WORDS"
_TROUBLES = {
    r"StorageFull|QuotaExceeded|InsufficientStorage|NotEnoughSpace|status 507": (
        "no space left in the store{at} ({reason}); make room and run the same command again, it continues"
    ),
    r"NO_SUCH_BUCKET|NoSuchBucket|bucket does not exist|The specified bucket": (
        "there is no bucket {bucket}{at}; make it, or give another"
    ),
    r"NETWORK_CONNECTION|curlCode|UNAVAILABLE|Could not resolve|connect|REQUEST_TIMEOUT|timed? ?out": (
        "the store{at} does not answer ({reason}); look at the network and {endpoint}, and run the same command again"
    ),
    r"^s3: .*(HeaderMalformed|PermanentRedirect|HTTP status (301|400)|IllegalLocationConstraint|region)": (
        "the store{at} refuses the region ({reason}); set AWS_REGION to that of s3://{bucket}"
    ),
    r"ACCESS_DENIED|SIGNATURE|INVALID_ACCESS_KEY|InvalidAccessKeyId|UserNotFound|INVALID_CLIENT_TOKEN|Expired_?Token"
    r"|EXPIRED|\b40[13]\b|PERMISSION|UNAUTH|credentials": (
        "access denied{at} ({reason}); {credentials}, of one who may list, read, write and delete there"
    ),
    "": "the store{at} refuses ({reason}); put that right and run the same command again, it continues",
}
# of the endpoint, and of credentials
_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"),
    "gs": (
        "STORAGE_EMULATOR_HOST",
        "set GOOGLE_APPLICATION_CREDENTIALS, or log in with gcloud auth application-default login",
    ),
}


def trouble(error: BaseException, path: str) -> AltalignError:
    """The message for a client's error: what, where, what to do."""
    place, message = Place.parse(path), _message(error)
    if "No response body" in message:  # an answer to HEAD has no reason in it; one to a list has
        try:
            probe(place)
        except (OSError, pa.ArrowException) as reason:
            message = _message(reason)
    words = f"{place.scheme}: {message}"
    text = next(text for pattern, text in _TROUBLES.items() if re.search(pattern, words, re.IGNORECASE))
    endpoint = _endpoint(place.scheme)
    variable, credentials = _VARIABLES[place.scheme]
    text = text.format(
        at=f" at {endpoint}" if endpoint else "",
        reason=re.sub(r"^.* operation: (?:\w+ Message: )?(?!No response body)", "", message),
        bucket=place.bucket,
        endpoint=variable,
        credentials=credentials,
    )
    return (FullDiskError if text.startswith("no space") else StoreError)(f"{path}: {text}")


def _message(error: BaseException) -> str:
    """The store's own message, shortened."""
    line = first_line(error).rpartition("AWS Error ")[2]
    return re.sub(r" \(Request ID: [^)]*\)|Unable to parse ExceptionName: |; Details: .*", "", line).strip().rstrip(".")
