"""The weights of a source's pairs as running sums, float64[n], mapped from a file of the index.

A pair has the part of the sum that its weight is. So the pair at any point of the sum is found by halving, and nobody
holds an order of draws.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from altalign import storage

SUM = np.dtype("<f8")

Floats = npt.NDArray[np.float64]


class Weights:
    """Running sums of weights above 0. Each of several processes maps the file anew."""

    def __init__(self, path: str) -> None:
        """Of a file that `index.build` has written, with at least one sum."""
        self._path = path
        self._mapped: Floats | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._sums[-1])

    def at(self, points: Floats) -> npt.NDArray[np.int64]:
        """The pairs that have these points, each from 0 (included) to 1 of the sum: int64[n]."""
        found = np.searchsorted(self._sums, points * self.total, side="right")
        return np.minimum(found, len(self._sums) - 1).astype(np.int64)  # rounded up to the sum itself

    @property
    def _sums(self) -> Floats:
        if self._mapped is None:
            self._mapped = np.memmap(storage.mappable(self._path), SUM, "r")
        return self._mapped
