"""The images of an uncompressed tar, one after the other: the benchmarks of images read them so, ours and the peers'.

Standard library alone: peers run in an environment of their own.
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
    """Every image of a tar, in its order."""
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            if member.isfile() and member.name.lower().endswith(SUFFIXES):
                yield Place(str(path), member.offset_data, member.size, Path(member.name).parent.name)
