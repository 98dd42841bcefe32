"""Distinct pairs by combination of what the text rules measure, those too that only thresholds drop: what `judge` would keep with others.

Every rule of `judge` but `pair_repeated` is a function of the identity of the image and of the caption (and of the
pool, which is the same for all rows), so a pair passes or fails as a whole: all rows of one key have the same
combination, and a pair that passed with other thresholds would be kept once, however many rows it has. Pairs that
passed are counted when they are grouped. Of the others that fail no more than a threshold, a unit spills 16 bytes each,
by key: each finds its like in one partition, which no image or text makes larger than others.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from altalign.audit_tables import PAIRS_JOINT
from altalign.pipelines.evidence.text_joint import JointCounts, combined_of_survivors
from altalign.reasons import DropReason

# Rules that a threshold can be moved for without the pool. A looser vocabulary is none: what n-grams outside it count
# is not known.
OF_THRESHOLDS = frozenset(
    {
        DropReason.TEXT_TOO_SHORT,
        DropReason.TEXT_TOO_LONG,
        DropReason.TEXT_ON_TOO_MANY_IMAGES,
        DropReason.IMAGE_HAS_TOO_MANY_TEXTS,
    },
)

# Key: the first 8 bytes. Two pairs in 2^64 share them by chance, and would have to share the combination too: with a
# thousand million pairs, one time in thirty a single pair is missing.
PAIR = np.dtype([("key", "<u8"), ("combination", "<i8")])


def only_of_thresholds(failed: "pa.DictionaryArray[Any, Any]") -> np.ndarray:
    """The numbers of the rows of which some rule holds, and none but those of thresholds; `failed` as `reasons_of` has found it."""
    lists: list[Any] = failed.dictionary.to_pylist()
    wanted = np.array([bool(reasons) and OF_THRESHOLDS.issuperset(reasons) for reasons in lists], np.bool_)
    return np.flatnonzero(wanted[failed.indices.to_numpy()])


def entries(keys: np.ndarray, combinations: np.ndarray) -> np.ndarray:
    """PAIR of rows by their keys (uint8[n, 16]) and combinations."""
    found = np.empty(len(keys), PAIR)
    found["key"], found["combination"] = np.ascontiguousarray(keys[:, :8]).view("<u8")[:, 0], combinations
    return found


def distinct(pairs: np.ndarray) -> np.ndarray:
    """Each of them once."""
    bits = max(4, (2 * len(pairs)).bit_length())
    first = np.empty(len(pairs), np.bool_)
    _mark_first(pairs["key"], pairs["combination"], np.full(1 << bits, -1, np.int64), np.uint64(64 - bits), first)
    return pairs[first]


def partitioned(pairs: np.ndarray, count: int) -> Iterator[tuple[int, np.ndarray]]:
    """The pairs of each of a power of two of partitions, at most 65,536."""
    of = (pairs["key"] >> np.uint64(48)).astype(np.uint32) * np.uint32(count) >> np.uint32(16)
    order = np.argsort(of.astype(np.uint16), kind="stable")  # 16 bits: a radix sort
    cuts = np.searchsorted(of[order], np.arange(count + 1)).tolist()
    for partition in range(count):
        if cuts[partition] < cuts[partition + 1]:
            yield partition, pairs[order[cuts[partition] : cuts[partition + 1]]]


def counted(words: np.ndarray, rarest: np.ndarray, others: np.ndarray) -> JointCounts:
    """Pairs of a partition that are kept, by their words and rarest n-grams, and those of others."""
    return JointCounts.of(combined_of_survivors(words, rarest)) + JointCounts.of(distinct(others)["combination"])


def to_arrow(counts: JointCounts) -> pa.Table:
    """Rows of `PAIRS_JOINT`."""
    columns = counts.columns()
    columns["pairs"] = columns.pop("rows")
    return pa.table([columns[name] for name in PAIRS_JOINT.schema.names], schema=PAIRS_JOINT.schema)


@njit(nogil=True, cache=True)
def _mark_first(
    keys: np.ndarray, combinations: np.ndarray, slots: np.ndarray, shift: np.uint64, first: np.ndarray
) -> None:
    """Which entries no earlier one is like; `slots` (-1: free) are twice as many."""
    last = np.uint64(len(slots) - 1)
    for i in range(len(keys)):
        slot = keys[i] * np.uint64(0x9E3779B97F4A7C15) >> shift
        while slots[slot] >= 0 and (keys[slots[slot]] != keys[i] or combinations[slots[slot]] != combinations[i]):
            slot = (slot + np.uint64(1)) & last
        first[i] = slots[slot] < 0
        if first[i]:
            slots[slot] = i
