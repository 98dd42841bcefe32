"""Finds all pairs of a block of the pool and the test side whose cosine is above a threshold, without exception.

The test side is rotated so that its first columns hold most of it. With q = (q1, q2) and x = (x1, x2), cut after some
columns, q.x <= q1.x1 + |q2| |x2|: one short dot product bounds the cosine of a pair and excludes nearly every pair. The
others are bounded by more columns, and then decided in integers. Bounds are rounded up by more than the error of
floats, so the rounding of a CPU or its BLAS costs time, never a pair.
"""

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from altalign.dedup.dot_products import (
    PER_ROW,
    ROWS,
    STRIP,
    STRIPS,
    TILE,
    most_of_row,
    multiply_tile,
    packed,
    padded,
    squared_norms,
)

DIMENSIONS_AT_MOST = 16_384  # with more, the error of floats may exceed what the bounds allow for

_WIDTHS = (16, 32, 64)  # columns of the first bound; the last column is the norm of the rest
_SECOND = 64  # columns of the second bound
_SCALE = 32_000  # scale of a bound's columns in int16
_SAMPLE = 20_000  # vectors of the test side that its rotation is computed from
_LONG, _SAMPLE_OF_LONG = 1_024, 500  # with more dimensions than this the sample is smaller, or it would take minutes
_TRIED = 256, 8_192  # vectors of the test side that are compared with one another to choose a width
_NS_OF_COLUMN, _NS_OF_SURVIVOR = 0.01, 150.0  # cost in ns of a pair's column, and of a pair that the bound leaves
_ROWS_AT_A_TIME = 1_024  # rows of a block whose columns stay in the CPU's second cache
_UNSURE = 1e-12  # cosines nearer to the threshold than this are compared exactly


class Pairs(NamedTuple):
    """Pairs above a threshold, by row of the block, then by row of the test side."""

    rows: npt.NDArray[np.int64]  # [m], rows of the block
    tests: npt.NDArray[np.int64]  # [m], rows of the test side
    cosines: npt.NDArray[np.float64]  # [m]; rounded: one hardly above the threshold may equal it


@dataclass(frozen=True, eq=False)
class TestSide:
    """The test side, ready to be searched: arrays that are saved and mapped, so that all processes share one copy."""

    vectors: npt.NDArray[np.int16]  # [n, d], as given
    norms: npt.NDArray[np.int64]  # [n], squared
    rotation: npt.NDArray[np.float32]  # [d, c], the leading directions of the test side, orthonormal
    strips: npt.NDArray[np.int16]  # [strips, width / 2, 16, 2], the columns of the first bound
    second: npt.NDArray[np.int16]  # [n, 64], the columns of the second bound, or [n, 0] if it has no more

    @classmethod
    def build(cls, vectors: np.ndarray, *, above: float) -> "TestSide":
        """The test side of any number of vectors, int16[n, d]: fastest for this threshold, and correct for any."""
        vectors = np.ascontiguousarray(vectors)
        norms, dimensions = squared_norms(vectors), vectors.shape[1]
        if not 1 <= dimensions <= DIMENSIONS_AT_MOST:
            raise ValueError(f"vectors have {dimensions} dimensions; 1 to {DIMENSIONS_AT_MOST:,} can be searched")
        rotation = _leading_directions(vectors, norms)
        rotated = _rotated(vectors, norms, rotation)
        width = _best_width(rotated, norms, dimensions, above)
        has_second = width < _SECOND < dimensions
        second = _bounding(rotated, norms, dimensions, _SECOND) if has_second else np.zeros((len(vectors), 0), np.int16)
        return cls(vectors, norms, rotation, packed(_bounding(rotated, norms, dimensions, width)), second)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays to save; `TestSide(**arrays)` is the inverse."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def first(self, count: int) -> "TestSide":
        """The first `count` vectors of the test side, without copying; there may be some more in `strips`."""
        strips = -(-count // PER_ROW) * STRIPS
        return TestSide(
            self.vectors[:count], self.norms[:count], self.rotation, self.strips[:strips], self.second[:count]
        )


def find_pairs(block: np.ndarray, test_side: TestSide, *, above: float) -> Pairs:
    """All pairs of a block (int16[n, d]) and the test side that `is_above` accepts; vectors of zeros have no pairs.

    Blocks of 1,000 rows or more are fastest. The pairs found take about 100 bytes each until they are returned.
    """
    block = np.ascontiguousarray(block)
    norms = squared_norms(block)
    if block.shape[1] != test_side.vectors.shape[1]:
        raise ValueError(f"vectors of {block.shape[1]} and {test_side.vectors.shape[1]} dimensions have no cosines")
    blocks = [np.zeros((0, 3), np.int64)]
    for begin in range(0, len(block), _ROWS_AT_A_TIME):
        some = slice(begin, begin + _ROWS_AT_A_TIME)
        candidates = _candidates(block[some], norms[some], test_side, above)
        candidates[:, 0] += begin
        blocks.append(candidates[np.lexsort((candidates[:, 1], candidates[:, 0]))])
    rows, tests, products = np.concatenate(blocks).T
    is_pair = is_above(products, norms[rows], test_side.norms[tests], above)
    rows, tests, products = rows[is_pair], tests[is_pair], products[is_pair]
    return Pairs(rows, tests, _cosines(products, norms[rows], test_side.norms[tests]))


def is_above(products: np.ndarray, norms: np.ndarray, other_norms: np.ndarray, above: float) -> np.ndarray:
    """Whether cosines, of dot products and squared norms (int64[n]), are strictly above a threshold, exactly.

    The threshold is the decimal number that `above` prints as, 39/40 for 0.975, not the binary number near it. If a
    norm is 0, there is no cosine, and the result is False.
    """
    cosines = _cosines(products, norms, other_norms)
    is_pair = cosines > above
    unsure = np.flatnonzero(np.abs(cosines - above) <= _UNSURE)
    if len(unsure):  # often many pairs with few distinct numbers: cosines of short vectors of ones
        cases, places = np.unique(np.stack([products, norms, other_norms], axis=1)[unsure], axis=0, return_inverse=True)
        exact = Fraction(str(above))
        decided = [product > 0 and product**2 > exact**2 * norm * other for product, norm, other in cases.tolist()]
        is_pair[unsure] = np.array(decided)[places.reshape(-1)]
    return is_pair


def _cosines(products: np.ndarray, norms: np.ndarray, other_norms: np.ndarray) -> np.ndarray:
    """Cosines, float64[n]; -1 where a norm is 0. Each operation is correctly rounded, so all CPUs agree."""
    roots = np.sqrt(norms.astype(np.float64) * other_norms.astype(np.float64))
    return np.divide(products.astype(np.float64), roots, out=np.full(len(products), -1.0), where=roots > 0)


# Bounds ---------------------------------------------------------------------------------------------------------------


def _leading_directions(vectors: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """The directions that hold most of the test side, from an even sample of it, float32[d, at most 63]."""
    count, dimensions = vectors.shape
    if not count:
        return np.zeros((dimensions, 0), np.float32)
    is_long = dimensions > _LONG
    step = max(1, count // (_SAMPLE_OF_LONG if is_long else _SAMPLE))
    unit = _unit(vectors[::step], norms[::step]).astype(np.float64)
    directions = np.linalg.svd(unit, full_matrices=False)[2].T if is_long else np.linalg.eigh(unit.T @ unit)[1][:, ::-1]
    return np.ascontiguousarray(directions[:, : _SECOND - 1], np.float32)


def _unit(vectors: np.ndarray, norms: np.ndarray) -> np.ndarray:
    return vectors.astype(np.float32) / np.sqrt(np.maximum(norms, 1)).astype(np.float32)[:, None]


def _rotated(vectors: np.ndarray, norms: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """The leading columns of unit vectors, float32[n, c], each off by `_error` of one column at most; zeros stay."""
    made = np.empty((len(vectors), rotation.shape[1]), np.float32)
    for begin in range(0, len(vectors), _ROWS_AT_A_TIME):
        some = slice(begin, begin + _ROWS_AT_A_TIME)
        np.matmul(_unit(vectors[some], norms[some]), rotation, out=made[some])
    return made


def _error(columns: int, dimensions: int) -> float:
    """The error, in length, of the leading columns of a unit vector as floats: at most twice the bound of rounding."""
    return columns**0.5 * (dimensions + 8) * 2.0**-23


def _bounding(rotated: np.ndarray, norms: np.ndarray, dimensions: int, width: int) -> np.ndarray:
    """Leading columns and the norm of the rest, rounded up (0 for a vector of zeros), int16[n, at most width]."""
    columns = rotated[:, : width - 1]
    squares, error = np.square(columns, dtype=np.float64).sum(axis=1), _error(columns.shape[1], dimensions)
    rest = np.sqrt(np.maximum(0.0, 1.0 - squares) + 2 * error * (1 + error))
    made = np.empty((len(columns), columns.shape[1] + 1), np.int16)
    made[:, :-1] = np.rint(columns * np.float32(_SCALE))
    made[:, -1] = np.where(norms > 0, np.ceil(rest * _SCALE) + 1, 0)
    return made


def _limit(columns: int, dimensions: int, above: float) -> int:
    """A limit on the dot product of bounding columns: every pair above the threshold exceeds it."""
    leading = columns - 1
    error = _error(leading, dimensions)
    # Rounding to integers adds half a unit per column.
    rounding = 2 * 0.51 * leading**0.5 * (1 + error) / _SCALE + 0.27 * leading / _SCALE**2
    return int(np.floor((above - 2 * error - error**2 - rounding - _UNSURE) * _SCALE**2)) - 1


def _best_width(rotated: np.ndarray, norms: np.ndarray, dimensions: int, above: float) -> int:
    """The cheapest width of the first bound, assuming that the pool is like the test side."""
    some, more = (np.arange(0, len(rotated), max(1, len(rotated) // count))[:count] for count in _TRIED)

    def cost(width: int) -> float:
        left, right = (_bounding(rotated[rows], norms[rows], dimensions, width) for rows in (some, more))
        bounds = left.astype(np.float32) @ right.astype(np.float32).T
        survivors = (bounds > _limit(left.shape[1], dimensions, above)).mean() if bounds.size else 0.0
        return width * _NS_OF_COLUMN + survivors * _NS_OF_SURVIVOR

    return min(_WIDTHS, key=cost)


# The search -----------------------------------------------------------------------------------------------------------


def _candidates(block: np.ndarray, norms: np.ndarray, test_side: TestSide, above: float) -> np.ndarray:
    """Row, test row and dot product of all pairs above the threshold or too near to it for floats, int64[m, 3]."""
    rotated = _rotated(block, norms, test_side.rotation)
    width, dimensions = 2 * test_side.strips.shape[1], block.shape[1]
    first, second = (_bounding(rotated, norms, dimensions, of_bound) for of_bound in (width, _SECOND))
    limits = np.array([_limit(bounding.shape[1], dimensions, above) for bounding in (first, second)])
    rows = padded(first), second, block, norms
    tests = test_side.strips, test_side.second, test_side.vectors, test_side.norms
    triples = np.empty((4 * TILE, 3), np.int64)
    count, strip, row = _search(rows, tests, limits, above - _UNSURE, triples, 0, 0, 0)
    while strip < len(test_side.strips):
        triples = np.concatenate([triples, np.empty_like(triples)])
        count, strip, row = _search(rows, tests, limits, above - _UNSURE, triples, count, strip, row)
    return triples[:count]


Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@njit(nogil=True, cache=True)
def _search(
    rows: Arrays, tests: Arrays, limits: np.ndarray, floor: float, triples: np.ndarray, count: int, strip: int, row: int
) -> tuple[int, int, int]:
    """Fill `triples` from `count` on, from a tile on; returns the new count and the tile that there is no room for."""
    sums, first, strips = np.empty(TILE, np.int32), rows[0], tests[0]
    while strip < len(strips):
        while row < len(first):
            if len(triples) - count < TILE:
                return count, strip, row
            if multiply_tile(first, row, strips, strip, sums, strips.shape[1]) > limits[0]:
                for r in range(min(ROWS, len(rows[1]) - row)):
                    if most_of_row(sums, r) > limits[0]:
                        of_row = sums[r * PER_ROW : (r + 1) * PER_ROW]
                        count = _look_closer(of_row, row + r, strip * STRIP, rows, tests, limits, floor, triples, count)
            row += ROWS
        strip, row = strip + STRIPS, 0
    return count, strip, row


@njit(nogil=True, cache=True)
def _look_closer(
    bounds: np.ndarray,
    row: int,
    first_test: int,
    rows: Arrays,
    tests: Arrays,
    limits: np.ndarray,
    floor: float,
    triples: np.ndarray,
    count: int,
) -> int:
    """Bound again the pairs of one row that the first bound leaves, then multiply them; returns the new count."""
    (_, second, vectors, norms), (_, test_second, test_vectors, test_norms) = rows, tests
    for i in range(min(len(bounds), len(test_vectors) - first_test)):
        if bounds[i] <= limits[0]:
            continue
        test = first_test + i
        if test_second.shape[1] and _product(second[row], test_second[test]) <= limits[1]:
            continue
        product = _product(vectors[row], test_vectors[test])
        norm = np.float64(norms[row]) * np.float64(test_norms[test])
        if norm > 0 and product > floor * np.sqrt(norm):
            triples[count, 0], triples[count, 1], triples[count, 2] = row, test, product
            count += 1
    return count


@njit(nogil=True, cache=True)
def _product(left: np.ndarray, right: np.ndarray) -> np.int32:
    total = np.int32(0)
    for i in range(len(left)):
        total += np.int32(np.int32(left[i]) * np.int32(right[i]))
    return total
