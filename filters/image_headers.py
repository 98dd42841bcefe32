"""Reads an image's format, size and orientation before decoding, and refuses what decoders do not handle safely.

Images are opened, and then decoded, within `STRICT_PILLOW`.
"""

import ctypes
import importlib.util
import io
import re
import threading
import warnings
from contextlib import ExitStack
from functools import cache
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

from altalign.filters import readable
from altalign.filters.readable import DECODER_ERRORS

# Ours. Above 33 million, Pillow cannot count the bits of a row; and run lengths of BMP may skip 255 rows in two bytes.
ROW_AT_MOST_PX = 1 << 20

_NO_LIMIT = 1 << 62  # pixels: the limits are our callers'

# `sniff` chooses the plug-in: Pillow does not try forty others, and no file extension can mislead it.
_OPENERS: dict[str, type[ImageFile.ImageFile]] = {
    "jpeg": JpegImagePlugin.JpegImageFile,
    "png": PngImagePlugin.PngImageFile,
    "webp": WebPImagePlugin.WebPImageFile,
    "gif": GifImagePlugin.GifImageFile,
    "avif": AvifImagePlugin.AvifImageFile,
    "bmp": BmpImagePlugin.BmpImageFile,
    "tiff": TiffImagePlugin.TiffImageFile,
}

# Whether the extra `heif` is installed, whose decoder is loaded with the first HEIC.
HAS_HEIF = importlib.util.find_spec("pillow_heif") is not None
_HEIC = re.compile(rb"....ftyp(hei[cxms]|hev[cxms]|mif1|msf1)", re.DOTALL)

# Formats that are not read: name, what reads it, and how its files begin.
_SVG = rb"(?s)(\xef\xbb\xbf)?\s*(?><!--.*?-->\s*|<(\?|!(?!--))[^<]*)*<svg\b"
_UNREAD = [
    ("HEIC", "pillow-heif or heif-convert, or install the extra heif", _HEIC),
    ("JPEG 2000", "Pillow or opj_decompress", re.compile(rb"\0\0\0\x0cjP  \r\n|\xff\x4f\xff\x51")),
    ("JPEG XL", "djxl", re.compile(rb"\0\0\0\x0cJXL \r\n|\xff\x0a")),
    ("SVG", "rsvg-convert or Inkscape", re.compile(_SVG)),
]
_CODED = (0xC0, 0xC1, 0xC2)  # frames of JPEG: baseline, extended, progressive; all else is arithmetic or lossless
_GIF_HEAD_BYTES = 1 << 20  # ours
# Sizes of the header that follows the file's own: a text that begins with BM is no image.
_BMP_HEADERS = (12, 16, 40, 52, 56, 64, 108, 124)
_AVIF_BRANDS = (b"avif", b"avis")
_TIFF_COMPRESSIONS = {"raw", "packbits", "tiff_lzw", "tiff_deflate", "tiff_adobe_deflate", "tiff_jpeg", "jpeg", "lzma"}
_TIFF_COMPRESSIONS |= {"zstd", "webp"}


def sniff(data: bytes) -> str | None:
    """The image format that the first bytes show; None for everything else (SVG, HTML, nothing).

    HEIC is one where the extra `heif` is installed.
    """
    if data[:3] == b"\xff\xd8\xff":
        return "jpeg"
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    # AVIF is a brand, the major one or a compatible one: HEIC shares the container; bytes 4 to 7 are the minor version
    box = data[8 : min(int.from_bytes(data[:4], "big"), 512)] if data[4:8] == b"ftyp" else b""
    if any(box[at : at + 4] in _AVIF_BRANDS for at in range(0, len(box), 4) if at != 4):
        return "avif"
    if HAS_HEIF and _HEIC.match(data):
        return "heic"
    if data[:2] == b"BM" and int.from_bytes(data[14:18], "little") in _BMP_HEADERS:
        return "bmp"
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return "tiff"
    return None


def unread(data: bytes) -> str | None:
    """The name of an image format that we do not read, and what would; None for what is no image."""
    for name, by, start in _UNREAD:
        if start.match(data):
            return f"{name}, which is not read; convert it to JPEG or PNG with {by}"
    return None


def opened(kind: str, data: bytes) -> tuple[ImageFile.ImageFile, int, int]:
    """The image, not yet decoded, and the width and height of its first frame as stored; `kind` comes from `sniff`.

    Raises:
        Exception: one of `DECODER_ERRORS`, or MemoryError where the header asks for more than any limit of ours.
    """
    if kind == "gif":
        _check_gif(data)
    image = _open(kind, data)
    width, height = image.size
    if isinstance(image, TiffImagePlugin.TiffImageFile) and orientation_of(image) >= 5:  # Pillow swaps them
        width, height = height, width
    if min(width, height) < 1:
        raise ValueError(f"an image of {width} x {height} pixels")
    return image, width, height


def _open(kind: str, data: bytes) -> ImageFile.ImageFile:
    """The image of a file as Pillow reads it right."""
    if kind == "png":
        data, profile = readable.png(data)
        image = PngImagePlugin.PngImageFile(io.BytesIO(data))
        image.info["icc_profile"] = profile
        # the clear colour in 8 bits, as Pillow scales the pixels
        rawmode, clear = (image.tile[0].args if image.tile else None), image.info.get("transparency")
        if isinstance(clear, int) and rawmode in ("L;2", "L;4"):
            image.info["transparency"] = clear % 4 * 85 if rawmode == "L;2" else clear % 16 * 17
        elif isinstance(clear, tuple) and rawmode == "RGB;16B":
            image.info["transparency"] = tuple(channel >> 8 for channel in clear)
        return image
    if kind == "heic":  # libheif turns images itself, and decodes no more pixels than the header says
        import pillow_heif

        pillow_heif.options.DECODE_THREADS = 1
        return pillow_heif.HeifImageFile(io.BytesIO(data))
    try:
        image = _OPENERS[kind](io.BytesIO(readable.bmp(data) if kind == "bmp" else data))
    except DECODER_ERRORS:
        if kind != "jpeg":
            raise
        return JpegImagePlugin.JpegImageFile(io.BytesIO(readable.jpeg(data)))
    if isinstance(image, WebPImagePlugin.WebPImageFile) and image.is_animated and image.mode == "RGB":
        # what its first frame does not cover is clear, whatever the file says
        image.rawmode = image._mode = "RGBA"  # pyright: ignore[reportPrivateUsage] (no other way to say so)
    return image


def check_decodable(image: ImageFile.ImageFile, width: int) -> None:
    """Refuse by ValueError an image that no decoder should get; `width` is as stored.

    A very long row takes so much memory, or so many bits, that decoders raise MemoryError; it is refused on every
    machine alike. In a TIFF of a fax's or another rare compression libtiff does not report damage, and returns what was
    in memory before.
    """
    if width > ROW_AT_MOST_PX:
        raise ValueError(f"a row of {width} pixels, longer than {ROW_AT_MOST_PX}")
    compression = image.info.get("compression", "raw")
    if isinstance(image, TiffImagePlugin.TiffImageFile) and compression not in _TIFF_COMPRESSIONS:
        raise ValueError(f"compression {compression}, in which damage goes unnoticed")


def orientation_of(image: ImageFile.ImageFile) -> int:
    """EXIF orientation, 1 to 8; 1 if it is missing, unreadable or out of range. XMP is ignored, as browsers do."""
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


def is_plain_jpeg(data: bytes) -> bool:
    """Whether every reader shows a sound JPEG in the same way.

    It is coded as browsers know it, gray or RGB, and neither EXIF nor XMP turns it: by XMP, Pillow turns what has no
    orientation in EXIF. Where another segment than JFIF's and profiles is, Pillow has to take it.
    """
    is_known, components = True, 0
    for marker, at, end in readable.segments(data):
        if marker in readable.FRAMES:
            components = data[at + 9] if marker in _CODED and end - at > 9 else 0
        elif 0xE0 <= marker <= 0xEF and marker != 0xE2:
            is_known &= marker == 0xE0 and end - at >= readable.JFIF_BYTES
    if components not in (1, 3) or is_known:
        return components in (1, 3)
    try:
        image = JpegImagePlugin.JpegImageFile(io.BytesIO(data))
        return image.getexif().get(ExifTags.Base.Orientation, 1) not in range(2, 9)
    except DECODER_ERRORS:
        return False


def words_of(error: BaseException) -> str:
    """The decoder's message; for a lookup or arithmetic error with its type, without which it says nothing."""
    says_it_all = isinstance(error, (OSError, SyntaxError, ValueError, RuntimeError)) and str(error)
    return (str(error) if says_it_all else f"{type(error).__name__} {error}").rstrip()


class _StrictPillow:
    """A `with` block in which Pillow decodes as strictly as we do, and no decoder prints or warns.

    Pillow's limit of pixels, its half-read files and its threads are variables of its modules, which the first block
    sets and nobody puts back: another thread may be between two lines that read them. The process's warning filters and
    libtiff's handlers are restored when the last block ends. Code that opens many images holds one block around them.
    """

    def __init__(self) -> None:
        self._lock, self._blocks, self._before = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._blocks == 0:
                Image.MAX_IMAGE_PIXELS = _NO_LIMIT  # a number: None between two lines of Pillow's check is a TypeError
                ImageFile.LOAD_TRUNCATED_IMAGES = False
                AvifImagePlugin.DEFAULT_MAX_THREADS = 1
                self._before.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
                for set_handler in _setters_of_tiff_handlers():
                    self._before.callback(set_handler, set_handler(None))
            self._blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                self._before.close()


STRICT_PILLOW = _StrictPillow()


@cache
def _setters_of_tiff_handlers() -> list[Any]:
    """Functions that set libtiff's handlers, which print, and return those before; none where Pillow hides them."""
    library = ctypes.CDLL(Image.core.__file__)  # finds symbols of the libraries that it loads, too
    functions = [getattr(library, name, None) for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler")]
    setters = [setter for setter in functions if setter is not None]
    for setter in setters:
        setter.argtypes, setter.restype = [ctypes.c_void_p], ctypes.c_void_p
    return setters


def _check_gif(data: bytes) -> None:
    """Refuse a GIF with too much before its first frame.

    Pillow joins comments piece by piece, which takes a second for 3 MB and an hour for 200.
    """
    at = 13 + (2 << (data[10] & 7)) * 3 * (data[10] >> 7)
    while data[at : at + 1] == b"!":
        at += 2
        while data[at : at + 1] not in (b"", b"\0"):
            at += data[at] + 1
            if at > _GIF_HEAD_BYTES:
                raise ValueError(f"more than {_GIF_HEAD_BYTES} bytes before the first frame")
        at += 1
