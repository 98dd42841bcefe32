"""JPEG bytes of an image, encoded while other threads run.

Pillow gives Python's lock away while it encodes to a file of the system, and keeps it for one of Python's. A file in
memory is one of the system.
"""

import errno
import io
import os
from typing import IO, Any, cast

from PIL import Image

_END = b"\xff\xd9"  # of every JPEG: end of image
_NO_MEMORY = (errno.ENOMEM, errno.ENOSPC, errno.EFBIG)


class _File:
    """As much of a file as Pillow asks for."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Its descriptor."""
        return self._descriptor

    def flush(self) -> None:
        """Nothing is held back."""


def encoded(image: Image.Image, *, quality: int) -> bytes:
    """The bytes of `Image.save`, without metadata.

    Raises:
        MemoryError: the machine has too little.
        OSError: the encoder does not take the image.
    """
    try:
        descriptor = os.memfd_create("jpeg")
    except (AttributeError, OSError):  # another system than Linux, or it gives us none
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
    if not data.endswith(_END):  # Pillow does not look whether all was written
        raise MemoryError(f"for an image of {image.width} x {image.height} as JPEG")
    return data


def _encoded_by_python(image: Image.Image, *, quality: int) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()
