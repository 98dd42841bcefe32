import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.dedup.dot_products import NORM_AT_MOST, largest, packed, padded, squared_norms
from tests.support.vectors import dot, drawn

derandomized = settings(derandomize=True, deadline=None, max_examples=60)


@st.composite
def two_sets(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Some vectors, some more, and how many of the latter are wanted; equal ones and equal products among them."""
    dimensions, at_most = draw(st.integers(1, 40)), draw(st.sampled_from([1, 3, 7_000]))
    entries = st.lists(st.integers(-at_most, at_most), min_size=dimensions, max_size=dimensions)
    some, others = draw(st.lists(entries, max_size=9)), draw(st.lists(entries, min_size=1, max_size=70))
    return (
        np.array(some, np.int16).reshape(-1, dimensions),
        np.array(others, np.int16),
        draw(st.integers(1, len(others))),
    )


def largest_by_loops(vectors: np.ndarray, others: np.ndarray, k: int) -> tuple[list[list[int]], list[list[int]]]:
    products = [[dot(vector, other) for other in others.tolist()] for vector in vectors.tolist()]
    places = [sorted(range(len(others)), key=lambda i, of_row=of_row: (-of_row[i], i))[:k] for of_row in products]
    return places, [[of_row[i] for i in row] for of_row, row in zip(products, places, strict=True)]


@given(two_sets())
@derandomized
def test_the_largest_are_those_of_sorting(sets: tuple[np.ndarray, np.ndarray, int]) -> None:
    places, products = largest(*sets)
    assert (places.tolist(), products.tolist()) == largest_by_loops(*sets)
    assert (places.dtype, products.dtype) == (np.int32, np.int32)


@pytest.mark.parametrize(
    ("count", "others", "dimensions", "k"), [(300, 1_000, 64, 10), (257, 65, 512, 2), (5, 31, 3, 31), (1, 1, 1, 1)]
)
def test_the_largest_of_vectors_as_embedders_make_them(count: int, others: int, dimensions: int, k: int) -> None:
    rng = np.random.default_rng(count)
    some, more = drawn(rng, count, dimensions), drawn(rng, others, dimensions)
    exact = some.astype(np.int64) @ more.astype(np.int64).T
    expected = np.argsort(-exact, axis=1, kind="stable")[:, :k]
    places, products = largest(some, more, k)
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(products, np.take_along_axis(exact, expected, axis=1))


def test_the_longest_vectors_fit_in_32_bits() -> None:
    # of norm 46,339.6 and 46,340.2
    longest = np.array([[32_767, 32_767, 0], [-32_767, -32_767, 0], [32_767, -32_768, 0]], np.int16)
    assert squared_norms(longest[:2]).tolist() == [2 * 32_767**2] * 2
    places, products = largest(longest[:2], longest[:2], 2)
    assert places.tolist() == [[0, 1], [1, 0]]
    assert products.tolist() == [[2 * 32_767**2, -2 * 32_767**2]] * 2
    with pytest.raises(ValueError, match=r"a norm of 46,340"):
        squared_norms(longest)
    assert NORM_AT_MOST**2 < 2**31


@pytest.mark.parametrize(
    ("vectors", "others", "k", "says"),
    [
        (np.zeros((2, 3), np.int32), np.zeros((2, 3), np.int16), 1, "must be int16 of two dimensions, not int32 of 2"),
        (np.zeros((2, 3), np.int16), np.zeros((2, 4), np.int16), 1, "have no 1 largest products"),
        (np.zeros(3, np.int16), np.zeros((2, 3), np.int16), 1, "have no 1 largest products"),
        (np.zeros((2, 3), np.int16), np.zeros((2, 3), np.int16), 3, "no 3 largest products"),
        (np.zeros((2, 3), np.int16), np.zeros((2, 3), np.int16), 0, "no 0 largest products"),
        (
            np.zeros((2, 3), np.int16),
            np.full((2, 3), 30_000, np.int16),
            1,
            "a norm of 51,962; at most 46,340",
        ),
    ],
)
def test_what_has_no_dot_products_of_32_bits_is_refused(
    vectors: np.ndarray, others: np.ndarray, k: int, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        largest(vectors, others, k)


def test_packed_vectors_lie_column_beside_column() -> None:
    vectors = np.arange(1, 19 * 3 + 1, dtype=np.int16).reshape(19, 3)
    strips = packed(vectors)
    assert strips.shape == (2, 2, 16, 2)
    for i in range(32):
        of_vector = strips[i // 16, :, i % 16].reshape(-1).tolist()
        assert of_vector == ([*vectors[i].tolist(), 0] if i < 19 else [0] * 4)
    assert padded(vectors).tolist() == [*([*row, 0] for row in vectors.tolist()), [0] * 4]
    assert packed(vectors[:0]).shape == (0, 2, 16, 2)
