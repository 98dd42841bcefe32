"""An index of embeddings: exact, in memory."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Vectors:
    """Vectors of length 1, by the order in which they are given."""

    def __init__(self, chunks: Iterable[Floats]):
        parts = [chunk.astype(np.float16) for chunk in chunks if len(chunk)]
        self._vectors = np.concatenate(parts) if parts else np.zeros((0, 0), np.float16)

    def __len__(self) -> int:
        return len(self._vectors)

    def search(self, query: Floats, k: int, rows: npt.NDArray[np.int64] | None) -> tuple[npt.NDArray[np.int64], Floats]:
        """The k nearest of these rows, or of all, and their cosines: the nearest first, of equal ones the first row."""
        some = self._vectors if rows is None else self._vectors[rows]
        cosines = some.astype(np.float32) @ query
        order = np.argsort(-cosines, kind="stable")[:k]
        return (order if rows is None else rows[order]), cosines[order]
