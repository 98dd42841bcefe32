"""Spherical k-means in integers: the same sample gives the same centroids, to the bit, on every machine.

Dot products are exact, and sums of int16 do not depend on their order. The few operations in floats are correctly
rounded, one after another.

Buckets are those of ALIGN's appendix A: the 120 sets of 3 among an image's 10 nearest clusters. Two images share a
bucket if and only if their nearest clusters have 3 in common, so buckets are never listed.
"""

import numpy as np
from numba import njit

from altalign.dedup.dot_products import largest, squared_norms

SCALE = 32_000  # norm of a centroid
ITERATIONS = 10
SAMPLES_PER_CLUSTER = 64
NEAREST = 10  # clusters of an image that count (ALIGN, appendix A)
IN_A_BUCKET = 3  # of these, clusters that make a bucket (the same)

_PAIRS_AT_A_TIME = 4_096
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


def nearest_clusters(vectors: np.ndarray, centroids: np.ndarray, k: int) -> np.ndarray:
    """Numbers of the k clusters (or all, if they are fewer) nearest to each vector, int32[n, k], the nearest first.

    Nearness is the dot product of vectors (int16[n, d]) and centroids of one norm (int16[clusters, d]), in integers; of
    equally near clusters, the one with the smaller number comes first.
    """
    if not len(centroids):
        raise ValueError("there are no clusters")
    return largest(vectors, centroids, min(k, len(centroids)))[0]


def share_bucket(clusters: np.ndarray, other_clusters: np.ndarray, *, at_least: int) -> np.ndarray:
    """Whether the images of each pair share a bucket: `at_least` of their nearest clusters (int32[n, k]) are the same.

    If there are fewer clusters than make a bucket, all clusters make the one bucket that all images share.
    """
    shared = np.empty(len(clusters), np.bool_)
    for begin in range(0, len(clusters), _PAIRS_AT_A_TIME):
        some = slice(begin, begin + _PAIRS_AT_A_TIME)
        common = (clusters[some, :, None] == other_clusters[some, None, :]).sum(axis=(1, 2))
        shared[some] = common >= min(at_least, clusters.shape[1])
    return shared
