"""Compares images of the pool with the test side below any threshold, to count false positives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from altalign.dedup.near_duplicates import Pairs, TestSide, find_pairs
from altalign.dedup.thresholds import SEARCHED_ABOVE, Comparisons, nearest_to
from altalign.machine.threads import in_threads

# so that what is found above a low cosine fits in memory
_COMPARISONS_AT_A_TIME, _ROWS_AT_LEAST, _ROWS_AT_MOST = 4_000_000, 64, 1_000

T = TypeVar("T")


class PoolImage(NamedTuple):
    """An image of the pool: its first key, its fetch unit, the place of its bytes in the blob, and their kind."""

    key: str
    unit: str
    offset: int
    bytes: int
    sha256: str


@dataclass(frozen=True, eq=False)
class Pool:
    """A sample of the run's images: those with the smallest image_id, which is a hash.

    Features are int16[n, d]. Flat images are passed over and counted.
    """

    places: list[PoolImage]
    features: np.ndarray
    flat: int

    @property
    def distinct(self) -> np.ndarray:
        """Rows of the first image with each sequence of bytes, int64[n].

        Without repeated bytes, no image is both shown to the map and searched for.
        """
        return np.sort(np.unique([place.sha256 for place in self.places], return_index=True)[1])


@dataclass(frozen=True, eq=False)
class Tests:
    """Test images that are not flat: their numbers among all, the SHA-256 of their bytes, and features.

    Features are int16[n, d], of the images and of their mirror images.
    """

    names: list[tuple[str, str]]  # of all test images: test set, test image
    flat: int
    numbers: np.ndarray
    sha256: np.ndarray
    features: np.ndarray
    mirrored: np.ndarray


class Search:
    """The pool against test images; pairs of the same bytes are left out of all that is found.

    Args:
        vectors: of the pool, int16[n, d].
        sha256: of the pool's bytes, S64[n].
        tests: vectors of test images, int16[m, d].
        of_tests: the SHA-256 of the images, S64[m].
        threads: how many work.
    """

    def __init__(
        self, vectors: np.ndarray, sha256: np.ndarray, tests: np.ndarray, of_tests: np.ndarray, threads: int
    ) -> None:
        self._vectors, self._sha256, self._of_tests, self._threads = vectors, sha256, of_tests, threads
        self._side = TestSide.build(tests, above=SEARCHED_ABOVE)

    def counted(self) -> Comparisons:
        """All pairs, counted by cosine."""
        nothing = Comparisons.from_cosines(np.zeros(0), 0)

        def count(block: slice) -> Comparisons:
            pairs = self._pairs(block, above=SEARCHED_ABOVE)
            return Comparisons.from_cosines(pairs.cosines, len(self._vectors[block]) * len(self._of_tests))

        return sum(self._of_blocks(count), nothing)

    def around(self, threshold: float, *, above: float, pairs: int) -> Pairs:
        """The `pairs` pairs nearest to a threshold among those above another, by rising cosine."""

        def nearest(block: slice) -> Pairs:
            return _nearest(self._pairs(block, above=above), threshold, pairs)

        parts = self._of_blocks(nearest)
        return _nearest(Pairs(*map(np.concatenate, zip(*parts, strict=True))), threshold, pairs)

    def _of_blocks(self, work: Callable[[slice], T]) -> Sequence[T]:
        rows = min(_ROWS_AT_MOST, max(_ROWS_AT_LEAST, _COMPARISONS_AT_A_TIME // max(1, len(self._of_tests))))
        blocks = [slice(begin, begin + rows) for begin in range(0, len(self._vectors), rows)]
        return in_threads(work, blocks, self._threads)

    def _pairs(self, block: slice, *, above: float) -> Pairs:
        pairs = find_pairs(self._vectors[block], self._side, above=above)
        pairs = pairs._replace(rows=pairs.rows + block.start)
        return _where(pairs, np.flatnonzero(self._sha256[pairs.rows] != self._of_tests[pairs.tests]))


def _nearest(pairs: Pairs, threshold: float, count: int) -> Pairs:
    return _where(pairs, nearest_to(threshold, pairs.cosines, pairs=count))


def _where(pairs: Pairs, rows: np.ndarray) -> Pairs:
    return Pairs(pairs.rows[rows], pairs.tests[rows], pairs.cosines[rows])
