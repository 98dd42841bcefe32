"""JPEG bytes: those of Pillow, whatever kind of file it wrote them to, and none that were cut."""

import errno
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from altalign.filters import jpegs
from tests.support.pictures import encoded

IN_MEMORY = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no files in memory")

# Encodes a picture of some size where no file may have more bytes than a limit.
LIMITED = """
import random, resource, sys
from PIL import Image
from altalign.filters import jpegs
side, limit = int(sys.argv[1]), int(sys.argv[2])
image = Image.frombytes("RGB", (side, side), random.Random(1).randbytes(3 * side * side))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    print(len(jpegs.encoded(image, quality=95)))
except MemoryError as error:
    print(error)
"""


def picture(mode: str, width: int, height: int) -> Image.Image:
    return Image.frombytes("RGB", (width, height), random.Random(width).randbytes(3 * width * height)).convert(mode)


def plain(image: Image.Image, quality: int) -> bytes:
    return encoded(image, "JPEG", quality=quality)


@pytest.fixture(params=["in memory", "of Python", "refused"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there are files in memory."""

    def refused(_: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    match request.param:
        case "of Python":
            monkeypatch.delattr(os, "memfd_create", raising=False)
        case "refused":
            monkeypatch.setattr(os, "memfd_create", refused, raising=False)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("size", [(1, 1), (17, 9), (640, 480), (3, 5_000), (1_500, 1_100)])
def test_bytes_are_those_of_pillow(kind: None, mode: str, size: tuple[int, int]) -> None:
    image = picture(mode, *size)
    assert [jpegs.encoded(image, quality=quality) for quality in (95, 30)] == [
        plain(image, quality) for quality in (95, 30)
    ]


def test_what_is_no_image_for_a_jpeg_is_an_error_of_pillows(kind: None) -> None:
    for image in (Image.new("RGBA", (3, 3)), Image.new("L", (70_000, 1))):
        with pytest.raises(OSError, match=r"cannot write mode RGBA as JPEG|encoder error|broken data stream"):
            jpegs.encoded(image, quality=95)


@IN_MEMORY
@pytest.mark.parametrize(
    ("side", "limit"),
    [(60, 3_000), (400, 70_000), (400, 100_000)],
    ids=["in its only write", "in its second", "in a later one"],
)
def test_bytes_that_were_cut_are_no_jpeg(side: int, limit: int) -> None:
    wanted = [sys.executable, "-c", LIMITED, str(side), str(limit)]
    done = subprocess.run(wanted, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert done.stdout == f"for an image of {side} x {side} as JPEG\n"


@IN_MEMORY
def test_no_file_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    real = os.memfd_create
    monkeypatch.setattr(os, "memfd_create", lambda name: opened.append(real(name)) or opened[-1])
    jpegs.encoded(picture("RGB", 20, 20), quality=95)
    with pytest.raises(OSError, match="cannot write mode"):
        jpegs.encoded(Image.new("RGBA", (3, 3)), quality=95)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(MemoryError, match="for an image of 20 x 20 as JPEG"):
        jpegs.encoded(picture("RGB", 20, 20), quality=95)
    assert len(opened) == 3
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
