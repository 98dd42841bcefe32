"""The merging side of exact counting: one partition at a time, sorted once; and the histogram that gives a threshold."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numba import njit

_INSERTED = 24  # runs of at most so many are sorted by insertion; a call of sort would cost more
_DENSE = 4_096  # counts below this are tallied in an array, larger ones (few) one by one


class CountHistogram:
    """How many keys have each count; exact, additive."""

    def __init__(self, keys_of_count: Mapping[int, int] | None = None):
        self._keys: Counter[int] = Counter(keys_of_count or {})

    @classmethod
    def of(cls, counts: np.ndarray) -> "CountHistogram":
        """Of an array of counts."""
        dense = cls.of_tally(np.bincount(counts[counts < _DENSE]))
        values, keys = np.unique(counts[counts >= _DENSE], return_counts=True)
        return dense + cls(dict(zip(values.tolist(), keys.tolist(), strict=True)))

    @classmethod
    def of_tally(cls, tally: np.ndarray) -> "CountHistogram":
        """Of an array whose entry i is how many keys have count i."""
        return cls({int(c): int(tally[c]) for c in np.flatnonzero(tally)})

    @classmethod
    def total(cls, parts: "Iterable[CountHistogram]") -> "CountHistogram":
        """The sum of many."""
        keys: Counter[int] = Counter()
        for part in parts:
            keys.update(part._keys)
        return cls(keys)

    def __add__(self, other: "CountHistogram") -> "CountHistogram":
        return CountHistogram(self._keys + other._keys)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CountHistogram) and self._keys == other._keys

    __hash__ = None  # type: ignore[assignment]

    @property
    def keys(self) -> int:
        """All keys."""
        return sum(self._keys.values())

    def threshold(self, k: int) -> int:
        """The k-th largest count; 1 where there are fewer than k keys."""
        left = k
        for count in sorted(self._keys, reverse=True):
            left -= self._keys[count]
            if left <= 0:
                return count
        return 1

    def at_least(self, count: int) -> int:
        """Keys with this count or a larger one."""
        return sum(keys for c, keys in self._keys.items() if c >= count)

    def to_json(self) -> list[list[int]]:
        """[count, keys], by count."""
        return [[count, self._keys[count]] for count in sorted(self._keys)]

    @classmethod
    def from_json(cls, entries: Sequence[Sequence[int]]) -> "CountHistogram":
        """The inverse of `to_json`."""
        return cls({entry[0]: entry[1] for entry in entries})


def merge_ngrams(hashes: np.ndarray, hot: np.ndarray) -> tuple[np.ndarray, np.ndarray, CountHistogram]:
    """Count the n-grams of one partition.

    Args:
        hashes: uint64[n], one entry an occurrence; sorted in place.
        hot: uint64[m, 2] of (hash, count).

    Returns:
        The hashes seen twice or more, sorted; their counts (int64); the histogram of all counts, those seen once included.
    """
    hashes.sort()
    starts = np.empty(len(hashes) + 1, np.int64)
    found = _run_starts(hashes, starts)
    hot_keys, hot_counts = _summed(hot)
    keys, counts = np.empty(found + len(hot_keys), np.uint64), np.empty(found + len(hot_keys), np.int64)
    tally = np.zeros(_DENSE + 1, np.int64)
    often = _count_runs(hashes, starts[: found + 1], hot_keys, hot_counts, keys, counts, tally)
    keys, counts = keys[:often], counts[:often]
    return keys, counts, CountHistogram.of_tally(tally[:_DENSE]) + CountHistogram.of(counts[counts >= _DENSE])


def _summed(entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorted keys of (key, count), and the sum of each."""
    keys, inverse = np.unique(entries[:, 0], return_inverse=True)
    counts = np.zeros(len(keys), np.int64)
    np.add.at(counts, inverse, entries[:, 1].astype(np.int64))
    return keys, counts


def merge_pairs(pairs: np.ndarray, *, limit: int) -> tuple[np.ndarray, np.ndarray, CountHistogram]:
    """Count, for each key of one partition, how many distinct others it was seen with.

    Args:
        pairs: uint64[n, 2] of (key, other), repeats allowed.
        limit: keys seen with at most this many are not listed.

    Returns:
        The keys above the limit, sorted; their distinct others (int64); the histogram of distinct others of all keys.
    """
    keys, others = _by_key(pairs)
    starts = np.empty(len(keys) + 1, np.int64)
    found = _run_starts(keys, starts)
    distinct = np.empty(found, np.int64)
    _distinct_in_runs(others, starts[: found + 1], distinct)
    over = distinct > limit
    return keys[starts[:found]][over], distinct[over], CountHistogram.of(distinct)


def _by_key(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys, sorted, and their others. Sorts numbers of the keys' top bits and the place, which takes half the time of an argsort."""
    keys = np.ascontiguousarray(pairs[:, 0])
    if not len(keys):
        return keys, keys.copy()
    same = np.uint64(64 - int(np.bitwise_or.reduce(keys ^ keys[0])).bit_length())  # leading bits that all keys share
    place = np.uint64((1 << len(keys).bit_length()) - 1)
    packed = keys << np.minimum(same, np.uint64(63)) & ~place | np.arange(len(keys), dtype=np.uint64)
    packed.sort()
    order = (packed & place).astype(np.int64)
    keys = keys[order]
    if (keys[1:] < keys[:-1]).any():  # two keys differ in lower bits alone
        order = np.argsort(pairs[:, 0])
        keys = pairs[order, 0]
    return keys, pairs[order, 1]


@njit(nogil=True, cache=True)
def _run_starts(x: np.ndarray, starts: np.ndarray) -> int:
    """Where runs of equal values of a sorted array begin, then its length; returns how many runs. No branch: it cannot be foreseen."""
    if len(x) == 0:
        starts[0] = 0
        return 0
    m = 0
    starts[0] = 0
    for i in range(1, len(x)):
        m += x[i] != x[i - 1]
        starts[m] = starts[m] if x[i] == x[i - 1] else i
    starts[m + 1] = len(x)
    return m + 1


@njit(nogil=True, cache=True)
def _count_runs(
    every: np.ndarray, starts: np.ndarray, hot_keys: np.ndarray, hot_counts: np.ndarray, keys: np.ndarray, counts: np.ndarray, tally: np.ndarray
) -> int:
    """Merge runs and sorted hot keys.

    Fills `keys` and `counts` of those seen twice or more, and returns how many they are; tallies all counts, those of _DENSE and more together.
    Unsigned places, for numba would ask each whether it counts from the end; and what is seen once is written too, then overwritten.
    """
    often, run, runs = np.uint64(0), 0, len(starts) - 1
    for hot in range(len(hot_keys) + 1):
        is_rest = hot == len(hot_keys)
        while run < runs and (is_rest or every[np.uint64(starts[run])] < hot_keys[hot]):
            count = starts[run + 1] - starts[run]
            keys[often], counts[often] = every[np.uint64(starts[run])], count
            tally[np.uint64(min(count, _DENSE))] += 1
            often += np.uint64(count > 1)
            run += 1
        if not is_rest:
            count = hot_counts[hot]
            if run < runs and every[np.uint64(starts[run])] == hot_keys[hot]:
                count += starts[run + 1] - starts[run]
                run += 1
            keys[often], counts[often] = hot_keys[hot], count
            tally[np.uint64(min(count, _DENSE))] += 1
            often += np.uint64(count > 1)
    return int(often)


@njit(nogil=True, cache=True)
def _distinct_in_runs(others: np.ndarray, starts: np.ndarray, distinct: np.ndarray) -> None:
    """Distinct values in each run [starts[r], starts[r + 1]); sorts the runs in place."""
    for r in range(len(distinct)):
        begin, end = np.uint64(starts[r]), np.uint64(starts[r + 1])
        if end - begin > np.uint64(_INSERTED):
            others[begin:end].sort()
        else:
            _insertion_sort(others, begin, end)
        n = 1
        for i in range(begin + np.uint64(1), end):
            n += others[i] != others[i - np.uint64(1)]
        distinct[r] = n


@njit(nogil=True)
def _insertion_sort(x: np.ndarray, begin: np.uint64, end: np.uint64) -> None:
    for i in range(begin + np.uint64(1), end):
        value, place = x[i], i
        while place > begin and x[place - np.uint64(1)] > value:
            x[place] = x[place - np.uint64(1)]
            place -= np.uint64(1)
        x[place] = value
