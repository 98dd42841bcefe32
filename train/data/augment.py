"""Bytes of an image -> the pixels that a tower sees. What is random is a pure function of seed, epoch and key.

An image is resized to a square, its aspect ratio not kept, bilinear with antialias (section 5); of that a crop is
taken, at random with half of them flipped, or from the middle. Pixels are upright and on white, as curation saw them.
"""

import numpy as np
import numpy.typing as npt
import torch

from altalign.filters import pixels
from altalign.train.data.order import keyed

_ANY_NUMBER = 1 << 62  # curation's own limit was kept
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
    found = pixels.decode(data, pixels_at_most=_ANY_NUMBER, colour=True, short_side_px=pixels.FULL_SIZE_PX)
    if found.pixels is None:
        raise UndecodableError(found.damage or "no known image format")
    return found.pixels


def training_pixels(
    data: bytes, *, resize_px: int, crop_px: int, flip: bool, seed: int, epoch: int, key: str
) -> torch.Tensor:
    """What a tower sees of a pair in training: uint8 (3, crop_px, crop_px).

    The channel changes fastest in memory.

    Raises:
        UndecodableError: as `decode`.
    """
    resized = resize(decode(data), resize_px)
    left, top, is_flipped = chosen(resize_px - crop_px + 1, seed=seed, epoch=epoch, key=key)
    cropped = resized[:, top : top + crop_px, left : left + crop_px]
    return cropped.flip(2) if flip and is_flipped else cropped


def evaluation_pixels(data: bytes, *, resize_px: int, crop_px: int) -> torch.Tensor:
    """What a tower sees in evaluation, the central crop: as `training_pixels`."""
    return central(decode(data), resize_px=resize_px, crop_px=crop_px)


def central(image: Pixels, *, resize_px: int, crop_px: int) -> torch.Tensor:
    """The same of RGB pixels, uint8 (height, width, 3)."""
    first = (resize_px - crop_px) // 2
    return resize(image, resize_px)[:, first : first + crop_px, first : first + crop_px]


def resize(image: Pixels, side_px: int) -> torch.Tensor:
    """A square of RGB pixels, bilinear with antialias: uint8 (3, side, side).

    Differs from Pillow's by one level at most, in 2/3 of its time.
    """
    if not image.flags.writeable:  # Pillow's, which torch would warn of
        image = image.copy()
    batch = torch.from_numpy(image).permute(2, 0, 1)[None]  # memory stays as it is: channels last
    return torch.nn.functional.interpolate(batch, size=(side_px, side_px), mode="bilinear", antialias=True)[0]


def chosen(places: int, *, seed: int, epoch: int, key: str) -> tuple[int, int, bool]:
    """Left and top edge of a crop, each one of so many places, and whether it is flipped."""
    number = int(key, 16)
    left, top, flip = (int(keyed(seed, epoch, number >> 64, number, what)[0]) for what in (_LEFT, _TOP, _FLIP))
    return left % places, top % places, flip % 2 == 1
