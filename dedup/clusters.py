"""Spherical k-means in integers: the same sample gives the same centroids, to the bit, on every machine.

Dot products are exact, and sums of int16 do not depend on their order. The few operations in floats are correctly
rounded, one after another.
"""

import numpy as np
from numba import njit

from altalign.dedup.dot_products import largest, squared_norms

SCALE = 32_000  # norm of a centroid
ITERATIONS = 10
SAMPLES_PER_CLUSTER = 64

_FRACTION_BITS = 8  # fraction bits of a mean; its square still fits in 63 bits


def train(sample: np.ndarray, clusters: int, *, iterations: int = ITERATIONS) -> np.ndarray:
    """Centroids of a sample of vectors, int16[clusters, d] of norm SCALE up to rounding.

    There are fewer than `clusters` if the sample has fewer than SAMPLES_PER_CLUSTER vectors for each, or too few
    distinct ones. The result depends on the order of the sample, int16[n, d] of about one norm: sort it by content.
    Vectors of zeros have no direction and are left out; ValueError where there are no others.
    """
    sample = sample[squared_norms(sample) > 0]
    if not len(sample):
        raise ValueError("no vectors to make clusters of")
    count = max(1, min(clusters, len(sample) // SAMPLES_PER_CLUSTER))
    centroids, _ = _scaled(sample[np.arange(count) * len(sample) // count].astype(np.int64))
    for _ in range(iterations):
        places, products = largest(sample, centroids, 1)
        sums, members = np.zeros(centroids.shape, np.int64), np.bincount(places[:, 0], minlength=count)
        _add_up(sample, places[:, 0], sums)
        centroids, has_mean = _scaled((sums << _FRACTION_BITS) // np.maximum(members, 1)[:, None])
        empty = np.flatnonzero(~has_mean)
        farthest = np.argsort(products[:, 0], kind="stable")[: len(empty)]
        centroids[empty], _ = _scaled(sample[farthest].astype(np.int64))
    return np.unique(centroids, axis=0)


def _scaled(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (int64[n, d]) scaled to the norm SCALE (int16[n, d]), and which are not zeros (bool[n]); zeros stay."""
    norms = np.sqrt((vectors * vectors).sum(axis=1).astype(np.float64))
    return np.rint(vectors * SCALE / np.maximum(norms, 1.0)[:, None]).astype(np.int16), norms > 0


@njit(nogil=True, cache=True)
def _add_up(sample: np.ndarray, places: np.ndarray, sums: np.ndarray) -> None:
    for i in range(len(sample)):
        for j in range(sample.shape[1]):
            sums[places[i], j] += np.int64(sample[i, j])
