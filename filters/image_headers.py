"""Reads an image's format, size and orientation before decoding, and refuses what decoders do not handle safely.

Images are opened, and then decoded, within `STRICT_PILLOW`.
"""

import ctypes
import importlib.util
import io
import re
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import suppress

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

# What decoders raise on bytes that are not what they claim. Pillow's plug-ins parse in Python, hence the lookup, type
# and arithmetic errors. MemoryError is not among them: of an image within the limits, no plug-in raises it for corrupt
# bytes, so it tells of the machine.
_OF_PLUGINS = (OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, AttributeError, ArithmeticError)
DECODER_ERRORS = (*_OF_PLUGINS, RuntimeError, AssertionError, struct.error, zlib.error)

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
_PROFILE_BYTES_AT_MOST = 1 << 25  # ours
_JFIF_BYTES = 18
_FRAMES = tuple(marker for marker in range(0xC0, 0xD0) if marker not in (0xC4, 0xC8, 0xCC))  # of JPEG
_NO_LENGTH = (0x01, *range(0xD0, 0xD9))  # markers of JPEG that stand alone
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
        data, profile = _plain_png(data)
        image = PngImagePlugin.PngImageFile(io.BytesIO(data))
        image.info["icc_profile"] = profile
        return image
    if kind == "heic":  # libheif turns images itself, and decodes no more pixels than the header says
        import pillow_heif

        pillow_heif.options.DECODE_THREADS = 1
        return pillow_heif.HeifImageFile(io.BytesIO(data))
    try:
        return _OPENERS[kind](io.BytesIO(data))
    except DECODER_ERRORS:
        if kind != "jpeg":
            raise
        # without APP segments, but for whole ones of JFIF and of Adobe's mark: Pillow stumbles on some
        parts, start = list[bytes](), 0
        for marker, at, end in _segments(data):
            if 0xE0 <= marker <= 0xEF and not (marker in (0xE0, 0xEE) and end - at >= _JFIF_BYTES - 2):
                parts.append(data[start:at])
                start = end
        return JpegImagePlugin.JpegImageFile(io.BytesIO(b"".join([*parts, data[start:]])))


def _plain_png(data: bytes) -> tuple[bytes, bytes | None]:
    """A PNG of the chunks that decide what its first image shows, and its colour profile.

    Texts of any length go, and ancillary chunks whose checksum is wrong.
    """
    parts, profile, at, start, kind = list[bytes](), None, 8, 0, b""
    while at + 8 <= len(data) and kind != b"IEND":
        end, kind = at + 12 + int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if kind[:1].islower():
            is_sound = data[end - 4 : end] == zlib.crc32(data[at + 4 : end - 4]).to_bytes(4, "big")
            if is_sound and kind == b"iCCP" and profile is None:
                with suppress(zlib.error):
                    packed = data[at + 8 : end - 4].partition(b"\0")[2][1:]
                    profile = zlib.decompressobj().decompress(packed, _PROFILE_BYTES_AT_MOST)
            if not (is_sound and kind in (b"tRNS", b"eXIf")):
                parts.append(data[start:at])
                start = end
        at = end
    return (b"".join([*parts, data[start:]]) if parts else data), profile


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Marker, beginning and end of each segment of a JPEG before its first scan."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF and (marker := data[at + 1]) != 0xDA:
        if marker == 0xFF:  # a byte that fills
            at += 1
            continue
        end = at + 2 + (0 if marker in _NO_LENGTH else int.from_bytes(data[at + 2 : at + 4], "big"))
        yield marker, at, end
        at = max(end, at + 2)


def check_decodable(image: ImageFile.ImageFile, width: int) -> None:
    """Refuse by ValueError an image that no decoder should get; `width` is as stored.

    A very long row takes so much memory, or so many bits, that decoders raise MemoryError; it is refused on every
    machine alike. In a TIFF of a fax's or another rare compression libtiff does not report damage, and returns what was
    in memory before.
    """
    if width > ROW_AT_MOST_PX:
        raise ValueError(f"a row of {width} pixels, longer than {ROW_AT_MOST_PX}")
    if isinstance(image, BmpImagePlugin.BmpImageFile) and image.tile and image.tile[0].codec_name == "bmp_rle":
        raise ValueError("run lengths of BMP, of which decoders lose pixels")
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
    for marker, at, end in _segments(data):
        if marker in _FRAMES:
            components = data[at + 9] if marker in _CODED and end - at > 9 else 0
        elif 0xE0 <= marker <= 0xEF and marker != 0xE2:
            is_known &= marker == 0xE0 and end - at >= _JFIF_BYTES
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
    """A `with` block in which Pillow decodes as strictly as we do, and no decoder warns.

    Pillow's limit of pixels, its half-read files and its threads are variables of its modules, which nobody puts back:
    another thread may be between two lines that read them. The process's warning filters are restored when the last
    block ends. Code that opens many images holds one block around them.
    """

    def __init__(self) -> None:
        self._lock, self._blocks, self._before = threading.Lock(), 0, warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if self._blocks == 0:
                Image.MAX_IMAGE_PIXELS = _NO_LIMIT  # a number: None between two lines of Pillow's check is a TypeError
                ImageFile.LOAD_TRUNCATED_IMAGES = False
                AvifImagePlugin.DEFAULT_MAX_THREADS = 1
                self._before = warnings.catch_warnings()
                self._before.__enter__()
                warnings.simplefilter("ignore")
            self._blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                self._before.__exit__(None, None, None)


STRICT_PILLOW = _StrictPillow()

# libtiff prints what it finds, which Pillow raises too. The handle finds symbols of the libraries that it loads.
for _name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
    if _set_handler := getattr(ctypes.CDLL(Image.core.__file__), _name, None):
        _set_handler(None)


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
