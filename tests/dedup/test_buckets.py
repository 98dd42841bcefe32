from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.dedup.clusters import nearest_clusters, share_bucket
from tests.support.vectors import copies, dot, drawn

derandomized = settings(derandomize=True, deadline=None, max_examples=200)

IN_BUCKET = 3


def buckets(clusters: list[int]) -> set[tuple[int, ...]]:
    """All buckets of an image, as ALIGN's appendix A makes them: for 10 clusters, 120."""
    return set(combinations(sorted(clusters), IN_BUCKET))


def int32(clusters: list[list[int]]) -> np.ndarray:
    return np.array(clusters, np.int32)


ten = st.lists(st.integers(0, 25), min_size=10, max_size=10, unique=True)


@given(st.lists(st.tuples(ten, ten), min_size=1, max_size=20))
@derandomized
def test_images_share_a_bucket_as_the_120_of_each_say(pairs: list[tuple[list[int], list[int]]]) -> None:
    assert all(len(buckets(clusters)) == 120 for pair in pairs for clusters in pair)
    shared = share_bucket(int32([a for a, _ in pairs]), int32([b for _, b in pairs]), at_least=IN_BUCKET)
    assert shared.tolist() == [bool(buckets(a) & buckets(b)) for a, b in pairs]


@given(
    st.integers(1, 5).flatmap(
        lambda k: st.tuples(*[st.lists(st.integers(0, 8), min_size=k, max_size=k, unique=True)] * 2)
    ),
    st.integers(1, 4),
)
@derandomized
def test_other_numbers_of_clusters_and_of_a_bucket(pair: tuple[list[int], list[int]], at_least: int) -> None:
    a, b = pair
    common = len(set(a) & set(b))
    assert share_bucket(int32([a]), int32([b]), at_least=at_least).tolist() == [common >= min(at_least, len(a))]


def test_pairs_of_any_number_each_decided_alone() -> None:
    rng = np.random.default_rng(5)
    a, b = (np.argsort(rng.random((10_000, 40)), axis=1)[:, :10].astype(np.int32) for _ in range(2))
    expected = [len(set(left) & set(right)) >= IN_BUCKET for left, right in zip(a.tolist(), b.tolist(), strict=True)]
    assert share_bucket(a, b, at_least=IN_BUCKET).tolist() == expected
    assert 1_000 < sum(expected) < 9_000
    assert share_bucket(a[:0], b[:0], at_least=IN_BUCKET).tolist() == []


def test_the_nearest_clusters_are_those_of_the_largest_dot_products_equal_ones_by_number() -> None:
    rng = np.random.default_rng(1)
    centroids = drawn(rng, 50, 24)
    centroids[[7, 31]] = centroids[20]  # equally near to everything
    vectors = copies(rng, centroids, 0.9)
    expected = [
        sorted(range(50), key=lambda c, vector=vector: (-dot(vector, centroids[c].tolist()), c))[:10]
        for vector in vectors.tolist()
    ]
    nearest = nearest_clusters(vectors, centroids, 10)
    assert nearest.tolist() == expected
    assert nearest[20, :3].tolist() == [7, 20, 31]
    assert nearest.dtype == np.int32


def test_where_there_are_fewer_clusters_all_are_the_nearest_and_all_images_share_a_bucket() -> None:
    rng = np.random.default_rng(2)
    vectors = drawn(rng, 6, 8)
    for count in (1, 2, 5):
        nearest = nearest_clusters(vectors, drawn(rng, count, 8), 10)
        assert [sorted(clusters) for clusters in nearest.tolist()] == [list(range(count))] * 6
        assert share_bucket(nearest, nearest[::-1], at_least=IN_BUCKET).all()
    with pytest.raises(ValueError, match="there are no clusters"):
        nearest_clusters(vectors, vectors[:0], 10)


def test_near_vectors_share_a_bucket_far_ones_do_not() -> None:
    rng = np.random.default_rng(3)
    vectors, centroids = drawn(rng, 400, 64, falls=0.2), drawn(rng, 500, 64, falls=0.2)
    of_vectors, of_copies = (
        nearest_clusters(vectors, centroids, 10),
        nearest_clusters(copies(rng, vectors, 0.985), centroids, 10),
    )
    assert share_bucket(of_vectors, of_copies, at_least=IN_BUCKET).all()
    assert share_bucket(of_vectors, np.roll(of_vectors, 1, axis=0), at_least=IN_BUCKET).mean() < 0.05
