"""Bytes of an image -> the pixels that a tower sees. What is random is a pure function of seed, epoch and key.

An image is resized to a square, its aspect ratio not kept, bilinear with antialias (section 5); of that a crop is
taken, at random with half of them flipped, or from the middle. Pixels are upright and on white, as curation saw them.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import ImageFile

from altalign.filters import image_headers, pixels
from altalign.filters.decoder_errors import DECODER_ERRORS
from altalign.train.data.order import keyed

_ANY_NUMBER = 1 << 62  # curation's own limit was kept
_LEFT, _TOP, _FLIP, _TORCHVISION = 1, 2, 3, 6
_JPEG = b"\xff\xd8\xff"
_ON_THEIR_SIDE = range(5, 9)  # EXIF's orientations that swap width and height
_ASPECT_RATIOS = (3 / 4, 4 / 3)

Pixels = npt.NDArray[np.uint8]


class UndecodableError(ValueError):
    """The bytes are no sound image; the words are the decoder's."""


def decode(data: bytes, *, short_side_px: int = pixels.FULL_SIZE_PX) -> Pixels:
    """RGB pixels of an image: uint8 (height, width, 3), contiguous; upright, on white, of the first frame.

    A JPEG may be scaled in the DCT to no less than `short_side_px`, by eighths. Without it, it is decoded in full: what
    is resized afterwards are its own pixels.

    Raises:
        UndecodableError: it does not decode whole.
    """
    short_side_px = short_side_px if data.startswith(_JPEG) else pixels.FULL_SIZE_PX
    found = pixels.decode(data, pixels_at_most=_ANY_NUMBER, colour=True, short_side_px=short_side_px)
    if found.pixels is None:
        raise UndecodableError(found.damage or "no known image format")
    return found.pixels


def training_pixels(
    data: bytes,
    *,
    resize_px: int,
    crop_px: int,
    flip: bool,
    crop_area_at_least: float = 0.0,
    auto_augment: bool = False,
    scaled_decoding: bool = False,
    seed: int,
    epoch: int,
    key: str,
) -> torch.Tensor:
    """What a tower sees of a pair in training: uint8 (3, crop_px, crop_px), by `[data]` of the settings.

    The channel changes fastest in memory. With `scaled_decoding` a large JPEG is scaled in the DCT, so far that the
    crop, or what the square is made of, still has as many pixels as it gets; what is drawn is the same.

    Raises:
        UndecodableError: as `decode`.
    """
    left, top, is_flipped = chosen(resize_px - crop_px + 1, seed=seed, epoch=epoch, key=key)
    with of_torchvision(seed, epoch, key) if crop_area_at_least or auto_augment else nullcontext() as transforms:
        if transforms and crop_area_at_least:
            cropped = _area(data, transforms, crop_px, crop_area_at_least, is_scaled=scaled_decoding)
        else:
            image = decode(data, short_side_px=resize_px if scaled_decoding else pixels.FULL_SIZE_PX)
            cropped = resize(image, resize_px)[:, top : top + crop_px, left : left + crop_px]
        if flip and is_flipped:
            cropped = cropped.flip(2)
        return transforms.AutoAugment()(cropped) if transforms and auto_augment else cropped


def _area(data: bytes, transforms: Any, crop_px: int, at_least: float, *, is_scaled: bool) -> torch.Tensor:
    """A part of the image by its area, resized to a square: torchvision's RandomResizedCrop."""
    area = area_of(transforms, crop_px, at_least)
    sides = _sides_of_jpeg(data) if is_scaled else None
    if sides is None:
        return area(torch.from_numpy(decode(data).copy()).permute(2, 0, 1))
    part = part_by(area, *sides)
    needed = max(crop_px / part["height"], crop_px / part["width"])
    image = decode(data, short_side_px=math.ceil(min(sides) * needed) if needed < 1 else pixels.FULL_SIZE_PX)
    down, right = image.shape[0] / sides[0], image.shape[1] / sides[1]
    top, left = round(part["top"] * down), round(part["left"] * right)
    height = round((part["top"] + part["height"]) * down) - top
    width = round((part["left"] + part["width"]) * right) - left
    whole = torch.from_numpy(image.copy()).permute(2, 0, 1)
    return transforms.functional.resized_crop(whole, top, left, height, width, [crop_px, crop_px], antialias=True)


def area_of(transforms: Any, crop_px: int, at_least: float) -> Any:
    """Torchvision's RandomResizedCrop, which draws a part of an image by its area."""
    return transforms.RandomResizedCrop(crop_px, scale=(at_least, 1.0), ratio=_ASPECT_RATIOS, antialias=True)


def part_by(area: Any, height: int, width: int) -> dict[str, int]:
    """The part that it draws of an image of these sides: top, left, height and width."""
    return area.make_params([torch.empty(3, height, width, device="meta")])


def opened_jpeg(data: bytes) -> tuple[ImageFile.ImageFile, int, int] | None:
    """A JPEG that is not decoded yet, its width and height as stored.

    None of anything else, and of a JPEG with no sound header.
    """
    if not data.startswith(_JPEG):
        return None
    with image_headers.STRICT_PILLOW:
        try:
            return image_headers.opened("jpeg", data)
        except DECODER_ERRORS:
            return None  # `decode` says why


def _sides_of_jpeg(data: bytes) -> tuple[int, int] | None:
    """Height and width of a JPEG as its EXIF turns it; None as of `opened_jpeg`."""
    opened = opened_jpeg(data)
    if opened is None:
        return None
    image, width, height = opened
    with image_headers.STRICT_PILLOW:
        is_turned = image_headers.orientation_of(image) in _ON_THEIR_SIDE
    return (width, height) if is_turned else (height, width)


@contextmanager
def of_torchvision(seed: int, epoch: int, key: str) -> Iterator[Any]:
    """Torchvision's transforms, whose random numbers, of torch's own generator, are of seed, epoch and key for once.

    It takes a second to import, which only those wait for that use it.
    """
    from torchvision.transforms import v2

    number = int(key, 16)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(keyed(seed, epoch, number >> 64, number, _TORCHVISION)[0]))
        yield v2


def evaluation_pixels(data: bytes, *, resize_px: int, crop_px: int, keep_aspect_ratio: bool = False) -> torch.Tensor:
    """What a tower sees in evaluation, the central crop: as `training_pixels`."""
    return central(decode(data), resize_px=resize_px, crop_px=crop_px, keep_aspect_ratio=keep_aspect_ratio)


def central(image: Pixels, *, resize_px: int, crop_px: int, keep_aspect_ratio: bool = False) -> torch.Tensor:
    """The same of RGB pixels, uint8 (height, width, 3).

    `resize_px` is the side of a square, or that of the short side where the aspect ratio is kept.
    """
    sides = [resize_px, resize_px]
    if keep_aspect_ratio:
        short = min(image.shape[:2])
        sides = [max(resize_px, round(side * resize_px / short)) for side in image.shape[:2]]
    resized = resize(image, *sides)
    top, left = ((side - crop_px) // 2 for side in resized.shape[1:])
    return resized[:, top : top + crop_px, left : left + crop_px]


def resize(image: Pixels, height_px: int, width_px: int = 0) -> torch.Tensor:
    """RGB pixels of a size, a square where one side is given, bilinear with antialias: uint8 (3, height, width).

    Differs from Pillow's by one level at most, in 2/3 of its time.
    """
    if not image.flags.writeable:  # Pillow's, which torch would warn of
        image = image.copy()
    batch = torch.from_numpy(image).permute(2, 0, 1)[None]  # memory stays as it is: channels last
    return torch.nn.functional.interpolate(
        batch, size=(height_px, width_px or height_px), mode="bilinear", antialias=True
    )[0]


def chosen(places: int, *, seed: int, epoch: int, key: str) -> tuple[int, int, bool]:
    """Left and top edge of a crop, each one of so many places, and whether it is flipped."""
    number = int(key, 16)
    left, top, flip = (int(keyed(seed, epoch, number >> 64, number, what)[0]) for what in (_LEFT, _TOP, _FLIP))
    return left % places, top % places, flip % 2 == 1
