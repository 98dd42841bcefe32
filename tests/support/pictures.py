"""Small images of every format, and PNGs by their chunks."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

from altalign.filters.image_headers import HAS_HEIF

FORMATS = ("jpeg", "png", "webp", "gif", "avif", "bmp", "tiff", *["heic"] * HAS_HEIF)
if HAS_HEIF:
    import pillow_heif

    pillow_heif.register_heif_opener()


def picture(width: int = 320, height: int = 240) -> Image.Image:
    """Smooth, colourful, and different in each of its corners."""
    rng = np.random.default_rng(5)
    return Image.fromarray(rng.integers(0, 256, (5, 6, 3), np.uint8)).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """An image as a file of a format."""
    file = io.BytesIO()
    image.save(file, "HEIF" if kind == "heic" else kind.upper(), **options)
    return file.getvalue()


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def one_bit_png(width: int, height: int) -> bytes:
    """A decompression bomb: white rows that compress a thousandfold."""
    row = b"\0" + b"\xff" * ((width + 7) // 8)
    packer = zlib.compressobj(9)
    body = b"".join([*(packer.compress(row) for _ in range(min(height, 100))), packer.flush()])
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
        + chunk(b"IDAT", body)
        + chunk(b"IEND", b"")
    )
