"""The input of all programs of the search benchmark. Needs only NumPy: peers run in their own environment.

A mixture stands for what embedders make: more than half of all vectors near a few of many centres, columns that fall
off, and in the pool copies of test images, just above the threshold and just below.
"""

from pathlib import Path

import numpy as np

ABOVE = 0.975
BLOCK = 1_000  # of the pool, searched at a time
CENTRES, SPREAD, COPIES = 3_000, 0.25, 0.2
NORM = 32_000
AT_A_TIME = 20_000


def generated(tests: int, pool: int, dimensions: int, folder: Path) -> tuple[Path, Path]:
    """Files of a test side and of a pool, int16[n, d], made unless they are there."""
    made = folder / f"vectors-{dimensions}-{tests}-{pool}"
    if not made.is_dir():
        partial = made.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(dimensions)
        centres = rng.normal(size=(CENTRES, dimensions)) * np.arange(1, dimensions + 1) ** -0.5 / 2
        of_tests = np.concatenate(
            [_drawn(rng, centres, min(AT_A_TIME, tests - first)) for first in range(0, tests, AT_A_TIME)]
        )
        of_pool = _drawn(rng, centres, pool)
        copies = min(int(pool * COPIES), tests)
        of_pool[rng.permutation(pool)[:copies]] = _near(rng, of_tests[rng.permutation(tests)[:copies]])
        np.save(partial / "tests.npy", of_tests)
        np.save(partial / "pool.npy", of_pool)
        partial.rename(made)
    return made / "tests.npy", made / "pool.npy"


def _drawn(rng: np.random.Generator, centres: np.ndarray, count: int) -> np.ndarray:
    dimensions = centres.shape[1]
    chosen = np.minimum((rng.pareto(1.2, count) * 20).astype(np.int64), len(centres) - 1)
    return _quantised(
        centres[chosen] + SPREAD * rng.normal(size=(count, dimensions)) * np.arange(1, dimensions + 1) ** -0.3
    )


def _near(rng: np.random.Generator, vectors: np.ndarray) -> np.ndarray:
    """Vectors near to others, at cosines from 0.96 to 0.99."""
    unit, away = vectors / np.linalg.norm(vectors, axis=1, keepdims=True), rng.normal(size=vectors.shape)
    away -= (away * unit).sum(axis=1, keepdims=True) * unit
    cosines = rng.uniform(0.96, 0.99, (len(vectors), 1))
    return _quantised(cosines * unit + np.sqrt(1 - cosines**2) * away / np.linalg.norm(away, axis=1, keepdims=True))


def _quantised(vectors: np.ndarray) -> np.ndarray:
    return np.rint(vectors / np.linalg.norm(vectors, axis=1, keepdims=True) * NORM).astype(np.int16)
