"""What is measured on pixels: sharpness, entropy, flatness, colourfulness; in steps of 1/64, shares of 1/4096.

An image is scaled down to a long side of 256 px at most first, so that values of large and small images compare.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image

from altalign.filters.text_scores import STEPS

SIDE_PX = 256
_STEPS = 64  # of what is no share

Pixels = npt.NDArray[np.uint8]

COLUMNS = pa.schema(
    [
        ("sharpness", pa.float32()),  # variance of the Laplacian (4 neighbours) of the luma
        ("entropy", pa.float32()),  # bits, 0 to 8, of the histogram of the luma
        ("flatness", pa.float32()),  # share of pixels whose right neighbour has the same luma
        ("colour", pa.float32()),  # colourfulness by Hasler and Süsstrunk, 2003: 0 is gray
    ]
)


class Measured(NamedTuple):
    """What is measured on an image, in the order of `COLUMNS`."""

    sharpness: float
    entropy: float
    flatness: float
    colour: float


def measure(pixels: Pixels) -> Measured:
    """The measures of an image, uint8[height, width, 3] or gray uint8[height, width]."""
    image = Image.fromarray(pixels)
    longest = max(image.size)
    if longest > SIDE_PX:
        sides = [max(1, round(side * SIDE_PX / longest)) for side in image.size]
        image = image.resize((sides[0], sides[1]), Image.Resampling.BOX)
    luma = np.asarray(image.convert("L"))
    share = np.bincount(luma.ravel(), minlength=256) / luma.size
    share = share[share > 0]
    same, pairs = int((luma[:, 1:] == luma[:, :-1]).sum()), luma[:, 1:].size
    colour = _colour(np.asarray(image.convert("RGB")).astype(np.int32))
    return Measured(
        sharpness=round(_sharpness(luma.astype(np.int32)) * _STEPS) / _STEPS,
        entropy=round(float(-(share * np.log2(share)).sum()) * _STEPS) / _STEPS,
        flatness=round(same / pairs * STEPS) / STEPS if pairs else 1.0,
        colour=round(colour * _STEPS) / _STEPS,
    )


def _sharpness(grey: npt.NDArray[np.int32]) -> float:
    if min(grey.shape) < 3:
        return 0.0
    middle = grey[1:-1, 1:-1]
    laplacian = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:] - 4 * middle
    n, total, squares = laplacian.size, int(laplacian.sum()), int((laplacian.astype(np.int64) ** 2).sum())
    return squares / n - (total / n) ** 2  # of whole numbers: the same in any order


def _colour(colours: npt.NDArray[np.int32]) -> float:
    red, green, blue = colours[..., 0], colours[..., 1], colours[..., 2]
    axes = (2 * (red - green), red + green - 2 * blue)  # twice each, so that they are whole numbers
    means = [int(axis.sum(dtype=np.int64)) / (2 * axis.size) for axis in axes]
    squares = [int((axis.astype(np.int64) ** 2).sum()) / (4 * axis.size) for axis in axes]
    deviations = [max(0.0, square - mean**2) for square, mean in zip(squares, means, strict=True)]
    return float(np.sqrt(sum(deviations)) + 0.3 * np.sqrt(sum(mean**2 for mean in means)))
