"""Counts distinct pairs by combination of what the text rules measure: what `judge` would keep at other thresholds.

They are the pairs that pass, and those that only thresholds drop. Every rule of `judge` but `pair_repeated` is a
function of the identity of the image and of the caption (and of the pool, which is the same for all rows), so all rows
of one key have the same combination: a pair that passed at other thresholds would be kept once, however many rows it
has. Pairs that pass are counted when they are grouped. For every other row that fails only thresholds, a unit spills 16
bytes by key: equal pairs meet in one partition, which no image or text makes larger than others.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from altalign.audit_tables import PAIRS_JOINT
from altalign.pipelines.evidence.text_joint import JointCounts, combined_of_survivors
from altalign.reasons import DropReason

# The rules whose thresholds can be moved without the pool. The vocabulary is not among them: the counts of n-grams
# outside it are not known.
OF_THRESHOLDS = frozenset(
    {
        DropReason.TEXT_TOO_SHORT,
        DropReason.TEXT_TOO_LONG,
        DropReason.TEXT_ON_TOO_MANY_IMAGES,
        DropReason.IMAGE_HAS_TOO_MANY_TEXTS,
    },
)

# `key` is the first 8 bytes of the key. Two pairs in 2^64 share them by chance, and would have to share the combination
# too: with a thousand million pairs, one time in thirty a single pair is missing.
PAIR = np.dtype([("key", "<u8"), ("combination", "<i8")])

Pairs = npt.NDArray[np.void]  # PAIR[n]


def only_of_thresholds(failed: "pa.DictionaryArray[Any, Any]") -> npt.NDArray[np.int64]:
    """The numbers of the rows that only rules of thresholds drop; `failed` comes from `reasons_of`."""
    lists: list[Any] = failed.dictionary.to_pylist()
    wanted = np.array([bool(reasons) and OF_THRESHOLDS.issuperset(reasons) for reasons in lists], np.bool_)
    return np.flatnonzero(wanted[failed.indices.to_numpy()])


def entries(keys: npt.NDArray[np.uint8], combinations: npt.NDArray[np.int64]) -> Pairs:
    """The pairs of n rows, from their keys (uint8[n, 16]) and combinations (int64[n])."""
    found = np.empty(len(keys), PAIR)
    found["key"], found["combination"] = np.ascontiguousarray(keys[:, :8]).view("<u8")[:, 0], combinations
    return found


def distinct(pairs: Pairs) -> Pairs:
    """Each of the pairs once, in the order of their first occurrence."""
    return pairs[is_first(pairs)]


def is_first(pairs: Pairs) -> npt.NDArray[np.bool_]:
    """Whether no earlier one equals it: bool[n]."""
    bits = max(4, (2 * len(pairs)).bit_length())
    first = np.empty(len(pairs), np.bool_)
    _mark_first(pairs["key"], pairs["combination"], np.full(1 << bits, -1, np.int64), np.uint64(64 - bits), first)
    return first


def partitioned(pairs: Pairs, count: int) -> Iterator[tuple[int, Pairs]]:
    """Yields the number and the pairs of each partition that has any; `count` is a power of two, at most 65,536."""
    of = (pairs["key"] >> np.uint64(48)).astype(np.uint32) * np.uint32(count) >> np.uint32(16)
    order = np.argsort(of.astype(np.uint16), kind="stable")  # 16 bits: a radix sort
    cuts = np.searchsorted(of[order], np.arange(count + 1)).tolist()
    for partition in range(count):
        if cuts[partition] < cuts[partition + 1]:
            yield partition, pairs[order[cuts[partition] : cuts[partition + 1]]]


def counted(words: npt.NDArray[np.int32], rarest: npt.NDArray[np.uint8], others: Pairs) -> JointCounts:
    """The counts of a partition: n kept pairs by their words and rarest n-grams, and the distinct others."""
    return JointCounts.of(combined_of_survivors(words, rarest)) + JointCounts.of(distinct(others)["combination"])


def to_arrow(counts: JointCounts) -> pa.Table:
    """The rows of `PAIRS_JOINT`."""
    columns = counts.columns()
    columns["pairs"] = columns.pop("rows")
    return pa.table([columns[name] for name in PAIRS_JOINT.schema.names], schema=PAIRS_JOINT.schema)


@njit(nogil=True, cache=True)
def _mark_first(
    keys: npt.NDArray[np.uint64],
    combinations: npt.NDArray[np.int64],
    slots: npt.NDArray[np.int64],
    shift: np.uint64,
    first: npt.NDArray[np.bool_],
) -> None:
    """Mark in `first` the entries that equal no earlier one; there are at least twice as many `slots` (-1: free)."""
    last = np.uint64(len(slots) - 1)
    for i in range(len(keys)):
        slot = keys[i] * np.uint64(0x9E3779B97F4A7C15) >> shift
        while slots[slot] >= 0 and (keys[slots[slot]] != keys[i] or combinations[slots[slot]] != combinations[i]):
            slot = (slot + np.uint64(1)) & last
        first[i] = slots[slot] < 0
        if first[i]:
            slots[slot] = i
