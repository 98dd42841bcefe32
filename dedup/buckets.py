"""Buckets of ALIGN's appendix A: the 120 sets of 3 among an image's 10 nearest clusters.

Two images share a bucket if and only if their nearest clusters have 3 in common, so buckets are never listed.
"""

import numpy as np

from altalign.dedup.dot_products import largest

NEAREST = 10  # clusters of an image that count (ALIGN, appendix A)
IN_A_BUCKET = 3  # of these, clusters that make a bucket (the same)
_PAIRS_AT_A_TIME = 4_096


def nearest_clusters(vectors: np.ndarray, centroids: np.ndarray, k: int) -> np.ndarray:
    """Numbers of the k clusters nearest to each vector, int32[n, k], the nearest first.

    If there are fewer than k clusters, all are returned. Nearness is the dot product, in integers; of equally near
    clusters, the one with the smaller number comes first.

    Args:
        vectors: int16[n, d].
        centroids: int16[clusters, d], of one norm up to rounding.
        k: at least 1.

    Raises:
        ValueError: wrong shapes or types, no centroid, or a norm above NORM_AT_MOST of dot_products.
    """
    if not len(centroids):
        raise ValueError("there are no clusters")
    return largest(vectors, centroids, min(k, len(centroids)))[0]


def share_bucket(clusters: np.ndarray, other_clusters: np.ndarray, *, at_least: int) -> np.ndarray:
    """Whether the images of each pair share a bucket, bool[n]: `at_least` of their nearest clusters are the same.

    If there are fewer clusters than make a bucket, all clusters make the one bucket that all images share.

    Args:
        clusters: nearest clusters of the first images, int32[n, k].
        other_clusters: those of the second images, int32[n, k].
        at_least: clusters that make a bucket.

    Raises:
        ValueError: the arrays differ in shape.
    """
    if clusters.shape != other_clusters.shape:
        raise ValueError(f"nearest clusters of shapes {clusters.shape} and {other_clusters.shape} are no pairs")
    shared = np.empty(len(clusters), np.bool_)
    for begin in range(0, len(clusters), _PAIRS_AT_A_TIME):
        some = slice(begin, begin + _PAIRS_AT_A_TIME)
        common = (clusters[some, :, None] == other_clusters[some, None, :]).sum(axis=(1, 2))
        shared[some] = common >= min(at_least, clusters.shape[1])
    return shared
