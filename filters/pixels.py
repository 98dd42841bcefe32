"""Bytes of an image -> format, size, soundness and pixels, in one decode; and the bytes that a shard stores.

A JPEG is decoded scaled in the DCT by simplejpeg, everything else (and whatever surprises simplejpeg) by Pillow.
Nothing here depends on the process's warning filters or on Pillow's module settings (`image_headers.STRICT_PILLOW`).
"""

import threading
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import GifImagePlugin, Image, ImageFile, JpegImagePlugin, PngImagePlugin, TiffImagePlugin

from altalign.filters import image_headers as headers
from altalign.filters import jpegs, readable
from altalign.filters.readable import DECODER_ERRORS

JPEG_QUALITY = 95
JPEG_SIDE_AT_MOST_PX = 65_500  # JPEG_MAX_DIMENSION of libjpeg
FULL_SIZE_PX = 1 << 30  # as `short_side_px`: nothing is scaled down
LARGE_PIXELS = 25_000_000  # ours: about 100 MB as RGBA; larger images are decoded one at a time in a process

# libjpeg's remarks that mean lost image data; its other ones (junk between markers, an odd revision number) leave the
# image whole.
_JPEG_DAMAGE = ("premature end", "bad huffman code", "bad arithmetic code", "instead of rst")

# Peak of Pillow 12 and ours, in bytes a pixel of an image decoded to gray and scaled down, measured at 9 megapixels
# (BMP with transparency: as PNG). By mode as Pillow opens it, "RGBA" with transparency of any kind, "" any other. A
# JPEG is scaled while it is decoded; 8 is of a progressive CMYK one, whose coefficients are kept.
_BYTES_PER_PIXEL: dict[str, dict[str, int]] = {
    "jpeg": {"": 8},
    "png": {"L": 1, "1": 2, "P": 2, "RGB": 5, "RGBA": 12, "": 7},
    "webp": {"RGB": 16, "": 20},
    "gif": {"P": 2, "L": 2, "RGBA": 9, "": 5},
    "avif": {"RGB": 9, "": 16},
    "heic": {"L": 4, "RGB": 12, "": 16},
    "bmp": {"RGBA": 12, "": 5},
    # a strip of the whole image counted in; "": 32 bits a pixel, or 16
    "tiff": {"L": 3, "RGB": 8, "CMYK": 9, "RGBA": 12, "LAB": 10, "": 30},
}
_BYTES_PER_COPY = 4  # of a pixel: where it becomes RGB, is turned, or is not scaled

_LARGE = threading.Lock()


@dataclass(frozen=True, eq=False)
class Loaded:
    """An image that was decoded whole, at its full size."""

    frame: Image.Image  # the first, in the image's own mode
    orientation: int  # that the frame still has to be turned by
    profile: bytes | None  # ICC


@dataclass(frozen=True, eq=False)
class Decoded:
    """What is known of an image."""

    format: str | None  # jpeg, png, webp, gif, avif, heic, bmp or tiff; None: no known image format
    width: int | None  # pixels as stored, of the first frame, before EXIF orientation; None: the header is not readable
    height: int | None
    damage: str | None  # the decoder's words, where it does not decode whole; of a format that is not read, its name
    orientation: int  # 1 to 8 as EXIF counts; 1 where there is none or it is no such number
    pixels: npt.NDArray[np.uint8] | None
    """[height, width], or [height, width, 3] as RGB; upright (EXIF orientation applied), on white, and perhaps scaled
    down, the short side never below `short_side_px` by that. None: not decoded, or damaged."""
    loaded: Loaded | None = None
    """What `to_stored` can go on from; None also of a JPEG, which is decoded to the size that is asked for, and of a
    large image, which nobody is to hold meanwhile."""


@dataclass(frozen=True)
class Stored:
    """The bytes of an image as a shard stores them, their format, and their own size in pixels."""

    bytes: bytes
    format: str
    width: int
    height: int


def decode(data: bytes, *, pixels_at_most: int, colour: bool, short_side_px: int = 128) -> Decoded:
    """Decode an image once, for all that is measured on it: gray (the luma of ITU-R 601), or with `colour` RGB.

    Bytes never raise: what a decoder cannot take is `damage`, and so is an image with a row longer than
    `image_headers.ROW_AT_MOST_PX`.

    Args:
        data: the bytes as found.
        pixels_at_most: an image of more pixels (width x height) is not decoded: its format and size are known alone.
        colour: RGB instead of gray.
        short_side_px: a larger image may be scaled down to no less than this. 128 is twice the thumbnail of the DCT
            descriptor: its cosine with that of a full decode is then .9996 in the median, against .9985 at 64.

    Raises:
        MemoryError: the machine has too little for an image within the limits; the verdict must not depend on it.
    """
    kind = headers.sniff(data)
    if kind is None:
        return Decoded(None, None, None, headers.unread(data), 1, None)
    with headers.STRICT_PILLOW:
        try:
            image, width, height = headers.opened(kind, data)
        except (*DECODER_ERRORS, MemoryError) as error:  # the header may ask for more than any limit of ours
            return Decoded(kind, None, None, headers.words_of(error), 1, None)
        if width * height > pixels_at_most:
            return Decoded(kind, width, height, None, headers.orientation_of(image), None)
        try:
            headers.check_decodable(image, width)
            with _LARGE if width * height > LARGE_PIXELS else nullcontext():
                scaled = _scaled_in_the_dct(image, data, colour=colour, short_side_px=short_side_px)
                if scaled is not None:
                    orientation = headers.orientation_of(image)
                    return Decoded(kind, width, height, None, orientation, _turned(scaled, orientation))
                loaded, orientation = _loaded(image, colour=colour, short_side_px=short_side_px)
                upright = np.asarray(_upright(loaded, colour=colour, short_side_px=short_side_px))  # a copy, so here
        except DECODER_ERRORS as error:
            return Decoded(kind, width, height, headers.words_of(error), headers.orientation_of(image), None)
    is_held = kind != "jpeg" and width * height <= LARGE_PIXELS
    return Decoded(kind, width, height, None, orientation, upright, loaded if is_held else None)


def to_stored(data: bytes, *, portable: bool, resize_short_side_px: int, decoded: Decoded | None = None) -> Stored:
    """What a shard stores for an image that `decode` found sound.

    Bytes stay as found when the image is a JPEG that is upright and RGB or gray (`is_plain_jpeg`), or need not be one
    (`portable` false), and is not to be made smaller. All else becomes a JPEG of quality 95 without metadata: first
    frame, upright, in sRGB, on white, and by area down to `resize_short_side_px` (0: as large as it is; never
    enlarged). So with `portable` false an image that has to be made smaller becomes a JPEG too: we have no other
    encoder. A side above 65,500 px, more than a JPEG can have, is made that.

    Args:
        data: the bytes as found.
        portable: whether all images become upright JPEGs, RGB or gray.
        resize_short_side_px: what a longer short side is made; 0: none is.
        decoded: what `decode` found; what it has loaded is not decoded again.

    Raises:
        ValueError: the bytes are no sound image.
        MemoryError: the machine has too little.
    """
    loaded, kind = decoded and decoded.loaded, headers.sniff(data)
    if kind is None:
        raise ValueError(headers.unread(data) or "no known image format")
    with headers.STRICT_PILLOW:
        try:
            image, width, height = headers.opened(kind, data)
            headers.check_decodable(image, width)
            settings = {"portable": portable, "resize_short_side_px": resize_short_side_px}
            if is_stored_as_found(data, kind, width, height, **settings):
                return Stored(data, kind, width, height)
            short = min(resize_short_side_px or width, width, height)
            with _LARGE if width * height > LARGE_PIXELS else nullcontext():
                if decoded is None or loaded is None:
                    stored, orientation = _in_colour(image, data, short_side_px=short)
                else:
                    orientation = decoded.orientation
                    stored = _upright(loaded, colour=True, short_side_px=short, in_srgb=True)
                before = min(width, height), max(width, height)
                long = (2 * before[1] * short + before[0]) // (2 * before[0])  # rounded half up
                if long > JPEG_SIDE_AT_MOST_PX:
                    short, long = max(1, short * JPEG_SIDE_AT_MOST_PX // long), JPEG_SIDE_AT_MOST_PX
                size = (short, long) if (width <= height) == (orientation < 5) else (long, short)
                if stored.size != size:  # integers and ratios only: the same bytes on every machine
                    stored = stored.resize(size, Image.Resampling.BOX)
                stored.info = {}  # Pillow would write comments that it finds there
                return Stored(jpegs.encoded(stored, quality=JPEG_QUALITY), "jpeg", *size)
        except DECODER_ERRORS as error:
            raise ValueError(headers.words_of(error)) from error


def peak_bytes(data: bytes, *, colour: bool, pixels_at_most: int | None = None, short_side_px: int = 0) -> int:
    """Bytes of memory that `decode` with these settings takes at its peak, by the header; 0: nothing will be decoded.

    Of `to_stored`: in colour, and without the other two.
    """
    kind = headers.sniff(data)
    if kind is None:
        return 0
    with headers.STRICT_PILLOW:
        try:
            image, width, height = headers.opened(kind, data)
            headers.check_decodable(image, width)
            mode = "RGBA" if image.has_transparency_data else image.mode
        except (*DECODER_ERRORS, MemoryError):
            return 0
        copies = (
            (colour and mode != "RGB") + (headers.orientation_of(image) > 1) + (min(width, height) < 2 * short_side_px)
        )
    per_pixel = _BYTES_PER_PIXEL[kind].get(mode, _BYTES_PER_PIXEL[kind][""]) + _BYTES_PER_COPY * copies
    return 0 if pixels_at_most is not None and width * height > pixels_at_most else width * height * per_pixel


def is_stored_as_found(
    data: bytes, kind: str, width: int, height: int, *, portable: bool, resize_short_side_px: int
) -> bool:
    """Whether `to_stored` leaves the bytes of an image as they are, by its header."""
    if 0 < resize_short_side_px < min(width, height):
        return False
    return (not portable and kind != "heic") or (kind == "jpeg" and headers.is_plain_jpeg(data))


def gray(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The luma (ITU-R 601) of RGB pixels, uint8[height, width], rounded as Pillow does; gray ones stay as they are."""
    return pixels if pixels.ndim == 2 else np.asarray(Image.fromarray(pixels).convert("L"))


def _in_colour(image: ImageFile.ImageFile, data: bytes, *, short_side_px: int) -> tuple[Image.Image, int]:
    """An image in RGB, upright, with its profile applied and perhaps scaled down, and its orientation."""
    profile, orientation = image.info.get("icc_profile"), headers.orientation_of(image)
    scaled = None if profile else _scaled_in_the_dct(image, data, colour=True, short_side_px=short_side_px)
    if scaled is not None:
        return Image.fromarray(_turned(scaled, orientation)), orientation
    loaded, orientation = _loaded(image, colour=True, short_side_px=short_side_px)
    return _upright(loaded, colour=True, short_side_px=short_side_px, in_srgb=True), orientation


def _loaded(image: ImageFile.ImageFile, *, colour: bool, short_side_px: int) -> tuple[Loaded, int]:
    """An image that Pillow has decoded whole, a JPEG perhaps scaled down, and its orientation.

    Raises one of `DECODER_ERRORS` where it does not decode.
    """
    profile, orientation = image.info.get("icc_profile"), headers.orientation_of(image)
    if isinstance(image, JpegImagePlugin.JpegImageFile):
        image.draft("RGB" if colour else "L", (short_side_px, short_side_px))
    frame = _first_frame(image)
    is_turned = isinstance(image, TiffImagePlugin.TiffImageFile)  # alone by Pillow itself, while it loads
    orientation = orientation if is_turned else headers.orientation_of(image)  # a PNG may hold EXIF behind the pixels
    return Loaded(frame, 1 if is_turned else orientation, profile), orientation


def _upright(loaded: Loaded, *, colour: bool, short_side_px: int, in_srgb: bool = False) -> Image.Image:
    """Pixels as `Decoded` describes them, as an image, for copies cost time; `in_srgb`: by the image's profile."""
    profile = loaded.profile if in_srgb else None
    upright = _on_white(loaded.frame, colour=colour, short_side_px=short_side_px, profile=profile)
    return upright if loaded.orientation == 1 else Image.fromarray(_turned(np.asarray(upright), loaded.orientation))


def _scaled_in_the_dct(
    image: ImageFile.ImageFile, data: bytes, *, colour: bool, short_side_px: int
) -> npt.NDArray[np.uint8] | None:
    """Pixels of a sound JPEG; None: let Pillow try, another format, or a colour space such as CMYK.

    After a remark of the decoder it is Pillow that tells sound from cut: libjpeg reports its first remark alone, which
    may hide a second.
    """
    if not isinstance(image, JpegImagePlugin.JpegImageFile) or image.mode not in ("L", "RGB"):
        return None
    try:
        pixels = simplejpeg.decode_jpeg(
            data, "RGB" if colour else "GRAY", min_height=short_side_px, min_width=short_side_px, strict=True
        )
    except ValueError as error:
        if any(remark in str(error).lower() for remark in _JPEG_DAMAGE):
            raise
        return None
    return pixels if colour else pixels[:, :, 0]


def _first_frame(image: ImageFile.ImageFile) -> Image.Image:
    """The image, loaded; what its first frame leaves of the screen is clear, as browsers have it."""
    if isinstance(image, PngImagePlugin.PngImageFile) and image.default_image:
        image.seek(1)
        # Pillow would lay the frame on the default image, which is not shown
        image._im = image._prev_im = None  # pyright: ignore[reportPrivateUsage] (no other way to say so)
    has_frames = isinstance(image, (GifImagePlugin.GifImageFile, PngImagePlugin.PngImageFile))
    box = image.tile[0].extents if has_frames and image.tile else None
    image.load()
    if box is None or box == (0, 0, *image.size):
        return image
    screen = Image.new("RGBA", image.size)
    screen.paste(image.crop(box).convert("RGBA"), box[:2])
    return screen


def _on_white(image: Image.Image, *, colour: bool, short_side_px: int, profile: bytes | None = None) -> Image.Image:
    """A loaded image as RGB or L, on white; in sRGB by its profile; smaller by a whole number that leaves the side."""
    mode = "RGB" if colour else "L"
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _eight_bits(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
    elif image.mode != mode and not (profile and image.mode in ("L", "CMYK")):
        image = image.convert("RGB" if image.mode == "LAB" else mode)
    if profile:
        image = readable.in_srgb(image, profile)
    factor = min(image.size) // short_side_px
    if factor > 1:
        image = image.reduce(factor)
    if image.mode == "RGBA":
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image)
        image = white
    return image if image.mode == mode else image.convert(mode)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Gray: of 16 bits the upper 8; of 32 (TIFF), which have no white of their own, from the least to the greatest."""
    values = np.asarray(image)
    if image.mode.startswith("I;16"):
        upper, clear = Image.fromarray((values >> 8).astype(np.uint8)), image.info.get("transparency")
        if isinstance(clear, int):
            upper.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
        return upper
    values = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    span = float(values.max() - values.min()) or 1.0
    return Image.fromarray(((values - values.min()) * (255 / span)).astype(np.uint8))


def _turned(pixels: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """Pixels turned as EXIF orientation (1 to 8) asks, contiguous."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)
