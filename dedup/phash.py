"""The descriptor `phash`: the bits of the package imagehash, in batches, as vectors of +1 and -1.

64 bits cannot tell drawings apart at a million comparisons per image; the descriptor is here because many lists and
tools use it.
"""

from math import cos, pi

import numpy as np
import numpy.typing as npt
from numba import njit
from PIL import Image

SIDE_PX = 32
HASH_SIDE = 8
BITS = HASH_SIDE * HASH_SIDE

_COSINE_BITS, _SPLIT = 30, 22
_COSINES: npt.NDArray[np.int64] = np.array(
    [[round(cos((2 * x + 1) * u * pi / 64) * 2**_COSINE_BITS) for x in range(SIDE_PX)] for u in range(HASH_SIDE)],
    np.int64,
)


def lanczos_thumbnail(gray: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A gray image (uint8[height, width]) scaled to uint8[32, 32] by Pillow's Lanczos filter, as imagehash does."""
    return np.asarray(Image.fromarray(gray).resize((SIDE_PX, SIDE_PX), Image.Resampling.LANCZOS))


def phash(luma: npt.NDArray[np.uint8]) -> npt.NDArray[np.int16]:
    """Perceptual hashes of 8 x 8: +1 for a frequency above the median of the 64 lowest, else -1, in imagehash's order.

    The cosine of two hashes is 1 - d / 32 if d bits differ. Frequencies are sums over 1,024 pixels, in integers, exact
    to 3e-4 of a gray level. Where frequencies are equal (the odd ones of a symmetrical picture are all 0), imagehash's
    bits are rounding errors of its transform; here a frequency equal to the median gives -1.

    Args:
        luma: `lanczos_thumbnail`s, uint8[n, 32, 32].

    Returns:
        int16[n, 64].

    Raises:
        ValueError: the array has another shape or type.
    """
    if luma.dtype != np.uint8 or luma.shape[1:] != (SIDE_PX, SIDE_PX):
        raise ValueError(f"thumbnails are uint8 of shape (n, 32, 32), these are {luma.dtype} of shape {luma.shape}")
    frequencies = np.empty((len(luma), BITS), np.int64)
    _transform(np.ascontiguousarray(luma), _COSINES, frequencies)
    middle = np.partition(frequencies, (BITS // 2 - 1, BITS // 2), axis=1)[:, BITS // 2 - 1 : BITS // 2 + 1]
    # Above the mean of the middle two: if these differ, that is the upper one or more; if not, more than both.
    is_above = (frequencies > middle[:, :1]) & (frequencies >= middle[:, 1:])
    return np.where(is_above, 1, -1).astype(np.int16)


@njit(nogil=True, cache=True)
def _transform(luma: np.ndarray, cosines: np.ndarray, frequencies: np.ndarray) -> None:
    # Twice 30 bits of cosine and 18 of pixels are more than 64: column sums are split, and 22 bits dropped at the end.
    down = np.empty((HASH_SIDE, SIDE_PX), np.int64)
    low_bits = (np.int64(1) << _SPLIT) - 1
    for i in range(len(luma)):
        down[:] = 0
        for u in range(HASH_SIDE):
            for y in range(SIDE_PX):
                for x in range(SIDE_PX):
                    down[u, x] += cosines[u, y] * np.int64(luma[i, y, x])
        for u in range(HASH_SIDE):
            for v in range(HASH_SIDE):
                high, low = np.int64(0), np.int64(0)
                for x in range(SIDE_PX):
                    high += (down[u, x] >> _SPLIT) * cosines[v, x]
                    low += (down[u, x] & low_bits) * cosines[v, x]
                frequencies[i, u * HASH_SIDE + v] = high + (low >> _SPLIT)
