"""Joint counts of what the text rules measure: how many candidates have each combination. Exact, additive, bounded in size.

From them a report can say what other thresholds would keep, without the pool.
"""

import numpy as np
import pyarrow as pa
from numba import njit

from dedup.hash_tables import log2_counts
from pipelines.tables import Measured

_EXACT_BELOW = 1_024  # larger numbers go by their log2 in 8 bits

# Names and bits; their comments, and those of JOINT, are lines of docs/reference/files.md (`make docs`).
_FIELDS = (
    ("words", 8),  # Unigrams; 255 stands for that many or more.
    ("rarest_log2", 8),  # Eight times log2, rounded, of the smallest count of the caption's n-grams; 0: one is rare; 255: no table, or no n-gram.
    ("images_per_text", 11),  # 0: within the limit; below 1,024 exact; above that 1,024 + eight times log2.
    ("texts_per_image", 11),  # The same.
    ("has_identity", 1),  # 1 where the image has an identity.
)
JOINT = pa.schema(
    [
        ("source", pa.string()),  # `[[input]] name`, or its kind.
        *((name, pa.int32()) for name, _ in _FIELDS),
        ("rows", pa.int64()),  # Candidates with this combination.
    ]
)


class JointCounts:
    """Candidates by combination of what was measured."""

    def __init__(self, combinations: np.ndarray | None = None, rows: np.ndarray | None = None):
        self._combinations = np.zeros(0, np.int64) if combinations is None else combinations
        self._rows = np.zeros(0, np.int64) if rows is None else rows

    def add(self, candidates: pa.RecordBatch, measured: Measured) -> None:
        """Count candidates."""
        columns = (
            np.minimum(measured.words.to_numpy(), 255),
            measured.rarest,
            _bounded(measured.images_per_text),
            _bounded(measured.texts_per_image),
            candidates["image_identity"].is_valid().to_numpy(zero_copy_only=False),
        )
        packed = np.zeros(candidates.num_rows, np.int64)
        for (_, bits), column in zip(_FIELDS, columns, strict=True):
            packed = packed << bits | column
        total = self + JointCounts(*_counted(packed))
        self._combinations, self._rows = total._combinations, total._rows

    def __add__(self, other: "JointCounts") -> "JointCounts":
        combinations, inverse = np.unique(np.concatenate([self._combinations, other._combinations]), return_inverse=True)
        rows = np.zeros(len(combinations), np.int64)
        np.add.at(rows, inverse, np.concatenate([self._rows, other._rows]))
        return JointCounts(combinations, rows)

    def to_bytes(self) -> bytes:
        """For a file of a unit."""
        return np.stack([self._combinations, self._rows]).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "JointCounts":
        """The inverse of `to_bytes`."""
        combinations, rows = np.frombuffer(data, np.int64).reshape(2, -1)
        return cls(combinations, rows)

    def to_arrow(self, source: str) -> pa.Table:
        """Rows of `JOINT`."""
        columns, packed = {}, self._combinations
        for name, bits in reversed(_FIELDS):
            columns[name] = pa.array((packed & ((1 << bits) - 1)).astype(np.int32))
            packed = packed >> bits
        columns |= {"source": pa.repeat(pa.scalar(source), len(self._rows)), "rows": pa.array(self._rows)}
        return pa.table([columns[name] for name in JOINT.names], schema=JOINT)


def _bounded(counts: pa.Int64Array) -> np.ndarray:
    bounded = counts.fill_null(0).to_numpy()
    if len(large := np.flatnonzero(bounded >= _EXACT_BELOW)):
        bounded = bounded.copy()
        bounded[large] = _EXACT_BELOW + log2_counts(bounded[large]).astype(np.int64)
    return bounded


def _counted(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values, sorted, and how often each occurs: few differ, and sorting them all would take ten times as long."""
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
def _count(packed: np.ndarray, values: np.ndarray, counts: np.ndarray, shift: np.uint64) -> bool:
    """Count in a table of slots, which is to be empty; False where more than three quarters of them would be taken."""
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
