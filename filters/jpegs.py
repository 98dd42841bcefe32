"""Encodes images as JPEG while other threads run.

Pillow releases Python's lock while it encodes to a file of the system, but not for a file object of Python. A memory
file (memfd) is a file of the system.
"""

import errno
import io
import os
from typing import IO, Any, cast

from PIL import Image

_END = b"\xff\xd9"  # "end of image": the last bytes of every JPEG
_NO_MEMORY = (errno.ENOMEM, errno.ENOSPC, errno.EFBIG)


class _File:
    """The part of a file object that Pillow uses."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor

    def fileno(self) -> int:
        """The file's descriptor."""
        return self._descriptor

    def flush(self) -> None:
        """Does nothing: nothing is buffered."""


def encoded(image: Image.Image, *, quality: int) -> bytes:
    """The bytes that `Image.save` writes, without metadata.

    Raises:
        MemoryError: the machine has too little memory.
        OSError: the encoder does not take the image.
    """
    try:
        descriptor = os.memfd_create("jpeg")
    except (AttributeError, OSError):  # the system is not Linux, or refuses
        return _encoded_by_python(image, quality=quality)
    try:
        image.save(cast(IO[Any], _File(descriptor)), "JPEG", quality=quality)
        size = os.lseek(descriptor, 0, os.SEEK_CUR)
        data = os.pread(descriptor, size, 0)
    except OSError as error:
        if error.errno in _NO_MEMORY:
            raise MemoryError(f"for an image of {image.width} x {image.height} as JPEG") from error
        raise
    finally:
        os.close(descriptor)
    if not data.endswith(_END):  # Pillow does not check that everything was written
        raise MemoryError(f"for an image of {image.width} x {image.height} as JPEG")
    return data


def _encoded_by_python(image: Image.Image, *, quality: int) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()
