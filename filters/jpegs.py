"""Encodes images as JPEG while other threads run.

Pillow releases Python's lock while it encodes to a file of the system, but not for a file object of Python. A memory
file (memfd) is a file of the system.
"""

import errno
import io
import os

from PIL import Image

_END = b"\xff\xd9"  # "end of image": the last bytes of every JPEG
_NO_MEMORY = (errno.ENOMEM, errno.ENOSPC, errno.EFBIG)


def encoded(image: Image.Image, *, quality: int) -> bytes:
    """The bytes that `Image.save` writes, without metadata.

    Raises:
        MemoryError: the machine has too little memory.
        OSError: the encoder does not take the image.
    """
    try:
        descriptor = os.memfd_create("jpeg")
    except (AttributeError, OSError):  # the system is not Linux, or refuses
        in_python = io.BytesIO()
        image.save(in_python, "JPEG", quality=quality)
        return in_python.getvalue()
    try:
        with os.fdopen(descriptor, "w+b") as file:
            image.save(file, "JPEG", quality=quality)
            data = os.pread(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR), 0)
    except OSError as error:
        if error.errno in _NO_MEMORY:
            raise MemoryError(f"for an image of {image.width} x {image.height} as JPEG") from error
        raise
    if not data.endswith(_END):  # Pillow does not check that everything was written
        raise MemoryError(f"for an image of {image.width} x {image.height} as JPEG")
    return data
