"""Buckets of ALIGN's appendix A: the 120 sets of 3 among an image's 10 nearest clusters.

Two images share a bucket if and only if their nearest clusters have 3 in common, so buckets are never listed.
"""

import numpy as np

from altalign.dedup.dot_products import largest

NEAREST = 10  # clusters of an image that count (ALIGN, appendix A)
IN_A_BUCKET = 3  # of these, clusters that make a bucket (the same)
_PAIRS_AT_A_TIME = 4_096


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
    if clusters.shape != other_clusters.shape:
        raise ValueError(f"nearest clusters of shapes {clusters.shape} and {other_clusters.shape} are no pairs")
    shared = np.empty(len(clusters), np.bool_)
    for begin in range(0, len(clusters), _PAIRS_AT_A_TIME):
        some = slice(begin, begin + _PAIRS_AT_A_TIME)
        common = (clusters[some, :, None] == other_clusters[some, None, :]).sum(axis=(1, 2))
        shared[some] = common >= min(at_least, clusters.shape[1])
    return shared
