"""The descriptor `dct`: the 192 lowest frequencies of a 32 x 32 thumbnail, and a map from them to 64 dimensions.

Both are computed in integers: on every machine the same pixels give the same coefficients, and the same map gives the
same vectors. Only learning a map uses floats; the result is rounded once and written, and the file decides from then
on.
"""

from dataclasses import dataclass
from math import cos, pi, sqrt

import numpy as np
import numpy.typing as npt
from numba import njit

SIDE_PX = 32
# Coefficients of the orthonormal DCT are in eighths of a gray level: at most 4,080 gray levels, so 32,640.
DIMENSIONS = 64
# Length of a vector, as exactly as int16 allows: within 0.01 % at 64 dimensions. A dot product of two fits int32.
NORM = 32_767
DIMENSIONS_AT_MOST = 4_096  # squares of a vector are summed in 64 bits

_FLAT_BELOW = 10  # gray levels of deviation; clip art below it resembles all clip art that is as empty
_WITHIN_RIDGE, _TOTAL_RIDGE = 0.05, 0.05

# The lowest frequencies (down, across) by u² + v², without the mean, (0, 0): copies change brightness first. The set is
# the same after a turn by 90 degrees, and no frequency is above 15.
_FREQUENCIES = 16
_BOTH = [(u, v) for u in range(_FREQUENCIES) for v in range(_FREQUENCIES) if u or v]
FREQUENCIES: npt.NDArray[np.int64] = np.array(sorted(_BOTH, key=lambda f: (f[0] ** 2 + f[1] ** 2, f))[:192])
COEFFICIENTS = len(FREQUENCIES)

_COSINE_BITS = 20  # 255 x 32 x 0.25 x 2^20 is just below 2^31


def _cosine(u: int, x: int) -> int:
    return round(cos((2 * x + 1) * u * pi / 64) * (0.25 if u else sqrt(1 / 32)) * 2**_COSINE_BITS)


_COSINES: npt.NDArray[np.int32] = np.array(
    [[_cosine(u, x) for x in range(SIDE_PX)] for u in range(_FREQUENCIES)], np.int32
)
_SHIFT = 2 * _COSINE_BITS - 3  # leaves eighths

_MATRIX_AT_MOST, _MEAN_AT_MOST = 2**24, 2**15
_MANTISSA_BITS = 25
_EXACT_ROWS_AT_MOST = 2**21  # differences of 17 bits, squared and summed, stay below 2^53 and so exact in float64


def dct_coefficients(luma: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.bool_]]:
    """The low frequencies of thumbnails, uint8[n, 32, 32], and which are flat: these have no embedding.

    They are int16[n, 192] in the order of `FREQUENCIES`, in eighths of a gray level, rounded to the nearest (halves to
    even). Flat, bool[n], is a deviation of the pixels below 10 gray levels.
    """
    coefficients, is_flat = np.empty((len(luma), COEFFICIENTS), np.int16), np.empty(len(luma), np.bool_)
    _transform(np.ascontiguousarray(luma), _COSINES, FREQUENCIES, coefficients, is_flat)
    return coefficients, is_flat


@njit(nogil=True, cache=True)
def _transform(
    luma: np.ndarray, cosines: np.ndarray, frequencies: np.ndarray, coefficients: np.ndarray, is_flat: np.ndarray
) -> None:
    half = np.int64(1) << (_SHIFT - 1)
    down = np.empty((_FREQUENCIES, SIDE_PX), np.int32)
    for i in range(len(luma)):
        down[:] = 0
        for y in range(SIDE_PX):
            for u in range(_FREQUENCIES):
                for x in range(SIDE_PX):
                    down[u, x] += cosines[u, y] * np.int32(luma[i, y, x])
        is_flat[i] = _is_flat(luma[i])
        for k in range(len(frequencies)):
            u, v, across = frequencies[k, 0], frequencies[k, 1], np.int64(0)
            for x in range(SIDE_PX):
                across += np.int64(down[u, x]) * cosines[v, x]
            rounded = (across + half) >> _SHIFT
            is_tie = (across & (2 * half - 1)) == half
            coefficients[i, k] = rounded - (is_tie & rounded & 1)


def is_flat(luma: npt.NDArray[np.uint8]) -> bool:
    """Whether one thumbnail, uint8[32, 32], is flat in the sense of `dct_coefficients`."""
    return bool(_is_flat(luma))


@njit(nogil=True, cache=True)
def _is_flat(luma: np.ndarray) -> np.bool_:
    total, squares = np.int64(0), np.int64(0)
    for y in range(SIDE_PX):
        for x in range(SIDE_PX):
            level = np.int64(luma[y, x])
            total += level
            squares += level * level
    return luma.size * squares - total * total < (_FLAT_BELOW * luma.size) ** 2


def mirrored(coefficients: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """The exact coefficients of the mirrored images (left and right swapped): odd frequencies across change sign."""
    return np.where(FREQUENCIES[:, 1] % 2 == 1, -coefficients, coefficients)


@dataclass(frozen=True, eq=False)
class Map:
    """A linear map from coefficients to vectors, in integers. Raises ValueError: an array is none of a map."""

    mean: npt.NDArray[np.int32]  # [192], subtracted first, in the unit of the coefficients; from -2^15 to 2^15
    matrix: npt.NDArray[np.int32]  # [d, 192], from -2^24 to 2^24; its scale is free: vectors are scaled to one length

    def __post_init__(self):
        for array, shape, at_most in (
            (self.mean, (COEFFICIENTS,), _MEAN_AT_MOST),
            (self.matrix, (*self.matrix.shape[:1], COEFFICIENTS), _MATRIX_AT_MOST),
        ):
            if array.dtype != np.int32 or array.shape != shape or not 1 <= len(array) <= DIMENSIONS_AT_MOST:
                raise ValueError(f"{array.dtype} of shape {array.shape}, not int32 of shape {shape}")
            if max(int(array.max()), -int(array.min())) > at_most:
                raise ValueError(f"a value is more than {at_most:,} off 0")

    @property
    def dimensions(self) -> int:
        """Dimensions of the vectors."""
        return len(self.matrix)

    def embed(self, coefficients: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
        """Vectors of length `NORM`, int16[n, d], of coefficients, int16[n, 192]; zeros where these equal the mean."""
        vectors = np.empty((len(coefficients), self.dimensions), np.int16)
        _project(np.ascontiguousarray(coefficients), self.mean, self.matrix, vectors)
        return vectors


@njit(nogil=True, cache=True)
def _project(coefficients: np.ndarray, mean: np.ndarray, matrix: np.ndarray, vectors: np.ndarray) -> None:
    centred, product = np.empty(len(mean), np.int64), np.empty(len(matrix), np.int64)
    for i in range(len(coefficients)):
        for k in range(len(mean)):
            centred[k] = np.int64(coefficients[i, k]) - mean[k]
        for d in range(len(matrix)):
            total = np.int64(0)
            for k in range(len(mean)):
                total += matrix[d, k] * centred[k]
            product[d] = total
        _to_norm(product, vectors[i])


@njit(nogil=True, cache=True)
def _normalize(wholes: np.ndarray, vectors: np.ndarray) -> None:
    for i in range(len(wholes)):
        _to_norm(wholes[i], vectors[i])


@njit(nogil=True)
def _to_norm(values: np.ndarray, vector: np.ndarray) -> None:
    # Values are scaled by a power of two to 25 bits: their squares can be summed, and the integer root of the sum is
    # exact to 2^-24. Halves round away from 0.
    greatest = np.int64(0)
    for d in range(len(values)):
        greatest = max(greatest, abs(values[d]))
    if greatest == 0:
        vector[:] = 0
        return
    up, down = 0, 0
    while greatest << up < 1 << (_MANTISSA_BITS - 1):
        up += 1
    while greatest >> down >= 1 << _MANTISSA_BITS:
        down += 1
    squares = np.int64(0)
    for d in range(len(values)):
        scaled = (abs(values[d]) << up) >> down
        squares += scaled * scaled
    root = np.int64(np.sqrt(np.float64(squares)))
    while root * root > squares:
        root -= 1
    while (root + 1) * (root + 1) <= squares:
        root += 1
    for d in range(len(values)):
        size = (2 * NORM * ((abs(values[d]) << up) >> down) + root) // (2 * root)
        vector[d] = -size if values[d] < 0 else size


def quantized(features: npt.NDArray[np.floating]) -> npt.NDArray[np.int16]:
    """Features of a model as vectors of length `NORM`, int16[n, d], the same on every machine; zeros stay zeros.

    Raises ValueError: the array has another shape, or a value is not finite.
    """
    if features.ndim != 2 or not 1 <= features.shape[1] <= DIMENSIONS_AT_MOST:
        raise ValueError(f"features of shape {features.shape}, not (n, d) with d from 1 to {DIMENSIONS_AT_MOST:,}")
    exact = features.astype(np.float64)
    if not np.isfinite(exact).all():
        row = int(np.flatnonzero(~np.isfinite(exact).all(axis=1))[0])
        raise ValueError(f"row {row:,} of the features has a value that is not finite")
    greatest = np.abs(exact).max(axis=1, initial=0.0, keepdims=True)
    wholes = np.rint(exact / np.where(greatest > 0, greatest, 1.0) * 2.0**30).astype(np.int64)
    vectors = np.empty(features.shape, np.int16)
    _normalize(wholes, vectors)
    return vectors


def learn_map(
    originals: npt.NDArray[np.int16],
    copies: npt.NDArray[np.int16],
    copy_of: npt.NDArray[np.integer],
    *,
    dimensions: int = DIMENSIONS,
) -> Map:
    """The map that holds copies together and other images apart, of at most 192 dimensions.

    Its rows are the leading generalised eigenvectors of the images' scatter against that of their copies (Fisher's
    discriminant with one class per image), scaled to unit scatter within. Both scatters have 5 % of their diagonal
    added, so that a map of few images is not fitted to their accidents and has all its dimensions. The map depends on
    the images and copies but not on their order; the eigenvectors come from the machine's linear algebra.

    Coefficients are int16[n, 192] of images, none of them flat, and int16[m, 192] of copies, m below two million;
    `copy_of`, int[m], has the row of each copy's original.
    """
    if len(originals) < 2 or not 1 <= len(copies) < _EXACT_ROWS_AT_MOST:
        most = f"two images or more and 1 to {_EXACT_ROWS_AT_MOST - 1:,} copies"
        raise ValueError(f"a map is learned from {most}, not from {len(originals):,} and {len(copies):,}")
    values = originals.astype(np.float64)  # of integers: sums are exact in any order and with any BLAS
    sums = values.sum(axis=0)
    mean, total = sums / len(values), values.T @ values / len(values) - np.outer(sums, sums) / len(values) ** 2
    changes = copies.astype(np.float64) - originals[copy_of]
    within = changes.T @ changes / len(changes)
    rows = _discriminants(total, within)[:dimensions]
    matrix = np.rint(rows * (_MATRIX_AT_MOST / np.abs(rows).max())).astype(np.int32)
    return Map(np.rint(mean).astype(np.int32), matrix)


def _discriminants(total: npt.NDArray[np.float64], within: npt.NDArray[np.float64]) -> npt.NDArray[np.floating]:
    """All generalised eigenvectors of the two, leading first, a row each; its entry farthest from 0 is positive."""
    total = total + np.diag(_TOTAL_RIDGE * np.diag(total))
    # Adds the variance of rounding, so that no coefficient is without any.
    within = within + np.diag(_WITHIN_RIDGE * np.diag(within) + 1.0)
    inverse = np.linalg.inv(np.linalg.cholesky(within))
    symmetric = inverse @ total @ inverse.T
    _, vectors = np.linalg.eigh((symmetric + symmetric.T) / 2)
    rows = (inverse.T @ vectors[:, ::-1]).T
    is_turned = rows[np.arange(len(rows)), np.abs(rows).argmax(axis=1)] < 0
    return np.where(is_turned[:, np.newaxis], -rows, rows)
