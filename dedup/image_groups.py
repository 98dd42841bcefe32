"""Near-duplicates within the pool: which images are compared, and which image of a group stays.

An image is compared with those of its own cell, the nearest of many clusters, and as a visitor with those of the second
nearest. These are not all pairs: a pair is missed if its images lie in cells further apart, some in ten thousand at a
cosine of 0.975.
"""

from collections.abc import Iterator

import numpy as np
from numba import njit

from altalign.dedup import clusters
from altalign.dedup.clusters import nearest_clusters
from altalign.dedup.near_duplicates import Pairs, TestSide, find_pairs

IMAGES_PER_CELL = 15_000
CELL_AT_MOST = 60_000  # images and visitors that are joined at once; a larger cell is split

_CLUSTERS_AT_ONCE = 4_096
# Parts of a cell for every `at_most` vectors in it; with its visitors, a part has half of `at_most` on average.
_PARTS = 4
_HARDLY_SPLIT = 0.9  # share of a cell; if a part has more, splitting does not help
_PAIRS_AT_A_TIME = 4_000_000  # some 400 MB if all are near-duplicates


def train_cells(sample: np.ndarray, cells: int) -> np.ndarray:
    """Centroids of cells, int16[cells, d]; there may be fewer (see `clusters.train`). Above 4,096 it takes two levels.

    The sample, int16[n, d], is sorted by content.
    """
    if cells <= _CLUSTERS_AT_ONCE:
        return clusters.train(sample, cells)
    coarse = clusters.train(sample, int(cells**0.5))
    sample = sample[sample.any(axis=1)]
    nearest = nearest_clusters(sample, coarse, 1)[:, 0]
    parts = [sample[nearest == number] for number in range(len(coarse))]
    return np.concatenate([clusters.train(part, round(cells * len(part) / len(sample))) for part in parts if len(part)])


def join(vectors: np.ndarray, visitors: np.ndarray, *, above: float, at_most: int = CELL_AT_MOST) -> Pairs:
    """Pairs that connect the groups of a cell, among its own vectors and between these and its visitors.

    They are fewer than all pairs above the threshold, but connect what these connect. A cell of more than `at_most`
    (alike images by the million) is split, and its parts are joined like cells, so pairs between them may be missed. A
    cell that cannot be split is joined whole, in a time that grows with its square.

    Vectors are int16[n, d], visitors int16[m, d], numbered on from n. Of each pair, `rows` is the smaller number.
    """
    both = np.concatenate([vectors, visitors])
    distinct, firsts = originals(both)
    copies = np.flatnonzero((firsts != np.arange(len(both))) & both.any(axis=1) & (above < 1))
    parents, joined = np.arange(len(both)), list[Pairs]()

    def join_new(left: np.ndarray, right: np.ndarray, cosines: np.ndarray) -> None:
        is_new = np.empty(len(left), np.bool_)
        _union(parents, left, right, is_new)
        joined.append(Pairs(left[is_new], right[is_new], cosines[is_new]))

    join_new(firsts[copies], copies, np.ones(len(copies)))
    for pairs in _compared(both[distinct], int((distinct < len(vectors)).sum()), above, at_most):
        join_new(distinct[pairs.rows], distinct[pairs.tests], pairs.cosines)
    return Pairs(*map(np.concatenate, zip(*joined, strict=True)))


def originals(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each set of equal rows (int64[m], rising), and for every row the first equal one (int64[n])."""
    rows = np.ascontiguousarray(rows)
    as_bytes = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).reshape(-1)
    _, first, inverse = np.unique(as_bytes, return_index=True, return_inverse=True)
    return np.sort(first), first[inverse]


def groups(left: np.ndarray, right: np.ndarray, count: int) -> np.ndarray:
    """For each of `count` numbers, the smallest one that pairs (int64[m] each) connect it with, int64[count]."""
    parents, is_new = np.arange(count), np.empty(len(left), np.bool_)
    _union(parents, left, right, is_new)
    _flatten(parents)
    return parents


def replaced(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The images that go, in order, by the pairs of all cells, and for each what stays: the smallest of its group.

    Images are identities of any type that sorts.
    """
    identities, left, right = _numbered(left, right)
    staying = groups(left, right, len(identities))
    goes = staying != np.arange(len(identities))
    return identities[goes], identities[staying[goes]]


def cosines_with_staying(
    goes: np.ndarray, stays: np.ndarray, left: np.ndarray, right: np.ndarray, cosines: np.ndarray
) -> np.ndarray:
    """The cosine of each image that goes with the one that stays, from the pairs given to `replaced`, float64[n].

    It is NaN if only other images connect the two, for then no pair has it. Images with a cosine of 1 count as one.
    """
    identities, left, right = _numbered(left, right)
    count, same = len(identities), cosines == 1
    original = groups(left[same], right[same], count)
    left, right = original[left], original[right]
    pairs = np.minimum(left, right) * count + np.maximum(left, right)
    mine, first = original[np.searchsorted(identities, goes)], _places(identities, stays)
    identity = first * count + mine  # what stays is the smallest
    order = np.argsort(pairs, kind="stable")
    pairs, cosines = pairs[order], cosines[order]
    place = np.minimum(_places(pairs, identity), len(pairs) - 1)
    direct = np.where(pairs[place] == identity, cosines[place], np.nan)
    return np.where(first == mine, 1.0, direct)


def _numbered(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The identities that occur in pairs, sorted, and the pairs as places among them."""
    both = np.sort(np.concatenate([left, right]))
    is_first = np.r_[np.ones(min(1, len(both)), np.bool_), both[1:] != both[:-1]]
    identities = both[is_first]
    return identities, _places(identities, left), _places(identities, right)


def _places(identities: np.ndarray, sought: np.ndarray) -> np.ndarray:
    order = np.argsort(sought)  # searching in order is ten times quicker
    places = np.empty(len(sought), np.int64)
    places[order] = np.searchsorted(identities, sought[order])
    return places


# Cells ----------------------------------------------------------------------------------------------------------------


def _compared(vectors: np.ndarray, own: int, above: float, at_most: int) -> Iterator[Pairs]:
    """Pairs between a cell's first `own` vectors and all its vectors; a cell that is too large is split."""
    parts = _parts(vectors, -(-_PARTS * len(vectors) // at_most)) if len(vectors) > at_most else []
    if not parts or max(len(visited) + len(visiting) for visited, visiting in parts) > _HARDLY_SPLIT * len(vectors):
        side, step = TestSide.build(vectors[:own], above=above), max(1, _PAIRS_AT_A_TIME // max(1, own))
        for begin in range(0, len(vectors), step):
            rows, tests, cosines = find_pairs(vectors[begin : begin + step], side.first(begin + step), above=above)
            is_once = tests < rows + begin
            yield Pairs(tests[is_once], rows[is_once] + begin, cosines[is_once])
        return
    for numbers_of_own, numbers_of_visitors in parts:
        numbers = np.concatenate([numbers_of_own, numbers_of_visitors])
        for pairs in _compared(vectors[numbers], len(numbers_of_own), above, at_most):
            left, right = numbers[pairs.rows], numbers[pairs.tests]
            yield Pairs(np.minimum(left, right), np.maximum(left, right), pairs.cosines)


def _parts(vectors: np.ndarray, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Numbers of the vectors and of the visitors of each part of a cell."""
    nearest = nearest_clusters(vectors, clusters.train(vectors, count), 2)
    if nearest.shape[1] < 2:
        return []
    return [
        (np.flatnonzero(nearest[:, 0] == part), np.flatnonzero(nearest[:, 1] == part))
        for part in range(nearest.max() + 1)
    ]


# Groups ---------------------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _root(parents: np.ndarray, i: int) -> int:
    while parents[i] != i:
        parents[i] = parents[parents[i]]
        i = parents[i]
    return i


@njit(nogil=True, cache=True)
def _union(parents: np.ndarray, left: np.ndarray, right: np.ndarray, is_new: np.ndarray) -> None:
    # the smallest number of a group is its root
    for pair in range(len(left)):
        a, b = _root(parents, left[pair]), _root(parents, right[pair])
        is_new[pair] = a != b
        parents[max(a, b)] = min(a, b)


@njit(nogil=True, cache=True)
def _flatten(parents: np.ndarray) -> None:
    for i in range(len(parents)):
        parents[i] = parents[parents[i]]  # a parent is smaller, and so at its root already
