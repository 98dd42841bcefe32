"""Vectors as embedders make them, and what is true of them by plain loops and exact fractions."""

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np

NORM = 32_000
_NUMPYS = np._core._multiarray_umath
DISPATCHED = " ".join(name for name in _NUMPYS.__cpu_dispatch__ if _NUMPYS.__cpu_features__.get(name))


def printed(code: str, **environment: str) -> str:
    """What code prints in a process of its own, on another machine as far as the environment makes it one."""
    root = Path(__file__).parents[2]
    words = [sys.executable, "-W", "ignore", "-c", code]
    there = {**os.environ, **environment, "PYTHONPATH": str(root)}
    return subprocess.run(words, cwd=root, env=there, capture_output=True, text=True, check=True, timeout=300).stdout


def quantised(vectors: np.ndarray, norm: int = NORM) -> np.ndarray:
    """At one norm, int16."""
    return np.rint(vectors / np.linalg.norm(vectors, axis=1, keepdims=True) * norm).astype(np.int16)


def drawn(rng: np.random.Generator, count: int, dimensions: int, falls: float = 0.5) -> np.ndarray:
    """Random directions whose columns get smaller: evenly spread with `falls` 0, near one another with 1."""
    return quantised(rng.normal(size=(count, dimensions)) * np.arange(1, dimensions + 1) ** -falls)


def copies(rng: np.random.Generator, vectors: np.ndarray, cosine: float, spread: float = 0.01) -> np.ndarray:
    """One vector near each, at about this cosine: a little more, a little less."""
    cosines = np.clip(cosine + spread * rng.uniform(-1, 1, (len(vectors), 1)), 0, 1)
    away = rng.normal(size=vectors.shape)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    away -= (away * unit).sum(axis=1, keepdims=True) * unit
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    return quantised(cosines * unit + np.sqrt(1 - cosines**2) * away)


def dot(a: list[int], b: list[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def is_near(a: list[int], b: list[int], above: float) -> bool:
    """Cosine strictly above a decimal threshold of 0 or more, in whole numbers of any size."""
    product = dot(a, b)
    return product > 0 and Fraction(product**2) > Fraction(str(above)) ** 2 * dot(a, a) * dot(b, b)


def pairs_by_loops(block: np.ndarray, tests: np.ndarray, above: float) -> list[tuple[int, int]]:
    rows, columns = block.tolist(), tests.tolist()
    return [(i, j) for i in range(len(rows)) for j in range(len(columns)) if is_near(rows[i], columns[j], above)]


def pairs_by_matrix(block: np.ndarray, tests: np.ndarray, above: float) -> list[tuple[int, int]]:
    """The same of more vectors: whole numbers below 2**53 are exact in float64, and what is near the threshold is left
    to loops.
    """
    right, norms = tests.astype(np.float64).T, np.linalg.norm(tests.astype(np.float64), axis=1)
    found = []
    for i, row in enumerate(block.astype(np.float64)):
        product_of_norms = np.linalg.norm(row) * norms
        cosines = np.divide(row @ right, product_of_norms, out=np.full(len(tests), -1.0), where=product_of_norms > 0)
        near = np.flatnonzero(cosines > above - 1e-9).tolist()
        found += [
            (i, j) for j in near if cosines[j] > above + 1e-9 or is_near(block[i].tolist(), tests[j].tolist(), above)
        ]
    return found


def groups_by_search(pairs: list[tuple[int, int]], count: int) -> list[int]:
    """The smallest number that each is connected with."""
    neighbours: list[set[int]] = [set() for _ in range(count)]
    for a, b in pairs:
        neighbours[a].add(b)
        neighbours[b].add(a)
    smallest = [-1] * count
    for start in range(count):
        waiting = [start] if smallest[start] < 0 else []
        while waiting:
            i = waiting.pop()
            if smallest[i] < 0:
                smallest[i] = start
                waiting.extend(neighbours[i])
    return smallest
