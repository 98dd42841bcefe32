"""The view of embeddings: the two directions of the largest variance, and pairs of each source."""

import numpy as np
import pytest

from altalign.train.report import view


def test_places_are_along_the_largest_variances_as_a_plain_eigenproblem_has_them() -> None:
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(60, 5)) * [1, 9, 1, 4, 1]
    found = view.principal(embeddings)
    values, vectors = np.linalg.eigh(np.cov(embeddings.T, bias=True))
    for column, direction in enumerate(vectors[:, ::-1].T[:2]):
        turned = direction * np.sign(direction[np.abs(direction).argmax()])
        assert found[:, column] == pytest.approx((embeddings - embeddings.mean(0)) @ turned, abs=1e-9)
    assert found.var(axis=0) == pytest.approx(values[::-1][:2])
    assert view.principal(embeddings[:, :1]).shape == (60, 2)


def test_places_are_in_the_unit_square_and_keep_their_shape() -> None:
    found = view.scaled(np.array([[0.0, 5.0], [10.0, 7.0], [4.0, 6.0]]))
    assert found.min() == 0
    assert found.max() == 1
    assert np.ptp(found, axis=0) == pytest.approx([1, 0.2])
    assert view.scaled(np.ones((3, 2))) == pytest.approx(0.5)


def test_the_largest_sources_have_as_many_pairs_each() -> None:
    sizes = {f"s{number}": 1000 + number for number in range(10)} | {"none": 0, "few": 1}
    found = view.chosen(sizes)
    assert list(found) == [f"s{number}" for number in range(2, 10)]
    assert {len(numbers) for numbers in found.values()} == {view.PAIRS // 8}
    assert found["s2"][0] == 2001
    assert {name: list(numbers) for name, numbers in view.chosen({"a": 2, "b": 3}).items()} == {
        "a": [0, 1],
        "b": [2, 3, 4],
    }
