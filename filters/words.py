"""Words of captions, for columns; `one_caption` has the same in plain Python.

Unigrams, bigrams and whole folded captions are known by a 64-bit hash of our own; every table of hashes has
HASH_VERSION. Expect 0.03 colliding pairs in a thousand million n-grams.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.filters import unicode_data, word_kernels
from altalign.filters.bits import PADDING, Bytes, Hashes, Longs
from altalign.filters.word_kernels import BLOCK_BYTES, BLOCK_ROWS

HASH_VERSION = 1
BLOCK = 8_192  # rows whose n-grams are hashed at a time: they stay in the CPU's cache


class Scan(NamedTuple):
    """Words of n captions."""

    words: npt.NDArray[np.int32]  # [n]: number of unigrams of each row
    texts: Hashes  # [n]: of the folded caption
    ngrams: Hashes  # [m]: of all n-grams, row after row; in a row, the bigram that a unigram ends comes after it
    ends: Longs  # [n]: where the n-grams of each row end in `ngrams`


def scan(captions: pa.StringArray) -> Scan:
    """Words and hashes of n clean captions without nulls; bytes that are not UTF-8 belong to no word."""
    if captions.null_count:
        raise ValueError(f"captions of a scan hold {captions.null_count} nulls; clean them first")
    data, offsets = text_buffers(captions)
    n, block = len(captions), max(BLOCK_BYTES, int(np.diff(offsets).max(initial=0)))
    room = 4 * block + 16 * BLOCK_ROWS + 4 * PADDING  # the block, its rows written anew, and their gaps
    text, signs = np.empty((2, room), np.uint8)
    starts, stops = np.empty((2, block + PADDING), np.uint64)
    words, texts, ends = np.empty(n, np.int32), np.empty(n, np.uint64), np.empty(n, np.int64)
    ngrams = np.empty(int(offsets[-1] - offsets[0]) + 2, np.uint64)  # a row of b bytes has at most b
    word_kernels.scan_rows(data, offsets, unicode_data.table(), text, signs, starts, stops, words, texts, ngrams, ends)
    return Scan(words, texts, ngrams[: int(ends[-1]) if n else 0], ends)


def unigrams(scan: Scan) -> tuple[Longs, Hashes]:
    """Row and hash of each word of a scan, row after row: int64[m] and uint64[m]."""
    starts = np.append(0, scan.ends)[:-1]
    rows = np.repeat(np.arange(len(starts)), scan.ends - starts)
    place = np.arange(len(rows)) - starts[rows]
    is_word = (place == 0) | (place % 2 == 1)
    return rows[is_word], scan.ngrams[is_word]


def text_buffers(captions: pa.StringArray | pa.LargeStringArray) -> tuple[Bytes, Longs]:
    """The bytes of an array (uint8, Arrow's own buffer, read-only) and the offsets of its n rows (int64[n + 1])."""
    _, offsets_buffer, data_buffer = captions.buffers()
    n, kind = len(captions), np.dtype(np.int64 if pa.types.is_large_string(captions.type) else np.int32)
    data = np.empty(0, np.uint8)
    if data_buffer is not None and data_buffer.size:
        data = np.frombuffer(memoryview(data_buffer), np.uint8)
    data.setflags(write=False)  # gives kernels one signature, whoever made the buffer
    if n == 0 or offsets_buffer is None:
        return data, np.zeros(n + 1, np.int64)
    offsets = np.frombuffer(memoryview(offsets_buffer), kind, count=n + 1, offset=captions.offset * kind.itemsize)
    return data, offsets.astype(np.int64)
