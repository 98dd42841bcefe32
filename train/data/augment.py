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
from altalign.filters.readable import DECODER_ERRORS
from altalign.train.data.random_bits import of_visit
from altalign.train.settings.data import DataSettings

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

    A JPEG may be scaled in the DCT to no less than `short_side_px`. Raises UndecodableError: it does not decode whole.
    """
    short_side_px = short_side_px if data.startswith(_JPEG) else pixels.FULL_SIZE_PX
    image = pixels.decode(data, pixels_at_most=_ANY_NUMBER, colour=True, short_side_px=short_side_px)
    if image.pixels is None:
        raise UndecodableError(image.damage or "no known image format")
    return image.pixels


def training_pixels(data: bytes, settings: DataSettings, *, seed: int, epoch: int, key: str) -> torch.Tensor:
    """What a tower sees of a pair in training: uint8 (3, crop_px, crop_px), by `[data]`. Raises as `decode`.

    With scaled decoding a large JPEG is scaled in the DCT, so far that the crop still has as many pixels as it gets.
    """
    resize_px, crop_px, area = settings.resize_px, settings.crop_px, settings.crop_area_at_least
    left, top, is_flipped = chosen(resize_px - crop_px + 1, seed=seed, epoch=epoch, key=key)
    with of_torchvision(seed, epoch, key) if area or settings.auto_augment else nullcontext() as transforms:
        if transforms and area:
            cropped = _area(data, settings, transforms)
        else:
            image = decode(data, short_side_px=resize_px if settings.decoding == "scaled" else pixels.FULL_SIZE_PX)
            cropped = resize(image, resize_px)[:, top : top + crop_px, left : left + crop_px]
        cropped = cropped.flip(2) if settings.flip and is_flipped else cropped
        return transforms.AutoAugment()(cropped) if transforms and settings.auto_augment else cropped


def _area(data: bytes, settings: DataSettings, transforms: Any) -> torch.Tensor:
    """A part of the image by its area, resized to a square: torchvision's RandomResizedCrop."""
    opened, crop_px = opened_jpeg(data) if settings.decoding == "scaled" else None, settings.crop_px
    if opened is None:
        image = decode(data)
        height, width = image.shape[:2]
        part = drawn_part(transforms, settings, height, width)
    else:
        jpeg, width, height = opened
        with image_headers.STRICT_PILLOW:
            if image_headers.orientation_of(jpeg) in _ON_THEIR_SIDE:
                width, height = height, width
        part = drawn_part(transforms, settings, height, width)
        needed = max(crop_px / part["height"], crop_px / part["width"])
        short_side_px = math.ceil(min(height, width) * needed) if needed < 1 else pixels.FULL_SIZE_PX
        image = decode(data, short_side_px=short_side_px)
    down, across = image.shape[0] / height, image.shape[1] / width
    top, left = round(part["top"] * down), round(part["left"] * across)
    after = round((part["top"] + part["height"]) * down), round((part["left"] + part["width"]) * across)
    whole, sides = torch.from_numpy(image.copy()).permute(2, 0, 1), (after[0] - top, after[1] - left)
    return transforms.functional.resized_crop(whole, top, left, *sides, [crop_px, crop_px], antialias=True)


def drawn_part(transforms: Any, settings: DataSettings, height: int, width: int) -> dict[str, int]:
    """The part of an image of these sides that RandomResizedCrop draws: top, left, height and width."""
    scale = (settings.crop_area_at_least, 1.0)
    area = transforms.RandomResizedCrop(settings.crop_px, scale=scale, ratio=_ASPECT_RATIOS, antialias=True)
    return area.make_params([torch.empty(3, height, width, device="meta")])


def opened_jpeg(data: bytes) -> tuple[ImageFile.ImageFile, int, int] | None:
    """A JPEG that is not decoded yet, its width and height as stored; None of others, and without a sound header."""
    with image_headers.STRICT_PILLOW:
        try:
            return image_headers.opened("jpeg", data) if data.startswith(_JPEG) else None
        except DECODER_ERRORS:
            return None  # `decode` says why


@contextmanager
def of_torchvision(seed: int, epoch: int, key: str) -> Iterator[Any]:
    """Torchvision's transforms, whose random numbers, of torch's own generator, are of seed, epoch and key for once."""
    from torchvision.transforms import v2  # a second, which only those wait for that use it

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(of_visit(seed, epoch, key, _TORCHVISION)[0]))
        yield v2


def evaluation_pixels(data: bytes, *, resize_px: int, crop_px: int, keep_aspect_ratio: bool = False) -> torch.Tensor:
    """What a tower sees in evaluation, the central crop: as `training_pixels`."""
    return central(decode(data), resize_px=resize_px, crop_px=crop_px, keep_aspect_ratio=keep_aspect_ratio)


def central(image: Pixels, *, resize_px: int, crop_px: int, keep_aspect_ratio: bool = False) -> torch.Tensor:
    """The same of RGB pixels (height, width, 3); `resize_px` is the short side where the aspect ratio is kept."""
    sides = [resize_px, resize_px]
    if keep_aspect_ratio:
        short = min(image.shape[:2])
        sides = [max(resize_px, round(side * resize_px / short)) for side in image.shape[:2]]
    resized = resize(image, *sides)
    top, left = ((side - crop_px) // 2 for side in resized.shape[1:])
    return resized[:, top : top + crop_px, left : left + crop_px]


def resize(image: Pixels, height_px: int, width_px: int = 0) -> torch.Tensor:
    """RGB pixels of a size, or a square: uint8 (3, height, width), within a level of Pillow's bilinear, antialiased."""
    image = image if image.flags.writeable else image.copy()  # torch would warn of Pillow's
    batch = torch.from_numpy(image).permute(2, 0, 1)[None]  # memory stays as it is: channels last
    sides = (height_px, width_px or height_px)
    return torch.nn.functional.interpolate(batch, size=sides, mode="bilinear", antialias=True)[0]


def chosen(places: int, *, seed: int, epoch: int, key: str) -> tuple[int, int, bool]:
    """Left and top edge of a crop, each one of so many places, and whether it is flipped."""
    left, top, flip = (int(of_visit(seed, epoch, key, what)[0]) for what in (_LEFT, _TOP, _FLIP))
    return left % places, top % places, flip % 2 == 1
