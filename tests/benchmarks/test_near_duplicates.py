"""What the search benchmark gives its programs, and what it says of their pairs."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import near_duplicates, search_one


@pytest.fixture
def vectors(tmp_path: Path) -> tuple[np.ndarray, np.ndarray]:
    tests, pool = search_one.generated(1_500, 500, 64, tmp_path)
    assert search_one.generated(1_500, 500, 64, tmp_path) == (tests, pool)
    return np.load(tests), np.load(pool)


def exact(tests: np.ndarray, pool: np.ndarray) -> list[tuple[int, int]]:
    products = pool.astype(np.int64) @ tests.astype(np.int64).T
    norms = (pool.astype(np.int64) ** 2).sum(axis=1)[:, None] * (tests.astype(np.int64) ** 2).sum(axis=1).astype(object)
    return [
        (i, j) for i, j in np.argwhere(products > 0).tolist() if int(products[i, j]) ** 2 * 40**2 > 39**2 * norms[i, j]
    ]


def test_a_matrix_product_and_whole_numbers_find_the_pairs_there_are(vectors: tuple[np.ndarray, np.ndarray]):
    tests, pool = vectors
    find, _ = search_one.gemm(search_one.unit(tests))
    proposed = np.stack(find(search_one.unit(pool)), axis=1)
    found = search_one.decided(proposed, pool, tests)
    assert sorted(map(tuple, found.tolist())) == exact(tests, pool)
    assert 20 < len(found) < 100  # about half of the copies
    with pytest.raises(ArithmeticError):
        search_one.decided(np.array([[0, 0]]), np.array([[40, 0, 0, 0, 0, 0]]), np.array([[39, 8, 3, 2, 1, 1]]))


def test_a_program_that_misses_or_invents_a_pair_is_told(tmp_path: Path):
    for way, pairs in (
        ("GEMM", [[0, 1], [2, 3]]),
        ("altalign", [[0, 1]]),
        ("faiss flat", [[0, 1], [2, 3], [4, 4], [5, 5]]),
    ):
        np.save(tmp_path / f"{way}-9-64.npy", np.array(pairs))
    assert near_duplicates.differ(tmp_path, 9, 64) == {"pairs": 2, "altalign": 1, "faiss flat": 2}
