"""What the bytes of an image say before it is decoded: its format, size and orientation, and that decoders can be trusted with it.

Images are opened, and then decoded, within `STRICT_PILLOW`.
"""

import ctypes
import io
import threading
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from types import ModuleType
from typing import Any

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from altalign.decoder_errors import DECODER_ERRORS

# ours; above 33 million Pillow cannot count the bits of a row, and BMP's run lengths may skip 255 rows in two bytes
ROW_AT_MOST_PX = 1 << 20

# The plug-in is chosen by our own sniffing: no probing of forty others, and no lying file extension.
_OPENERS: Mapping[str, type[ImageFile.ImageFile]] = {
    "jpeg": JpegImagePlugin.JpegImageFile,
    "png": PngImagePlugin.PngImageFile,
    "webp": WebPImagePlugin.WebPImageFile,
    "gif": GifImagePlugin.GifImageFile,
    "avif": AvifImagePlugin.AvifImageFile,
    "bmp": BmpImagePlugin.BmpImageFile,
    "tiff": TiffImagePlugin.TiffImageFile,
}

_GIF_HEAD_BYTES = 1 << 20  # ours
# sizes of the header that follows the file's: keeps texts that begin with BM out
_BMP_HEADERS = (12, 16, 40, 52, 56, 64, 108, 124)
_AVIF_BRANDS = (b"avif", b"avis")
_TIFF_COMPRESSIONS = (
    "raw",
    "tiff_lzw",
    "tiff_jpeg",
    "jpeg",
    "tiff_adobe_deflate",
    "tiff_deflate",
    "packbits",
    "lzma",
    "zstd",
    "webp",
)


def sniff(data: bytes) -> str | None:
    """The image format by the first bytes; None for everything else (SVG, HTML, HEIC, nothing)."""
    if data[:3] == b"\xff\xd8\xff":
        return "jpeg"
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    if data[4:8] == b"ftyp" and _is_avif(data):
        return "avif"
    if data[:2] == b"BM" and int.from_bytes(data[14:18], "little") in _BMP_HEADERS:
        return "bmp"
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return "tiff"
    return None


def opened(kind: str, data: bytes) -> tuple[ImageFile.ImageFile, int, int]:
    """An image of a format that `sniff` gives, not yet decoded; its width and height as stored, of the first frame.

    Raises:
        Exception: one of `DECODER_ERRORS`, or MemoryError where the header asks for more than any limit of ours.
    """
    if kind == "gif":
        _check_gif(data)
    image = _OPENERS[kind](io.BytesIO(data))
    return image, *_stored_size(image)


def check_decodable(image: ImageFile.ImageFile, width: int) -> None:
    """Refuse what is not to be given to a decoder; `width` as stored.

    On every machine alike a row that decoders take so much memory for, or so many bits, that they raise MemoryError
    themselves. And a TIFF of a fax's or another rare compression: of damage in it libtiff says nothing, and gives what
    was in the memory before.

    Raises:
        ValueError: it is such an image.
    """
    if width > ROW_AT_MOST_PX:
        raise ValueError(f"a row of {width} pixels, longer than {ROW_AT_MOST_PX}")
    if (
        isinstance(image, TiffImagePlugin.TiffImageFile)
        and image.info.get("compression", "raw") not in _TIFF_COMPRESSIONS
    ):
        raise ValueError(f"compression {image.info['compression']}, in which damage goes unnoticed")


def orientation_of(image: ImageFile.ImageFile) -> int:
    """EXIF orientation, 1 to 8; what is none, cannot be read or is out of range counts as 1. XMP is not asked, as browsers do not."""
    try:
        if isinstance(image, TiffImagePlugin.TiffImageFile):
            orientation = image.tag_v2.get(ExifTags.Base.Orientation, 1)
        else:
            exif = Image.Exif()
            exif.load(image.info.get("exif", b""))
            orientation = exif.get(ExifTags.Base.Orientation, 1)
    except DECODER_ERRORS:
        return 1
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


def words_of(error: BaseException) -> str:
    """The decoder's words; a lookup or arithmetic error says nothing without its type."""
    says_it_all = isinstance(error, (OSError, SyntaxError, ValueError, RuntimeError)) and str(error)
    return str(error) if says_it_all else f"{type(error).__name__} {error}".rstrip()


class _StrictPillow:
    """For the time of a block: no warnings, no pixel limit but ours, no half-read files, one thread a decoder, and nothing that libtiff prints.

    All five are variables of Pillow's modules, `warnings` and libtiff, so the blocks of several threads share them: the
    first to come sets them, the last to go puts back what was there. Whoever opens image after image holds a block
    around them all, or each would pay for both.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._before = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._blocks == 0:
                self._before.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
                self._set(Image, MAX_IMAGE_PIXELS=None)
                self._set(ImageFile, LOAD_TRUNCATED_IMAGES=False)
                self._set(AvifImagePlugin, DEFAULT_MAX_THREADS=1)
                for set_handler in _setters_of_tiff_handlers():
                    self._before.callback(set_handler, set_handler(None))
            self._blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                self._before.close()

    def _set(self, module: ModuleType, **values: object) -> None:
        for name, value in values.items():
            self._before.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)


STRICT_PILLOW = _StrictPillow()


@cache
def _setters_of_tiff_handlers() -> list[Any]:
    """Functions that set what libtiff calls with errors and warnings, and return what it called before; none where Pillow's build hides them.

    By default it prints them.
    """
    library = ctypes.CDLL(Image.core.__file__)  # and what that loads
    found = [getattr(library, name, None) for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler")]
    setters = [setter for setter in found if setter is not None]
    for setter in setters:
        setter.argtypes, setter.restype = [ctypes.c_void_p], ctypes.c_void_p
    return setters


def _stored_size(image: ImageFile.ImageFile) -> tuple[int, int]:
    """Width and height as stored, of the first frame. Pillow turns a TIFF's size round as its orientation asks; this turns it back."""
    width, height = image.size
    if isinstance(image, TiffImagePlugin.TiffImageFile) and orientation_of(image) >= 5:
        width, height = height, width
    if min(width, height) < 1:
        raise ValueError(f"an image of {width} x {height} pixels")
    return width, height


def _check_gif(data: bytes) -> None:
    """Refuse a GIF with too much before its first frame: Pillow joins comments piece by piece, a second for 3 MB and an hour for 200."""
    at = 13 + (2 << (data[10] & 7)) * 3 * (data[10] >> 7)
    while data[at : at + 1] == b"!":
        at += 2
        while data[at : at + 1] not in (b"", b"\0"):
            at += data[at] + 1
            if at > _GIF_HEAD_BYTES:
                raise ValueError(f"more than {_GIF_HEAD_BYTES} bytes before the first frame")
        at += 1


def _is_avif(data: bytes) -> bool:
    """Whether the `ftyp` box at the start names an AVIF brand: the major one, or one of the compatible ones (HEIC shares the container)."""
    box = data[8 : min(int.from_bytes(data[:4], "big"), 512)]
    brands = [box[at : at + 4] for at in range(0, len(box), 4) if at != 4]  # bytes 4 to 7 are the minor version
    return any(brand in _AVIF_BRANDS for brand in brands)
