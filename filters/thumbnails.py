"""Thumbnails for descriptors: 32 x 32 means of gray, exact in integers, so that every machine has the same.

And thumbnails for people, as WebP.
"""

import io

import numpy as np
import numpy.typing as npt
from numba import njit
from PIL import Image

from altalign.filters import pixels

SIDE_PX = 32
WEBP_SIDE_PX, WEBP_QUALITY = 192, 75  # of a thumbnail for people: its long side, and its quality


def webp(decoded: npt.NDArray[np.uint8]) -> bytes:
    """Pixels (uint8[height, width, 3]) as WebP, the long side at most 192 px."""
    image = Image.fromarray(decoded)
    image.thumbnail((WEBP_SIDE_PX, WEBP_SIDE_PX), Image.Resampling.BOX)
    file = io.BytesIO()
    image.save(file, "WEBP", quality=WEBP_QUALITY)
    return file.getvalue()


def picture(data: bytes, *, pixels_at_most: int) -> bytes | None:
    """An image as WebP, upright and on white, its long side at most 192 px.

    None for an image that cannot be decoded, or has more than `pixels_at_most` pixels.
    """
    decoded = pixels.decode(data, pixels_at_most=pixels_at_most, colour=True, short_side_px=WEBP_SIDE_PX).pixels
    return None if decoded is None else webp(decoded)


def thumbnail(gray: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The mean of each of 32 x 32 equal parts of an image; a pixel on an edge counts in both parts by its area.

    Takes uint8[height, width], gives uint8[32, 32]. Halves round up. The thumbnail of a mirrored image is exactly the
    mirrored thumbnail. Images smaller than 32 px are enlarged by the same rule.
    """
    if gray.dtype != np.uint8 or gray.ndim != 2 or not gray.size:
        raise ValueError(f"a gray image is uint8 of shape (height, width), this is {gray.dtype} of shape {gray.shape}")
    means = np.empty((SIDE_PX, SIDE_PX), np.uint8)
    _reduce(np.ascontiguousarray(gray), means)
    return means


@njit(nogil=True, cache=True)
def _reduce(gray: npt.NDArray[np.uint8], means: npt.NDArray[np.uint8]) -> None:
    # Lengths are in 1/32 of a pixel: a part is `height` long, a pixel 32.
    height, width = gray.shape
    column_sums, area = np.empty(width, np.int64), height * width
    for part in range(SIDE_PX):
        column_sums[:] = 0
        begin, end = part * height, (part + 1) * height
        for y in range(begin // SIDE_PX, (end - 1) // SIDE_PX + 1):
            weight = min(end, (y + 1) * SIDE_PX) - max(begin, y * SIDE_PX)
            for x in range(width):
                column_sums[x] += weight * gray[y, x]
        for across in range(SIDE_PX):
            total, begin_x, end_x = 0, across * width, (across + 1) * width
            for x in range(begin_x // SIDE_PX, (end_x - 1) // SIDE_PX + 1):
                total += (min(end_x, (x + 1) * SIDE_PX) - max(begin_x, x * SIDE_PX)) * column_sums[x]
            means[part, across] = (2 * total + area) // (2 * area)
