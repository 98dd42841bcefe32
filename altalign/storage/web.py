"""Inputs on web servers and on the Hugging Face Hub, behind the face of `altalign.storage`; read-only.

A web server does not say what lies in a folder; the Hub does.
"""

from typing import Literal

from altalign.errors import AltalignError, UsageError
from altalign.storage import web_files
from altalign.storage.objects import ask_for, each, open_again, open_read, read_bytes, read_range, read_ranges
from altalign.storage.stamp import Stamp
from altalign.storage.web_files import HUB, asked, facts, system

__all__ = ["ask_for", "each", "open_again", "open_read", "read_bytes", "read_range", "read_ranges"]


def check(path: str) -> None:
    """See whether the server answers. A missing file is not refused here.

    Raises:
        UsageError: it does not answer, or refuses; or the path is none of the Hub's, or the package for it is missing.
    """
    if not path.startswith(HUB) and "*" in path:
        raise UsageError(f"{path}: a web server does not list its files; name each of them")
    try:
        web_files.forget(path)
        kind(path)
    except AltalignError as error:
        raise UsageError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    except (ValueError, NotImplementedError):  # the client's words for what is no path
        raise UsageError(f"{path}: no path on the Hub; give hf://datasets/OWNER/NAME/FILE") from None


def absolute(path: str) -> str:
    """The path without a slash at its end."""
    return path.rstrip("/")


resolved = absolute


def mappable(path: str) -> str:
    """A local copy."""
    return web_files.copy(path)


def kind(path: str) -> Literal["file", "folder", "missing"]:
    """What is at a path."""
    try:
        return facts(path).kind
    except FileNotFoundError:
        return "missing"


def exists(path: str) -> bool:
    """Whether there is a file."""
    return kind(path) == "file"


def stamp(path: str) -> Stamp:
    """Size, and the ETag, modification time or digest that the server tells; with none of them, the size of a copy."""
    told = facts(path)
    size = web_files.WebFile(path).size() if told.size is None else told.size
    return Stamp(size, 0, told.version)


def find(pattern: str) -> list[str]:
    """The path itself if it exists; on the Hub, whatever the glob matches."""
    if kind(pattern) != "missing":
        return [pattern]
    return _of_hub(pattern, "glob") if pattern.startswith(HUB) and "*" in pattern else []


def names(folder: str, suffix: str = "") -> list[str]:
    """Names of the files of a folder."""
    return [name for name in entries(folder) if name.endswith(suffix) and kind(f"{folder}/{name}") == "file"]


def entries(folder: str) -> list[str]:
    """Names of files and folders."""
    if kind(folder) != "folder":
        return []
    there = asked(folder, lambda: system(folder).ls(folder, detail=False))
    return sorted(name.rpartition("/")[2] for name in there)


def files_below(folder: str) -> list[str]:
    """Paths of all files below a folder."""
    return _of_hub(folder, "find") if kind(folder) == "folder" else []


def _of_hub(path: str, question: Literal["glob", "find"]) -> list[str]:
    found: list[str] = asked(path, lambda: getattr(system(path), question)(path))
    return sorted(f"{HUB}{name}" for name in found)
