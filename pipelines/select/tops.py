"""The k-th largest value of columns, exactly, in two passes of histograms: the high 16 bits, then the low ones.

A value is a number of 32 bits whose order is that of its values, so a histogram has 65,536 counts (512 KiB) whatever
the number of rows. Values that are the same as the k-th stay together: no sample depends on another one's key. Parts of
a column are counted once, by their distinct values: scores are stored in steps, so these are few.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BUCKETS = 1 << 16
TYPES = (pa.float32(), pa.int32())

Ordered = npt.NDArray[np.uint32]
Distinct = npt.NDArray[np.uint32]
Counts = npt.NDArray[np.int64]  # int64[BUCKETS]


def ordered(values: "pa.Array[Any]") -> Ordered:
    """Numbers in the order of some values without nulls: uint32[n]."""
    numbers = values.to_numpy(zero_copy_only=False)
    if pa.types.is_floating(values.type):
        bits = (numbers.astype(np.float32) + np.float32(0)).view(np.uint32)  # there is one zero
        return np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(1 << 31))
    return numbers.astype(np.int32).view(np.uint32) ^ np.uint32(1 << 31)


def value_of(number: int, kind: pa.DataType) -> float | int:
    """The inverse for one number."""
    if pa.types.is_floating(kind):
        bits = number ^ (1 << 31) if number >> 31 else ~number & 0xFFFFFFFF
        return float(np.array(bits, np.uint32).view(np.float32))
    return int(np.array(number ^ (1 << 31), np.uint32).view(np.int32))


def distinct(numbers: Ordered) -> Distinct:
    """The distinct numbers of a part, and how often each occurs: uint32[2, k], rising."""
    return np.array(np.unique(numbers, return_counts=True)).astype(np.uint32)


def bound(parts: Callable[[], Iterable[Distinct]], share: Fraction) -> int | None:
    """The smallest number that belongs to this share of the largest of all parts; None where they have none.

    Parts are asked for twice, and one is held at a time.
    """
    high = np.zeros(BUCKETS, np.int64)
    for numbers, counts in parts():
        np.add.at(high, numbers >> np.uint32(16), counts.astype(np.int64))
    if not (rows := int(high.sum())):
        return None
    bucket, rank = bucket_of(high, wanted(share, rows))
    low = np.zeros(BUCKETS, np.int64)
    for numbers, counts in parts():
        begin, end = np.searchsorted(numbers, np.array([bucket << 16, (bucket + 1) << 16], np.int64))
        low[numbers[begin:end] & np.uint32(0xFFFF)] += counts[begin:end]
    return bucket << 16 | bucket_of(low, rank)[0]


def wanted(share: Fraction, rows: int) -> int:
    """How many of so many rows a share is, rounded up."""
    return -((-share.numerator * rows) // share.denominator)


def bucket_of(counts: Counts, k: int) -> tuple[int, int]:
    """The bucket with the k-th largest (from 1), and how many of the k are in it."""
    from_above = np.cumsum(counts[::-1])
    place = int(np.searchsorted(from_above, k))
    above = int(from_above[place - 1]) if place else 0
    return len(counts) - 1 - place, k - above
