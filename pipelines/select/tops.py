"""The k-th largest value of columns, exactly, in two passes of histograms: the high 16 bits, then the low ones.

A value is a number of 32 bits whose order is that of its values, so a histogram has 65,536 counts (512 KiB) whatever
the number of rows. Values that are the same as the k-th stay together: no sample depends on another one's key.
"""

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BUCKETS = 1 << 16
TYPES = (pa.float32(), pa.int32())

Ordered = npt.NDArray[np.uint32]
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


def high(numbers: Ordered) -> Counts:
    """How many numbers have each value of the high 16 bits."""
    return np.bincount((numbers >> np.uint32(16)).astype(np.int64), minlength=BUCKETS)


def low(numbers: Ordered, bucket: int) -> Counts:
    """The same of the low 16 bits, among the numbers with these high ones."""
    inside = numbers[(numbers >> np.uint32(16)) == bucket]
    return np.bincount((inside & np.uint32(0xFFFF)).astype(np.int64), minlength=BUCKETS)


def wanted(share: Fraction, rows: int) -> int:
    """How many of so many rows a share is, rounded up."""
    return -((-share.numerator * rows) // share.denominator)


def bucket_of(counts: Counts, k: int) -> tuple[int, int]:
    """The bucket with the k-th largest (from 1), and how many of the k are in it."""
    from_above = np.cumsum(counts[::-1])
    place = int(np.searchsorted(from_above, k))
    above = int(from_above[place - 1]) if place else 0
    return len(counts) - 1 - place, k - above
