"""The k-th largest value of columns, exactly, in passes of histograms: the highest 16 bits first, the lowest last.

A value is a number of 32 or 64 bits whose order is that of its values, so a histogram has 65,536 counts (512 KiB)
whatever the number of rows. Values that are the same as the k-th stay together: no sample depends on another one's key.
Parts of a column are counted once, by their distinct values: scores are stored in steps, so these are few.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BUCKETS = 1 << 16

Ordered = npt.NDArray[np.unsignedinteger[Any]]
Distinct = Ordered
Counts = npt.NDArray[np.int64]  # int64[BUCKETS]


def is_number(kind: pa.DataType) -> bool:
    """Whether values of a type have an order here."""
    return pa.types.is_floating(kind) or (pa.types.is_integer(kind) and kind != pa.uint64())


def ordered(values: "pa.Array[Any]") -> Ordered:
    """Numbers in the order of some values without nulls: uint32[n], or uint64[n] of a type that needs 64 bits."""
    numbers = values.to_numpy(zero_copy_only=False)
    bits = 64 if values.type in (pa.float64(), pa.int64(), pa.uint32()) else 32
    unsigned, sign = np.dtype(f"u{bits // 8}").type, 1 << (bits - 1)
    if pa.types.is_floating(values.type):
        found = (numbers.astype(f"f{bits // 8}") + 0).view(unsigned)  # there is one zero
        return np.where(found >> unsigned(bits - 1), ~found, found | unsigned(sign))
    return numbers.astype(f"i{bits // 8}").view(unsigned) ^ unsigned(sign)


def distinct(numbers: Ordered) -> Distinct:
    """The distinct numbers of a part, and how often each occurs: [2, k], rising."""
    found, counts = np.unique(numbers, return_counts=True)
    return np.stack([found, counts.astype(found.dtype)])


def bound(parts: Callable[[], Iterable[Distinct]], share: Fraction) -> int | None:
    """The smallest number that belongs to this share of the largest of all parts; None where they have none.

    Parts are asked for once for each 16 bits, and one is held at a time.
    """
    bits = max((8 * part.dtype.itemsize for part in islice(parts(), 1)), default=0)
    high, rank = 0, 0  # the bits that are known, and which of the values that have them is wanted
    for shift in range(bits - 16, -1, -16):
        counts = np.zeros(BUCKETS, np.int64)
        for numbers, times in parts():
            of = numbers >> numbers.dtype.type(shift)
            is_in = of >> numbers.dtype.type(16) == high
            np.add.at(counts, (of & numbers.dtype.type(BUCKETS - 1))[is_in], times[is_in].astype(np.int64))
        if shift == bits - 16:
            rank = wanted(share, int(counts.sum()))
        if not rank:
            return None
        bucket, rank = bucket_of(counts, rank)
        high = high << 16 | bucket
    return high if bits else None


def wanted(share: Fraction, rows: int) -> int:
    """How many of so many rows a share is, rounded up."""
    return -((-share.numerator * rows) // share.denominator)


def bucket_of(counts: Counts, k: int) -> tuple[int, int]:
    """The bucket with the k-th largest (from 1), and how many of the k are in it."""
    from_above = np.cumsum(counts[::-1])
    place = int(np.searchsorted(from_above, k))
    above = int(from_above[place - 1]) if place else 0
    return len(counts) - 1 - place, k - above
