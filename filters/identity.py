"""Identities in columns: key and image_id of every row (for one: `altalign.data.key`), and a 64-bit image hash."""

from binascii import hexlify
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from altalign.filters.bits import address_of, load8, load64
from altalign.filters.blake2b import hash_rows
from altalign.filters.words import HASH_VERSION, text_buffers

IMAGE_HASH_VERSION = 1  # version of `image_hash`
HASH_VERSIONS = {"words": HASH_VERSION, "images": IMAGE_HASH_VERSION}  # stored in the JSON of each table of hashes


def image_hash(identities: pa.StringArray) -> npt.NDArray[np.uint64]:
    """Hash of each image identity (UTF-8), uint64[n]; 0 for nulls, which the caller masks."""
    hashes = np.empty(len(identities), np.uint64)
    _hash_rows(*text_buffers(identities), hashes)
    if identities.null_count:
        hashes[identities.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


def image_ids(identities: pa.StringArray) -> npt.NDArray[np.uint8]:
    """image_id of every row, uint8[n, 16]; the bytes sort as their hex does. A null identity counts as empty."""
    return _digests(*_filled_buffers(identities), np.empty(0, np.uint8), np.empty(0, np.int64))


def ids(identities: pa.StringArray, captions: pa.StringArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """image_id and key of every row, each uint8[n, 16]; the bytes sort as their hex does.

    Args:
        identities: image identities of n rows; null counts as the empty one.
        captions: their cleaned captions, without nulls.

    Raises:
        ValueError: there are nulls among the captions, or not as many captions as identities.
    """
    if captions.null_count or len(captions) != len(identities):
        raise ValueError(
            f"keys of {len(identities)} identities, {len(captions)} captions, of these {captions.null_count} nulls: "
            "give one caption each"
        )
    buffers = _filled_buffers(identities)
    return _digests(*buffers, np.empty(0, np.uint8), np.empty(0, np.int64)), _digests(*buffers, *text_buffers(captions))


def rows_of(ids: npt.NDArray[np.uint8], rows: npt.NDArray[np.integer | np.bool_]) -> npt.NDArray[np.uint8]:
    """Some rows of uint8[n, 16]. Each is taken as one item, which needs an eighth of the time."""
    return ids.view("V16")[rows, 0].view(np.uint8).reshape(-1, 16)


KERNEL_FROM_ROWS = 30_000  # a third of a millisecond of Python's own; the first call of the kernel takes longer


def hexed(rows: npt.NDArray[np.uint8], is_known: pa.BooleanArray | None = None) -> pa.StringArray:
    """The rows of uint8[n, 16] as strings of 32 lower-case hex digits; null where `is_known` (bool[n]) is false."""
    data = np.ascontiguousarray(rows).reshape(-1)
    if len(rows) < KERNEL_FROM_ROWS:
        digits = np.frombuffer(hexlify(data.data), np.uint8)
    else:
        digits = np.empty(2 * len(data), np.uint8)
        _write_hex(data, digits)
    offsets = np.arange(0, len(digits) + 1, 32, dtype=np.int32)
    texts = pa.StringArray.from_buffers(len(rows), pa.py_buffer(offsets.data), pa.py_buffer(digits.data))
    if is_known is None or is_known.true_count == len(rows):
        return texts
    return pc.if_else(is_known, texts, pa.scalar(None, pa.string()))


def _filled_buffers(identities: pa.StringArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    return text_buffers(cast(pa.StringArray, identities.fill_null("")) if identities.null_count else identities)


def _digests(
    first: npt.NDArray[np.uint8],
    first_offsets: npt.NDArray[np.int64],
    second: npt.NDArray[np.uint8],
    second_offsets: npt.NDArray[np.int64],
) -> npt.NDArray[np.uint8]:
    second.setflags(write=False)  # one signature of the kernel
    digests = np.empty((len(first_offsets) - 1, 2), np.uint64)
    hash_rows(first, first_offsets, second, second_offsets, digests)
    return digests.view(np.uint8).reshape(-1, 16)


@njit(nogil=True, cache=True)
def _hash_rows(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], hashes: npt.NDArray[np.uint64]) -> None:
    """Fill `hashes`, 8 bytes of text at a step; each step is MurmurHash3's finaliser (Appleby, public domain)."""
    address = address_of(data)
    for row in range(len(hashes)):
        at, end = offsets[row], offsets[row + 1]
        size = end - at
        h = np.uint64(size) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x2545F4914F6CDD1D)
        while at + 8 <= end:
            h = _step(h ^ load64(address, at))
            at += 8
        rest = end - at
        if rest and size >= 8:  # reads the last 8 bytes: memory may end with the text
            h = _step(h ^ (load64(address, end - 8) >> np.uint64(64 - 8 * rest)))
        elif rest:
            word = np.uint64(0)
            for i in range(rest):
                word |= np.uint64(load8(address, at + i)) << np.uint64(8 * i)
            h = _step(h ^ word)
        hashes[row] = h


@njit(nogil=True)
def _step(h: np.uint64) -> np.uint64:
    h = (h ^ (h >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    h = (h ^ (h >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return h ^ (h >> np.uint64(33))


@njit(nogil=True, cache=True)
def _write_hex(data: npt.NDArray[np.uint8], digits: npt.NDArray[np.uint8]) -> None:
    # Without branches and tables, so that the compiler makes vector code of it.
    for i in range(len(data)):
        high, low = data[i] >> np.uint8(4), data[i] & np.uint8(15)
        digits[2 * i] = np.uint8(high + np.uint8(48) + (np.uint8(39) if high > np.uint8(9) else np.uint8(0)))
        digits[2 * i + 1] = np.uint8(low + np.uint8(48) + (np.uint8(39) if low > np.uint8(9) else np.uint8(0)))
