import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.dedup import clusters
from altalign.dedup.dot_products import largest
from tests.support.vectors import copies, dot, drawn, quantised

derandomized = settings(derandomize=True, deadline=None, max_examples=40)


def scaled(vector: list[int]) -> list[int]:
    norm = max(1.0, math.sqrt(dot(vector, vector)))
    return [round(value * clusters.SCALE / norm) for value in vector]


def train_by_loops(sample: list[list[int]], count: int, iterations: int) -> list[list[int]]:
    sample = [vector for vector in sample if any(vector)]
    centroids = [scaled(sample[i * len(sample) // count]) for i in range(count)]
    for _ in range(iterations):
        products = [[dot(vector, centroid) for centroid in centroids] for vector in sample]
        nearest = [max(range(count), key=lambda c, of_row=of_row: (of_row[c], -c)) for of_row in products]
        far = sorted(range(len(sample)), key=lambda i: (products[i][nearest[i]], i))
        for c in range(count):
            members = [vector for vector, number in zip(sample, nearest, strict=True) if number == c]
            mean = [sum(column) * 256 // len(members) for column in zip(*members, strict=True)] if members else [0]
            centroids[c] = scaled(mean) if any(mean) else scaled(sample[far.pop(0)])
    return sorted(map(list, set(map(tuple, centroids))))


@given(
    st.lists(st.lists(st.integers(-3, 3), min_size=3, max_size=3), min_size=130, max_size=200).filter(
        lambda rows: any(map(any, rows))
    ),
    st.integers(1, 4),
)
@derandomized
def test_centroids_are_those_of_plain_loops(sample: list[list[int]], count: int) -> None:
    possible = sum(any(vector) for vector in sample) // clusters.SAMPLES_PER_CLUSTER
    assert clusters.train(np.array(sample, np.int16), count, iterations=4).tolist() == train_by_loops(
        sample, max(1, min(count, possible)), 4
    )


def test_clusters_that_lie_apart_are_found() -> None:
    rng = np.random.default_rng(1)
    centres = quantised(np.eye(8, 16) + 0.01)
    sample = copies(rng, np.repeat(centres, 100, axis=0), 0.98, spread=0.005)[rng.permutation(800)]
    found = clusters.train(sample, 8)
    places, products = largest(centres, found, 1)
    assert sorted(places[:, 0].tolist()) == list(range(8))
    assert (products > 0.995 * clusters.SCALE**2).all()


def test_training_brings_centroids_nearer_to_the_sample() -> None:
    sample = drawn(np.random.default_rng(2), 6_400, 32)
    nearness = [
        largest(sample, clusters.train(sample, 100, iterations=iterations), 1)[1].mean() / clusters.SCALE**2
        for iterations in (0, 1, 10)
    ]
    assert nearness[0] < nearness[1] < nearness[2]
    centroids = clusters.train(sample, 100)
    assert centroids.shape == (100, 32)
    assert centroids.dtype == np.int16
    np.testing.assert_allclose(np.linalg.norm(centroids.astype(float), axis=1), clusters.SCALE, rtol=1e-3)


@pytest.mark.parametrize(
    ("samples", "wanted", "made"), [(6_400, 100, 100), (6_399, 100, 99), (63, 10, 1), (1, 4_096, 1), (300, 1, 1)]
)
def test_a_small_sample_makes_fewer_clusters(samples: int, wanted: int, made: int) -> None:
    assert len(clusters.train(drawn(np.random.default_rng(3), samples, 8), wanted, iterations=2)) == made


def test_equal_vectors_make_one_cluster_and_zeros_none() -> None:
    one = drawn(np.random.default_rng(4), 1, 8)
    assert clusters.train(np.repeat(one, 640, axis=0), 10).tolist() == one.tolist()
    with_zeros = np.concatenate([np.zeros((640, 8), np.int16), np.repeat(one, 64, axis=0)])
    assert clusters.train(with_zeros, 10).tolist() == one.tolist()
    with pytest.raises(ValueError, match="no vectors to make clusters of"):
        clusters.train(np.zeros((640, 8), np.int16), 10)
    with pytest.raises(ValueError, match="no vectors to make clusters of"):
        clusters.train(one[:0], 10)


def test_a_cluster_that_all_leave_is_filled_by_what_is_farthest() -> None:
    near, far = quantised(np.array([[1.0, 0.0]])), quantised(np.array([[0.0, 1.0]]))
    # all first centroids are alike
    sample = np.concatenate([np.repeat(near, 190, axis=0), far, np.repeat(near, 9, axis=0)])
    assert clusters.train(sample, 3).tolist() == [*far.tolist(), *near.tolist()]
