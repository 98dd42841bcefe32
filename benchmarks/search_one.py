"""Pairs of a pool and a test side by one way of searching, in one thread. Prints one line of JSON.

    python -m benchmarks.search_one ours|flat|gemm TESTS.npy POOL.npy PAIRS.npy

Both are int16[n, d]; `us_per_image` is CPU time of the search alone, pool in blocks of 1,000. `flat` is faiss's exact
search by range, which needs faiss; `gemm` is one matrix product that proposes pairs, which whole numbers decide: they
are what the others' are compared with. These two need nothing of ours.

The vectors are a mixture that stands for what embedders make: more than half of them near a few of many centres,
columns that fall off, and in the pool copies of test images, just above the threshold and just below.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ABOVE = 0.975
BLOCK = 1_000  # of the pool, searched at a time
CENTRES, SPREAD, COPIES = 3_000, 0.25, 0.2
NORM = 32_000
AT_A_TIME = 20_000
TILE = 1_000  # of the test side
SLACK, UNSURE = 1e-5, 1e-12

Search = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=WAYS)
    for name in ("tests", "pool", "pairs"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    tests, pool = np.load(arguments.tests), np.load(arguments.pool)
    build, passes = WAYS[arguments.way], 1
    searched = [tests, pool]
    if arguments.way == "ours":
        passes = 10
        build(tests[:1])[0](pool[:1])  # kernels are compiled, or read, on first use
    else:
        searched = [unit(tests), unit(pool)]
    begin = time.process_time()
    search, index_bytes = build(searched[0])
    built = time.process_time()
    blocks: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(passes):
        blocks = [search(searched[1][first : first + BLOCK]) for first in range(0, len(pool), BLOCK)]
    us_per_image = (time.process_time() - built) / passes / len(pool) * 1e6
    pairs = np.concatenate([np.stack([rows + n * BLOCK, columns], axis=1) for n, (rows, columns) in enumerate(blocks)])
    if arguments.way == "gemm":
        pairs = decided(pairs, pool, tests)
    np.save(arguments.pairs, pairs)
    print(json.dumps({"build_s": built - begin, "index_bytes": index_bytes, "us_per_image": us_per_image}))
    return 0


def unit(vectors: np.ndarray) -> np.ndarray:
    """The vectors as float32, scaled to norm 1."""
    return (vectors / np.linalg.norm(vectors.astype(np.float32), axis=1, keepdims=True)).astype(np.float32)


def ours(tests: np.ndarray) -> tuple[Search, int]:
    """Ours, and the bytes of its index beside the vectors."""
    from altalign.dedup.near_duplicates import TestSide, find_pairs

    side = TestSide.build(tests, above=ABOVE)

    def search(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pairs = find_pairs(block, side, above=ABOVE)
        return pairs.rows, pairs.tests

    return search, sum(array.nbytes for array in side.arrays().values()) - side.vectors.nbytes


def flat(tests: np.ndarray) -> tuple[Search, int]:
    """faiss's, and the bytes of its index beside the vectors."""
    import faiss  # pyright: ignore[reportMissingImports] (in its own environment)

    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatIP(tests.shape[1])
    index.add(tests)

    def search(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        limits, _, columns = index.range_search(block, ABOVE)
        return np.repeat(np.arange(len(block)), np.diff(limits).astype(np.int64)), columns

    return search, 0


def gemm(tests: np.ndarray) -> tuple[Search, int]:
    """A product of 1,000 by 1,000 at a time, and what is above; it keeps nothing beside the vectors."""
    scores, is_near = np.empty((BLOCK, TILE), np.float32), np.empty((BLOCK, TILE), np.bool_)

    def search(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for first in range(0, len(tests), TILE):
            tile = tests[first : first + TILE]
            of_tile, near = scores[: len(block), : len(tile)], is_near[: len(block), : len(tile)]
            np.matmul(block, tile.T, out=of_tile)
            np.greater(of_tile, np.float32(ABOVE - SLACK), out=near)
            if near.any():
                row, column = np.nonzero(near)
                rows.append(row)
                columns.append(column + first)
        return np.concatenate(rows), np.concatenate(columns)

    return search, 0


def decided(pairs: np.ndarray, pool: np.ndarray, tests: np.ndarray) -> np.ndarray:
    """The pairs above the threshold, decided in integers.

    Raises:
        ArithmeticError: a cosine is too near the threshold to be told by float64 of whole numbers.
    """
    left, right = pool[pairs[:, 0]].astype(np.int64), tests[pairs[:, 1]].astype(np.int64)
    cosines = (left * right).sum(axis=1) / np.sqrt(
        (left * left).sum(axis=1).astype(float) * (right * right).sum(axis=1).astype(float)
    )
    if (np.abs(cosines - ABOVE) < UNSURE).any():
        raise ArithmeticError("a cosine is the threshold, as far as float64 tells")
    return pairs[cosines > ABOVE]


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


WAYS: dict[str, Callable[[np.ndarray], tuple[Search, int]]] = {"ours": ours, "flat": flat, "gemm": gemm}

if __name__ == "__main__":
    sys.exit(main())
