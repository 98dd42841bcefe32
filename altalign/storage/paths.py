"""Paths on disks, in stores and on the web: what kind a path is of, and its parts. Nothing is opened."""

import posixpath
from pathlib import Path, PurePath

STORES = ("s3://", "gs://")
WEB = ("https://", "http://", "hf://")


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
