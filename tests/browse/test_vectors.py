"""The index of vectors beside a plain product with all of them."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from altalign.browse.vectors import BLOCK, Vectors

ROWS, DIMENSIONS = BLOCK + 5_000, 128


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Clusters around a strong common mean, as a CLIP has them; two coordinates carry most of the mean."""
    random = np.random.default_rng(1)
    mean = random.normal(size=DIMENSIONS) + np.eye(DIMENSIONS)[7] * 12 - np.eye(DIMENSIONS)[9] * 9
    spread = np.arange(1, DIMENSIONS + 1) ** -0.4
    centres = random.normal(size=(500, DIMENSIONS)) * spread
    found = centres[random.integers(0, 500, ROWS)] + random.normal(size=(ROWS, DIMENSIONS)) * spread
    return unit(unit(mean) + unit(found)).astype(np.float16)


@pytest.fixture(scope="module")
def index(images: np.ndarray) -> Iterator[Vectors]:
    with Vectors.build(np.array_split(images, [50_000, 50_001])) as made:
        yield made


def exact(vectors: np.ndarray, query: np.ndarray, k: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By one product with all vectors, which have length 1."""
    cosines = (vectors.astype(np.float32) @ unit(query).astype(np.float32))[rows]
    best = np.lexsort((rows, -cosines))[:k]
    return rows[best], cosines[best]


def queries(images: np.ndarray, kind: str) -> np.ndarray:
    """Of images: others of the same clusters; of texts: a fifth of an image beside a mean and noise of their own."""
    random = np.random.default_rng(2)
    some = images[random.integers(0, ROWS, 40)].astype(np.float32)
    noise = unit(random.normal(size=some.shape))
    return some + 0.4 * noise if kind == "image" else 0.2 * some + unit(random.normal(size=DIMENSIONS)) + 0.7 * noise


@pytest.mark.parametrize("kind", ["image", "text"])
@pytest.mark.parametrize("share", [1, 0.5, 0.01])
def test_nearly_all_of_the_ten_nearest_are_found(index: Vectors, images: np.ndarray, kind: str, share: float) -> None:
    rows = np.flatnonzero(np.random.default_rng(3).random(ROWS) < share)
    found, wide = 0, images.astype(np.float32)
    for query in queries(images, kind):
        nearest, cosines = index.search(query, 10, None if share == 1 else rows.astype(np.uint32))
        expected, _ = exact(wide, query, 10, rows)
        found += len(set(nearest.tolist()) & set(expected.tolist()))
        np.testing.assert_allclose(cosines, wide[nearest] @ unit(query), atol=1e-3)
        assert np.isin(nearest, rows).all()
    assert found >= 0.95 * 400


@pytest.mark.parametrize("dimensions", [1, 3, 64, 100, 192, 768, 1152])
@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_every_length_of_vectors(dimensions: int, kind: type) -> None:
    random = np.random.default_rng(dimensions)
    vectors, query = unit(random.normal(size=(900, dimensions))).astype(kind), random.normal(size=dimensions)
    with Vectors.build([vectors[:1], vectors[1:]]) as index:
        rows, cosines = index.search(query, 900)
    expected, of_expected = exact(vectors, query, 900, np.arange(900))
    assert sorted(rows.tolist()) == sorted(expected.tolist())
    np.testing.assert_allclose(cosines, of_expected, atol=1e-3)


def test_the_chunks_do_not_change_the_answer(images: np.ndarray) -> None:
    some = images[:30_000]
    chunks = ([some], [some[:0], some[:29_000], some[29_000:]])
    with Vectors.build(chunks[0]) as whole, Vectors.build(chunks[1], threads=1) as parts:
        assert parts.search(images[0], 10)[0].tolist() == whole.search(images[0], 10)[0].tolist()
        for query in queries(images, "text"):
            np.testing.assert_allclose(parts.search(query, 10)[1], whole.search(query, 10)[1], atol=3e-4)


def test_rows_in_any_order_and_none(index: Vectors, images: np.ndarray) -> None:
    query, rows = images[3], np.array([BLOCK + 2, 3, 0, 3], np.uint32)
    assert index.search(query, 9, rows)[0].tolist() == exact(images, query, 3, np.array([0, 3, BLOCK + 2]))[0].tolist()
    assert index.search(query, 1)[0].tolist() == [3]
    assert [len(each) for each in index.search(query, 9, rows[:0])] == [0, 0]
    with pytest.raises(ValueError, match=rf"row {ROWS} of an index of {ROWS} rows"):
        index.search(query, 9, np.array([ROWS], np.uint32))


def test_a_vector_without_direction_is_never_found() -> None:
    vectors = np.ones((30_000, 8), np.float32)
    vectors[1], vectors[2, 3], vectors[3, 4], vectors[4], vectors[5] = 0, np.nan, np.inf, 3e38, 1e-38
    with Vectors.build([vectors]) as index:
        rows, cosines = index.search(np.full(8, 1e38), 30_000)
        assert rows.tolist() == [0, *range(4, 30_000)]
        np.testing.assert_allclose(cosines, 1, atol=1e-3)
        for bad in (np.zeros(8), np.full(8, np.nan), np.full(8, np.inf)):
            with pytest.raises(ValueError, match="no direction"):
                index.search(bad, 1)
    with Vectors.build([vectors[1:4]]) as index:
        assert len(index.search(vectors[0], 3)[0]) == 0


def test_what_an_index_does_not_take() -> None:
    with Vectors(4) as index:
        for bad in (np.zeros((2, 3), np.float32), np.zeros(4, np.float32), np.zeros((2, 4))):
            with pytest.raises(ValueError, match=r"the index takes float16 or float32 \[n, 4\]"):
                index.add(bad)
        assert len(index.search(np.ones(4), 3)[0]) == len(index) == 0
    for chunks, why in (
        ([], "a chunk"),
        ([np.zeros((2, 4), np.float16), np.zeros((2, 5), np.float16)], "float16 .2, 5."),
    ):
        with pytest.raises(ValueError, match=why):
            Vectors.build(chunks)


def test_memory_is_a_seventh_and_the_file_has_no_name(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(BLOCK, 512)).astype(np.float32)
    with Vectors.build([vectors], tmp_path) as index:
        assert index.bytes_in_memory <= 0.15 * vectors.nbytes
        assert not list(tmp_path.iterdir())


def test_searches_beside_one_that_adds(images: np.ndarray) -> None:
    wrong = list[int]()
    with Vectors.build([images[:1_000]]) as index:

        def search() -> None:
            while len(index) < len(images):
                wrong.extend(row for row in index.search(images[5], 1)[0].tolist() if row != 5)

        threads = [threading.Thread(target=search) for _ in range(3)]
        for thread in threads:
            thread.start()
        for first in range(1_000, len(images), 9_000):
            index.add(images[first : first + 9_000])
        for thread in threads:
            thread.join()
        assert not wrong
        assert index.search(images[BLOCK + 1], 1)[0].tolist() == [BLOCK + 1]
