"""The files of a folder or of an uncompressed tar, one after the other.

The benchmarks of images read them so, ours and the peer's alike.

Standard library alone: the peer runs in an environment of its own.
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".avif", ".bmp", ".tif", ".tiff")


class Place(NamedTuple):
    """Where the bytes of an image are, and the folder of its name."""

    path: str
    offset: int
    length: int
    group: str


def places(path: Path) -> Iterator[Place]:
    """Every image of a folder (with its subfolders, in the order of names) or of a tar, in its order."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.suffix.lower() in SUFFIXES:
                yield Place(str(file), 0, file.stat().st_size, file.parent.name)
        return
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            if member.isfile() and member.name.lower().endswith(SUFFIXES):
                yield Place(str(path), member.offset_data, member.size, Path(member.name).parent.name)
