"""Paths on disks, in stores and on the web, and the stamps of files. Nothing is opened."""

import posixpath
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

from altalign.errors import UsageError

STORES = ("s3://", "gs://")
WEB = ("https://", "http://", "hf://")


@dataclass(frozen=True)
class Stamp:
    """Tells whether a file has changed: its bytes, and the store's digest (ETag), or on a disk the time of change."""

    size: int
    time_ns: int
    digest: str = ""

    def to_json(self) -> list[int | str]:
        """The stamp as it stands in the facts of a run."""
        return [self.size, self.digest or self.time_ns]


class Place(NamedTuple):
    """Where an object is, or a folder of them; an empty key: the bucket itself."""

    scheme: str
    bucket: str
    key: str

    @classmethod
    def parse(cls, path: str) -> "Place":
        """The place of a path; UsageError where it names no bucket, or has a part that no client takes as it is."""
        scheme, _, rest = path.partition("://")
        bucket, _, key = rest.partition("/")
        if not bucket:
            raise UsageError(f"{path}: no bucket is named; give {scheme}://BUCKET/…")
        key = key.strip("/")
        if key and {"", ".", ".."} & set(key.split("/")):
            raise UsageError(f"{path}: a store has no folders named '', '.' or '..'; give the path without them")
        return cls(scheme, bucket, key)

    @property
    def name(self) -> str:
        """The name that clients use: bucket and key."""
        return f"{self.bucket}/{self.key}".rstrip("/")


def is_remote(path: str) -> bool:
    """Whether a path is in an object store or on the web."""
    return "://" in path


def is_of_web(path: str) -> bool:
    """Whether a path is on a web server or on the Hugging Face Hub, where it can only be read."""
    return path.startswith(WEB)


def join(*parts: str) -> str:
    """A path of its parts."""
    return posixpath.join(*parts)


def folder_of(path: str) -> str:
    """The folder that a path is in."""
    return path.rpartition("/")[0] if is_remote(path) else str(Path(path).parent)


def name(path: str) -> str:
    """The name of a file, of a URL without its query."""
    return PurePath(path.partition("?")[0] if is_of_web(path) else path).name


def absolute(path: str) -> str:
    """The path from the root, without a slash at its end; links stay."""
    if not is_remote(path):
        return str(Path(path).absolute())
    if is_of_web(path):
        return path.rstrip("/")
    place = Place.parse(path)
    return f"{place.scheme}://{place.name}"


def resolved(path: str) -> str:
    """The path from the root, wherever links lead."""
    return absolute(path) if is_remote(path) else str(Path(path).resolve())


def relative(path: str, folder: str) -> str | None:
    """The path as seen from a folder that it is in, with `/`, links not followed; None of one that is elsewhere."""
    if is_remote(path) != is_remote(folder):
        return None
    path, folder = absolute(path), absolute(folder)
    if path == folder:
        return "."
    inside = folder if folder.endswith("/") else f"{folder}/"
    return path.removeprefix(inside) if path.startswith(inside) else None


def is_inside(path: str, folder: str) -> bool:
    """Whether a path is a folder or in it, wherever links lead."""
    return is_remote(path) == is_remote(folder) and relative(resolved(path), resolved(folder)) is not None
