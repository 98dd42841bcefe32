"""Exact joint counts of what the text rules measure: how many candidates have each combination.

They add up over units and are bounded in size; `of_judge` writes their sum, `audit/text_joint.parquet`. From them a
report can say what other thresholds would keep, without the pool. `pairs_joint` counts distinct pairs in the same way.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from altalign.audit_tables import TEXT_FIELDS, TEXT_JOINT
from altalign.dedup.hash_tables import log2_counts
from altalign.pipelines.stages.text_measures import TextMeasures
from altalign.slider_stops import EXACT_BELOW, WORDS_AT_MOST

_AT_ONCE = 1 << 21  # combinations that are added up at a time

Numbers = npt.NDArray[np.int64]  # int64[n]
_NONE = np.zeros(0, np.int64)


class JointCounts:
    """How many candidates, or pairs, have each combination; the combinations are sorted."""

    def __init__(self, combinations: Numbers = _NONE, rows: Numbers = _NONE):
        self.combinations, self.rows = combinations, rows

    @classmethod
    def of(cls, combinations: Numbers) -> "JointCounts":
        """The counts of n rows with these combinations, which `combined` makes."""
        return cls(*_counted(combinations))

    def __len__(self) -> int:
        return len(self.rows)

    def __add__(self, other: "JointCounts") -> "JointCounts":
        return JointCounts.total([self, other])

    @classmethod
    def total(cls, parts: "Iterable[JointCounts]") -> "JointCounts":
        """The sum of many; a few million combinations are in memory at once."""
        found = list[JointCounts]()
        for part in parts:
            found.append(part)
            if len(found) > 1 and sum(map(len, found[1:])) > max(_AT_ONCE, len(found[0])):
                found = [_summed(found)]
        return _summed(found)

    def to_bytes(self) -> bytes:
        """The content of a unit's file: int64[2, n], combinations and rows."""
        return np.stack([self.combinations, self.rows]).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "JointCounts":
        """The inverse of `to_bytes`."""
        combinations, rows = np.frombuffer(data, np.int64).reshape(2, -1)
        return cls(combinations, rows)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The columns of `TEXT_FIELDS` (int32[n]) and `rows` (int64[n]), sorted by the fields in their order."""
        columns, packed = dict[str, npt.NDArray[Any]](rows=self.rows), self.combinations
        for name, bits in reversed(TEXT_FIELDS):
            columns[name] = (packed & ((1 << bits) - 1)).astype(np.int32)
            packed = packed >> bits
        return columns

    def to_arrow(self, source: str) -> pa.Table:
        """The rows of `TEXT_JOINT` for this source."""
        columns: dict[str, object] = {**self.columns(), "source": pa.repeat(pa.scalar(source), len(self))}
        return pa.table([columns[name] for name in TEXT_JOINT.schema.names], schema=TEXT_JOINT.schema)


def combined(candidates: pa.RecordBatch, measured: TextMeasures) -> Numbers:
    """The combination of each candidate: all that was measured of it in one number, whose bits `TEXT_FIELDS` name."""
    return _packed(
        measured.words.to_numpy(),
        measured.rarest,
        _bounded(measured.images_per_text),
        _bounded(measured.texts_per_image),
        candidates["image_identity"].is_valid().to_numpy(zero_copy_only=False),
    )


def combined_of_survivors(words: npt.NDArray[np.int32], rarest: npt.NDArray[np.uint8]) -> Numbers:
    """The combinations of n rows that passed every rule: text and image are within limits, and there is an identity."""
    within = np.zeros(len(words), np.int64)
    return _packed(words, rarest, within, within, within + 1)


def _packed(words: npt.NDArray[np.int32], *others: npt.NDArray[Any]) -> Numbers:
    packed = np.zeros(len(words), np.int64)
    for (_, bits), column in zip(TEXT_FIELDS, (np.minimum(words, WORDS_AT_MOST), *others), strict=True):
        packed = packed << bits | column
    return packed


def _summed(parts: Sequence[JointCounts]) -> JointCounts:
    combinations = np.concatenate([_NONE, *(part.combinations for part in parts)])
    order = np.argsort(combinations, kind="stable")
    combinations = combinations[order]
    first = np.flatnonzero(np.r_[True, combinations[1:] != combinations[:-1]][: len(order)])
    rows = np.concatenate([_NONE, *(part.rows for part in parts)])[order]
    return JointCounts(combinations[first], np.add.reduceat(rows, first) if len(first) else rows)


def _bounded(counts: pa.Int64Array) -> Numbers:
    bounded = counts.fill_null(0).to_numpy()
    if len(large := np.flatnonzero(bounded >= EXACT_BELOW)):
        bounded = bounded.copy()
        bounded[large] = EXACT_BELOW + log2_counts(bounded[large]).astype(np.int64)
    return bounded


def _counted(packed: Numbers) -> tuple[Numbers, Numbers]:
    """The distinct values, sorted, and how often each occurs. Few differ: sorting all takes ten times as long."""
    bits = 14
    while True:
        values, counts = np.empty(1 << bits, np.int64), np.zeros(1 << bits, np.int64)
        if _count(packed, values, counts, np.uint64(64 - bits)):
            break
        bits += 2
    at = np.flatnonzero(counts)
    at = at[np.argsort(values[at])]
    return values[at], counts[at]


@njit(nogil=True, cache=True)
def _count(packed: Numbers, values: Numbers, counts: Numbers, shift: np.uint64) -> bool:
    """Count in a table of slots, all empty; returns False where more than three quarters of them would be taken."""
    room, last = 3 * len(counts) // 4, np.uint64(len(counts) - 1)
    for value in packed:
        slot = np.uint64(value) * np.uint64(0x9E3779B97F4A7C15) >> shift
        while counts[slot] != 0 and values[slot] != value:
            slot = (slot + np.uint64(1)) & last
        if counts[slot] == 0:
            room -= 1
            if room < 0:
                return False
            values[slot] = value
        counts[slot] += 1
    return True
