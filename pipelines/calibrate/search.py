"""Compares images of the pool with the test side below any threshold, to count false positives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from altalign.dedup import thresholds as measures
from altalign.dedup.near_duplicates import Pairs, TestSide, find_pairs
from altalign.dedup.thresholds import CosineHistogram, Line
from altalign.errors import AltalignError, UsageError
from altalign.machine.threads import in_threads
from altalign.pipelines.engine.options import threads
from altalign.pipelines.images.calibration_files import Calibration
from altalign.pipelines.run.units import Run

SEARCHED_ABOVE = 0.5  # no threshold is chosen below what was searched for
# so that what is found above a low cosine fits in memory
_COMPARISONS_AT_A_TIME, _ROWS_AT_LEAST, _ROWS_AT_MOST = 4_000_000, 64, 1_000


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


@dataclass(frozen=True, eq=False)
class Search:
    """The pool against the test side; images that are test images to the byte are left out of all that is counted.

    Attributes:
        vectors: of the pool, int16[n, d].
        sha256: of the pool's bytes, S64[n].
        side: test images.
        tests: their SHA-256.
        decoys: mirrored test images, without those that are like their own mirror image.
        of_decoys: the SHA-256 of what they are mirror images of.
        threads: how many work.
    """

    vectors: np.ndarray
    sha256: np.ndarray
    side: TestSide
    tests: np.ndarray
    decoys: TestSide
    of_decoys: np.ndarray
    threads: int

    @classmethod
    def of(cls, run: Run, calibration: Calibration, pool: Pool, tests: Tests) -> "Search":
        """The test side for the vectors of a calibration."""
        plain, mirrored = calibration.vectors(tests.features), calibration.vectors(tests.mirrored)
        is_decoy = ~measures.is_own_mirror(plain, mirrored, similarity_above=run.config.decontaminate.similarity_above)
        return cls(
            vectors=calibration.vectors(pool.features),
            sha256=np.array([place.sha256 for place in pool.places], "S64"),
            side=TestSide.build(plain, above=SEARCHED_ABOVE),
            tests=tests.sha256,
            decoys=TestSide.build(mirrored[is_decoy], above=SEARCHED_ABOVE),
            of_decoys=tests.sha256[is_decoy],
            threads=threads(run.config.engine),
        )

    def histograms(self) -> tuple[CosineHistogram, CosineHistogram]:
        """Histograms of the cosines of all pairs with test images, and with decoys."""

        def count(block: slice) -> tuple[CosineHistogram, CosineHistogram]:
            return self._histogram(block, self.side, self.tests), self._histogram(block, self.decoys, self.of_decoys)

        none = CosineHistogram(SEARCHED_ABOVE)
        parts = in_threads(count, self._blocks(), self.threads)
        return sum((part for part, _ in parts), none), sum((part for _, part in parts), none)

    def around(self, threshold: float, *, from_: float, pairs: int) -> Pairs:
        """The `pairs` pairs nearest to a threshold among those above another, by rising cosine."""

        def nearest(block: slice) -> Pairs:
            found = self._pairs(block, self.side, self.tests, above=from_)[0]
            return _where(found, measures.nearest_to(threshold, found.cosines, pairs=pairs))

        parts = in_threads(nearest, self._blocks(), self.threads)
        rows = np.concatenate([part.rows for part in parts])
        tests = np.concatenate([part.tests for part in parts])
        found = Pairs(rows, tests, np.concatenate([part.cosines for part in parts]))
        return _where(found, measures.nearest_to(threshold, found.cosines, pairs=pairs))

    def _blocks(self) -> list[slice]:
        rows = min(_ROWS_AT_MOST, max(_ROWS_AT_LEAST, _COMPARISONS_AT_A_TIME // max(1, len(self.tests))))
        return [slice(begin, begin + rows) for begin in range(0, len(self.vectors), rows)]

    def _histogram(self, block: slice, side: TestSide, of_side: np.ndarray) -> CosineHistogram:
        found, same = self._pairs(block, side, of_side, above=SEARCHED_ABOVE)
        return CosineHistogram(SEARCHED_ABOVE).add(found.cosines, len(self.vectors[block]) * len(of_side) - same)

    def _pairs(self, block: slice, side: TestSide, of_side: np.ndarray, *, above: float) -> tuple[Pairs, int]:
        """Pairs that are found, by row of the pool, without those of the same bytes; and the number of those."""
        found = find_pairs(self.vectors[block], side, above=above)
        rows = found.rows + block.start
        sides, counts = np.unique(of_side, return_counts=True)
        places = np.minimum(np.searchsorted(sides, self.sha256[block]), max(0, len(sides) - 1))
        same = int(counts[places][sides[places] == self.sha256[block]].sum()) if len(sides) else 0
        return _where(found._replace(rows=rows), np.flatnonzero(self.sha256[rows] != of_side[found.tests])), same


def _where(found: Pairs, rows: np.ndarray) -> Pairs:
    return Pairs(found.rows[rows], found.tests[rows], found.cosines[rows])


def lines(folder: str, found: CosineHistogram, decoys: CosineHistogram, *, copies: int) -> list[Line]:
    """The line of the rate of false positives, without true near-duplicates, and the line of decoys.

    The latter is left out where there are too few decoys.
    """
    try:
        made = [measures.fit(found.without(copies))]
    except ValueError as error:
        raise AltalignError(f"{folder}: {error} (a larger run, or more test images)") from error
    try:
        return [*made, measures.fit(decoys)]
    except ValueError:
        return made


def threshold(of_lines: Sequence[Line], *, test_images: int, views: int, budget: float) -> float:
    """The smallest threshold within the budget by every line, and not below what was searched for."""
    try:
        return max(
            SEARCHED_ABOVE,
            *(
                measures.smallest_threshold(line, test_images=test_images, views=views, budget=budget)
                for line in of_lines
            ),
        )
    except ValueError as error:
        raise UsageError(f"--false-positives {budget:g}: {error}") from error
