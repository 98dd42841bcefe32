"""Single files of web servers and of the Hugging Face Hub, read through fsspec.

A server that sends no ranges, or tells no size, is asked for the whole file once, and the copy on this machine is read.
"""

import errno
import os
import re
import time
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeVar, cast

import aiohttp

from altalign import __version__
from altalign.errors import StoreError, UsageError, bring
from altalign.storage import disk_errors, local, local_copies
from altalign.storage.stamp import Stamp
from altalign.storage.waiting import ANSWERS_WITHIN_S, ATTEMPTS, CONNECT_WITHIN_S

_T = TypeVar("_T")
_FIRST_WAIT_S = 0.1  # before a request is made again; then twice as long each time
_TEMPORARY = (408, 429, 500, 502, 503, 504)
_MISSING = (404, 410)
_DENIED = (401, 403)
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_KNOWN_FOR_S = 60.0

HUB = "hf://"


class FileFacts(NamedTuple):
    """What a server tells of a path."""

    kind: Literal["file", "folder"]
    size: int | None  # None: it is not told
    version: str  # ETag, time of change or digest; empty: none is told
    has_ranges: bool


# what commands ask for several times while they begin
_KNOWN: dict[str, tuple[float, FileFacts]] = {}


def system(path: str) -> Any:
    """The file system of a path.

    Raises:
        UsageError: its package is missing.
    """
    return _hub(os.getpid(), os.environ.get("HF_ENDPOINT")) if path.startswith(HUB) else _http(os.getpid())


@cache
def _http(_process: int) -> object:  # connections and threads are of one process
    from fsspec.implementations.http import HTTPFileSystem

    timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_WITHIN_S, sock_read=ANSWERS_WITHIN_S)
    return HTTPFileSystem(
        # what is compressed stays so, as its size and its ranges are of what lies there
        client_kwargs={"auto_decompress": False, "timeout": timeout, "trust_env": True},
        headers={"Accept-Encoding": "identity", "User-Agent": f"altalign/{__version__}"},
    )


@cache
def _hub(_process: int, endpoint: str | None) -> object:
    try:
        from huggingface_hub import HfFileSystem
    except ImportError:
        raise UsageError(f"the package huggingface_hub is missing; {bring('hf')}") from None
    return HfFileSystem(endpoint=endpoint)


def forget(path: str) -> None:
    """Forget what was known of a path."""
    _KNOWN.pop(path, None)
    if path.startswith(HUB):
        system(path).invalidate_cache()


def facts(path: str) -> FileFacts:
    """What is known of a path; asked for at most once a while.

    Raises:
        FileNotFoundError: nothing is there.
        StoreError: the server does not answer, or refuses.
    """
    at, known = _KNOWN.get(path, (0.0, None))
    if known is None or time.monotonic() - at > _KNOWN_FOR_S:
        known = _facts(asked(path, lambda: system(path).info(path)))
        _KNOWN[path] = time.monotonic(), known
    return known


def _facts(told: dict[str, Any]) -> FileFacts:
    version = next((told[name] for name in ("ETag", "Last-Modified", "xet_hash", "blob_id") if told.get(name)), "")
    kind = "folder" if told["type"] == "directory" else "file"
    return FileFacts(kind, told["size"], version.strip('"'), has_ranges=told.get("partial", True))


class WebFile:
    """A file for reads at any offset, by several threads at once, with the methods of Arrow's files."""

    def __init__(self, path: str):
        self._path, told = path, facts(path)
        self._copy = "" if told.has_ranges and told.size is not None else copy(path)
        self._size = Path(self._copy).stat().st_size if self._copy else cast(int, told.size)
        if not self._copy and self._size:
            self._file = asked(path, lambda: system(path).open(path, size=self._size, cache_type="none"))

    def __enter__(self) -> "WebFile":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def size(self) -> int:
        """Its bytes."""
        return self._size

    def read_at(self, length: int, offset: int) -> bytes:
        """Bytes from an offset."""
        if not self._copy:
            try:
                return asked(self._path, lambda: self._file._fetch_range(offset, offset + length))
            except ValueError:  # fsspec met a server that sends the whole file instead
                self._copy = copy(self._path)
        return local.read_range(self._copy, offset, length)


def copy(path: str) -> str:
    """A local copy; the whole file is downloaded once.

    Raises:
        StoreError: the server tells neither its size nor its version, so that no copy is known to be of it.
    """
    told = facts(path)
    if told.size is None and not told.version:
        raise StoreError(
            f"{path}: the server tells neither the size nor a version of it (Content-Length, ETag, Last-Modified); "
            "download it, and name the file"
        )

    def fetch(file: BinaryIO) -> None:
        file.seek(0)
        file.truncate()
        system(path).get_file(path, file)

    stamp = Stamp(told.size or 0, 0, told.version)
    return local_copies.copy(path, stamp, lambda file: asked(path, lambda: fetch(file)))


# Requests ------------------------------------------------------------------------------------------------------------


def asked(path: str, request: Callable[[], _T]) -> _T:
    """The result of a request; temporary failures are retried.

    Raises:
        FileNotFoundError: there is no such file; it has the path as its `filename`.
        StoreError: anything else that the server or the network says.
    """
    attempts = 0
    while True:
        try:
            return request()
        except _errors(path) as error:
            if disk_errors.is_full_disk(error):
                raise
            attempts += 1
            # fsspec says so of whatever it met; what that was is the cause
            met = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
            if attempts == ATTEMPTS or not _is_temporary(met):
                raise _trouble(met, path) from error
        time.sleep(_FIRST_WAIT_S * 2 ** (attempts - 1))


def _errors(path: str) -> tuple[type[Exception], ...]:
    if not path.startswith(HUB):
        return OSError, aiohttp.ClientError
    from httpx2 import HTTPError

    return OSError, HTTPError


def _status(error: BaseException) -> int | None:
    return getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)


def _is_temporary(error: BaseException) -> bool:
    """Whether an error is temporary."""
    if isinstance(error, FileNotFoundError | aiohttp.InvalidURL | aiohttp.ClientSSLError):
        return False
    return (_status(error) or _TEMPORARY[0]) in _TEMPORARY


def _trouble(error: BaseException, path: str) -> Exception:
    """The message for an error: what, where, what to do."""
    status = _status(error)
    if isinstance(error, FileNotFoundError) or status in _MISSING:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    said = f"{status} {_PHRASES.get(status, '')}".strip() if status else str(error).partition("\n")[0]
    said = re.sub(r" ssl:\w+", "", said) or type(error).__name__
    if status in _DENIED and path.startswith(HUB):
        return StoreError(
            f"{path}: no such repository, or a private one ({said}); look at its name (hf://datasets/OWNER/NAME), and "
            "set HF_TOKEN where it is private"
        )
    if status in _DENIED:
        return StoreError(f"{path}: access denied ({said}); a name and a password belong in ~/.netrc")
    if _is_temporary(error):
        return StoreError(
            f"{path}: the server does not answer ({said}); look at the network and the address, and run the same "
            "command again"
        )
    return StoreError(f"{path}: the server refuses ({said}); look at the address")
