"""Buckets of ALIGN's appendix A: sets of 3 of an image's 10 nearest clusters, 120 of them.

Two images share one exactly where their sets of 10 have 3 in common, so none is ever listed.
"""

import numpy as np

from altalign.dedup.dot_products import largest

_PAIRS_AT_A_TIME = 4_096


def nearest_clusters(vectors: np.ndarray, centroids: np.ndarray, k: int) -> np.ndarray:
    """Numbers of the k clusters nearest to each vector, int32[n, k], the nearest first; all clusters where there are fewer than k.

    Near is a large dot product, in whole numbers; of equally near clusters the one of the smaller number comes first.

    Args:
        vectors: int16[n, d].
        centroids: int16[clusters, d], of the same norm but for rounding.
        k: at least 1.

    Raises:
        ValueError: other shapes or types, no centroid, or a norm above NORM_AT_MOST of dot_products.
    """
    if not len(centroids):
        raise ValueError("there are no clusters")
    return largest(vectors, centroids, min(k, len(centroids)))[0]


def share_bucket(clusters: np.ndarray, other_clusters: np.ndarray, *, at_least: int) -> np.ndarray:
    """Whether the images of each pair share a bucket, bool[n]: at least so many of their nearest clusters, int32[n, k] each, are the same.

    With fewer clusters than make a bucket all images share the one that all of them make.

    Raises:
        ValueError: arrays of different shapes.
    """
    if clusters.shape != other_clusters.shape:
        raise ValueError(f"nearest clusters of shapes {clusters.shape} and {other_clusters.shape} are no pairs")
    shared = np.empty(len(clusters), np.bool_)
    for begin in range(0, len(clusters), _PAIRS_AT_A_TIME):
        some = slice(begin, begin + _PAIRS_AT_A_TIME)
        common = (clusters[some, :, None] == other_clusters[some, None, :]).sum(axis=(1, 2))
        shared[some] = common >= min(at_least, clusters.shape[1])
    return shared
