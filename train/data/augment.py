"""Bytes of an image -> the pixels that a tower sees. What is random is a pure function of seed, epoch and key.

An image is resized to a square, its aspect ratio not kept, bilinear with antialias (section 5); of that a crop is
taken, at random with half of them flipped, or from the middle. Pixels are upright and on white, as curation saw them.
"""

import io
import warnings

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from altalign.decoder_errors import DECODER_ERRORS
from altalign.train.data.order import keyed

# libjpeg's remarks that mean lost image data; after others (junk between markers) Pillow is asked.
_JPEG_DAMAGE = ("premature end", "bad huffman code", "bad arithmetic code", "instead of rst")
_LEFT, _TOP, _FLIP = 1, 2, 3

Pixels = npt.NDArray[np.uint8]


class UndecodableError(ValueError):
    """The bytes are no sound image; the words are the decoder's."""


def decode(data: bytes) -> Pixels:
    """RGB pixels of an image: uint8 (height, width, 3), contiguous; upright, on white, of the first frame.

    A JPEG is decoded in full, not scaled in the DCT: what is resized afterwards are its own pixels.

    Raises:
        UndecodableError: it does not decode whole.
    """
    try:
        pixels = _of_jpeg(data)
        return _by_pillow(data) if pixels is None else pixels
    except UnidentifiedImageError:  # its own words have an address of the memory
        raise UndecodableError("no known image format") from None
    except DECODER_ERRORS as error:
        says_it_all = isinstance(error, (OSError, SyntaxError, ValueError, RuntimeError)) and str(error)
        raise UndecodableError(
            " ".join((str(error) if says_it_all else f"{type(error).__name__} {error}").split())
        ) from error


def training_pixels(
    data: bytes, *, resize_px: int, crop_px: int, flip: bool, seed: int, epoch: int, key: str
) -> torch.Tensor:
    """What a tower sees of a pair in training: uint8 (3, crop_px, crop_px), of which the channel changes fastest in memory.

    Raises:
        UndecodableError: as `decode`.
    """
    resized = resize(decode(data), resize_px)
    left, top, is_flipped = chosen(resize_px - crop_px + 1, seed=seed, epoch=epoch, key=key)
    cropped = resized[:, top : top + crop_px, left : left + crop_px]
    return cropped.flip(2) if flip and is_flipped else cropped


def evaluation_pixels(data: bytes, *, resize_px: int, crop_px: int) -> torch.Tensor:
    """What a tower sees in evaluation, the central crop: as `training_pixels`."""
    first = (resize_px - crop_px) // 2
    return resize(decode(data), resize_px)[:, first : first + crop_px, first : first + crop_px]


def resize(pixels: Pixels, side_px: int) -> torch.Tensor:
    """A square of RGB pixels, bilinear with antialias: uint8 (3, side, side). Differs from Pillow's by one level at most, in 2/3 of its time."""
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]  # memory stays as it is: channels last
    return torch.nn.functional.interpolate(image, size=(side_px, side_px), mode="bilinear", antialias=True)[0]


def chosen(places: int, *, seed: int, epoch: int, key: str) -> tuple[int, int, bool]:
    """Left and top edge of a crop, each one of so many places, and whether it is flipped."""
    number = int(key, 16)
    left, top, flip = (int(keyed(seed, epoch, number >> 64, number, what)[0]) for what in (_LEFT, _TOP, _FLIP))
    return left % places, top % places, flip % 2 == 1


def _of_jpeg(data: bytes) -> Pixels | None:
    """Pixels of a JPEG in gray or RGB that needs no turning; None of all else, and where the decoder makes a remark that need not be damage."""
    if data[:3] != b"\xff\xd8\xff" or b"Exif\0\0" in data[: 1 << 16]:
        return None
    try:
        _, _, colours, _ = simplejpeg.decode_jpeg_header(data, strict=True)
        return simplejpeg.decode_jpeg(data, "RGB", strict=True) if colours in ("Gray", "YCbCr", "RGB") else None
    except ValueError as error:
        if any(remark in str(error).lower() for remark in _JPEG_DAMAGE):
            raise
        return None


def _by_pillow(data: bytes) -> Pixels:
    limit = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Image.MAX_IMAGE_PIXELS = None  # curation's own limit was kept
        try:
            with Image.open(io.BytesIO(data)) as opened:
                opened.load()
                image = _on_white(ImageOps.exif_transpose(opened))
        finally:
            Image.MAX_IMAGE_PIXELS = limit
    return np.array(image)


def _on_white(image: Image.Image) -> Image.Image:
    """RGB without transparency; more than 8 bits a channel by their upper 8, or of 32 bits from their least to their greatest, as in curation."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _eight_bits(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image)
        image = white
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if image.mode.startswith("I;16"):
        return Image.fromarray((values >> 8).astype(np.uint8))
    values = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    span = float(values.max() - values.min()) or 1.0
    return Image.fromarray(((values - values.min()) * (255 / span)).astype(np.uint8))
