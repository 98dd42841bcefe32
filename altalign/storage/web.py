"""Inputs on web servers and on the Hugging Face Hub, through fsspec, behind the face of `altalign.storage`; read-only.

A web server does not say what lies in a folder; the Hub does. A server has to tell the size, and to send ranges.
"""

import errno
import os
import time
from collections.abc import Callable
from functools import cache
from http.client import responses
from typing import Any, Literal, TypeVar

import aiohttp

from altalign import __version__
from altalign.errors import AltalignError, StoreError, UsageError, bring, first_line
from altalign.storage.clients import ANSWERS_WITHIN_S, ATTEMPTS, CONNECT_WITHIN_S
from altalign.storage.paths import Stamp

_T = TypeVar("_T")
_HUB = "hf://"
_FIRST_WAIT_S = 0.1  # before a request is made again; then twice as long each time
_TEMPORARY = (408, 429, 500, 502, 503, 504)
_KNOWN_FOR_S = 60.0
# what fsspec tells of paths, which commands ask for several times while they begin
_KNOWN: dict[str, tuple[float, dict[str, Any]]] = {}


def _system(path: str) -> Any:
    return _made(path.startswith(_HUB), os.getpid(), os.environ.get("HF_ENDPOINT"))


@cache
def _made(is_hub: bool, _process: int, endpoint: str | None) -> object:  # noqa: FBT001 - connections are of one process
    if is_hub:
        try:
            from huggingface_hub import HfFileSystem
        except ImportError:
            raise UsageError(f"the package huggingface_hub is missing; {bring('hf')}") from None
        return HfFileSystem(endpoint=endpoint)
    from fsspec.implementations.http import HTTPFileSystem

    timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_WITHIN_S, sock_read=ANSWERS_WITHIN_S)
    return HTTPFileSystem(
        # what is compressed stays so, as its size and its ranges are of what lies there
        client_kwargs={"auto_decompress": False, "timeout": timeout, "trust_env": True},
        headers={"Accept-Encoding": "identity", "User-Agent": f"altalign/{__version__}"},
    )


def _asked(path: str, request: Callable[[], _T]) -> _T:
    """The result of a request; temporary failures are retried.

    Raises:
        FileNotFoundError: there is no such file; it has the path as its `filename`.
        StoreError: anything else that the server or the network says.
    """
    errors: tuple[type[Exception], ...] = (OSError, aiohttp.ClientError)
    if path.startswith(_HUB):
        from httpx2 import HTTPError

        errors = OSError, HTTPError
    attempt = 0
    while True:
        try:
            return request()
        except errors as error:
            # fsspec raises FileNotFoundError whatever happened; that is its cause
            reason = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
            status = getattr(reason, "status", None) or getattr(getattr(reason, "response", None), "status_code", None)
            is_final = isinstance(reason, FileNotFoundError | aiohttp.InvalidURL | aiohttp.ClientSSLError)
            is_temporary = not is_final and (status or _TEMPORARY[0]) in _TEMPORARY
            attempt += 1
            if not is_temporary or attempt == ATTEMPTS:
                break
        time.sleep(_FIRST_WAIT_S * 2 ** (attempt - 1))
    if isinstance(reason, FileNotFoundError) or status in (404, 410):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from reason
    words = f"{status} {responses.get(status, '')}".strip() if status else first_line(reason)
    if is_temporary:
        what = "does not answer ({}); look at the network and the address, and run the same command again"
    elif status in (401, 403):
        what = "denies access ({}); set HF_TOKEN for the Hub, or put a name and a password into ~/.netrc"
    else:
        what = "refuses ({}); look at the address"
    raise StoreError(f"{path}: the server {what.format(words.replace(' ssl:default', ''))}") from reason


def _info(path: str) -> dict[str, Any]:
    """What fsspec tells of a path; asked for at most once a while."""
    at, known = _KNOWN.get(path, (0.0, {}))
    if not known or time.monotonic() - at > _KNOWN_FOR_S:
        known = _asked(path, lambda: _system(path).info(path))
        _KNOWN[path] = time.monotonic(), known
    return known


class WebFile:
    """A file for reads at any offset, by several threads at once; `size` in bytes."""

    def __init__(self, path: str):
        self.path, self.size = path, stamp(path).size
        # fsspec's own, which cannot be of no bytes
        self._file: Any = self.size and _asked(
            path, lambda: _system(path).open(path, size=self.size, cache_type="none")
        )

    def read_at(self, offset: int, length: int) -> bytes:
        """Bytes from an offset; fewer at the end."""
        end = min(offset + length, self.size)
        try:
            return _asked(self.path, lambda: self._file._fetch_range(offset, end)) if offset < end else b""
        except ValueError:  # fsspec met a server that sends the whole file instead
            raise StoreError(f"{self.path}: the server sends no ranges of it; download it, and name the file") from None


def check(path: str) -> None:
    """See whether the server answers. A missing file is not refused here."""
    if not path.startswith(_HUB) and "*" in path:
        raise UsageError(f"{path}: a web server does not list its files; name each of them")
    try:
        _KNOWN.pop(path, None)
        if path.startswith(_HUB):
            _system(path).invalidate_cache()
        if kind(path) == "file":
            stamp(path)
    except AltalignError as error:
        raise UsageError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    except (ValueError, NotImplementedError):  # the client's words for what is no path
        known = "hf://datasets/OWNER/NAME/FILE or hf://buckets/OWNER/NAME/FILE"
        raise UsageError(f"{path}: no path on the Hub; give {known}") from None


def kind(path: str) -> Literal["file", "folder", "missing"]:
    try:
        return "folder" if _info(path)["type"] == "directory" else "file"
    except FileNotFoundError:
        return "missing"


def exists(path: str) -> bool:
    return kind(path) == "file"


def stamp(path: str) -> Stamp:
    """Size, and the ETag, time of change or digest that the server tells, if any."""
    info = _info(path)
    if info["size"] is None:
        what = "the server does not tell its size (Content-Length), or compresses it"
        raise StoreError(f"{path}: {what}; download it, and name the file")
    names = ("ETag", "Last-Modified", "xet_hash", "blob_id")
    return Stamp(info["size"], 0, next((info[name] for name in names if info.get(name)), "").strip('"'))


def find(pattern: str) -> list[str]:
    if kind(pattern) != "missing":
        return [pattern]
    return _of_hub(pattern, "glob") if pattern.startswith(_HUB) and "*" in pattern else []


def names(folder: str, suffix: str = "") -> list[str]:
    return [name for name in entries(folder) if name.endswith(suffix) and kind(f"{folder}/{name}") == "file"]


def entries(folder: str) -> list[str]:
    if kind(folder) != "folder":
        return []
    paths = _asked(folder, lambda: _system(folder).ls(folder, detail=False))
    return sorted(path.rpartition("/")[2] for path in paths)


def files_below(folder: str) -> list[str]:
    return _of_hub(folder, "find") if kind(folder) == "folder" else []


def _of_hub(path: str, question: Literal["glob", "find"]) -> list[str]:
    paths: list[str] = _asked(path, lambda: getattr(_system(path), question)(path))
    return sorted(f"{_HUB}{name}" for name in paths)
