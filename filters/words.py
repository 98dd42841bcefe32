"""Words of captions, for columns; `one_caption` has the same in plain Python.

Unigrams, bigrams and whole folded captions are known by a 64-bit hash of our own; every table of hashes has
HASH_VERSION. Expect 0.03 colliding pairs in a thousand million n-grams.
"""

import threading
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.filters import unicode_data, word_kernels
from altalign.filters.bits import PADDING, Bytes, Hashes, Longs
from altalign.filters.word_kernels import BLOCK_BYTES, BLOCK_ROWS

HASH_VERSION = 1
_Item = TypeVar("_Item", bound=np.generic)


class Scan(NamedTuple):
    """Words of n captions. The arrays are views of a Scratch, valid until its next scan."""

    words: npt.NDArray[np.int32]  # [n]: number of unigrams of each row
    texts: Hashes  # [n]: of the folded caption
    ngrams: Hashes  # [m]: of all n-grams, row after row; in a row, the bigram that a unigram ends comes after it
    ends: Longs  # [n]: where the n-grams of each row end in `ngrams`


BLOCK = 8_192  # rows whose n-grams are hashed at a time: they stay in the CPU's cache


class Scratch:
    """Memory that scans reuse and that grows as needed; each thread has its own."""

    def __init__(self) -> None:
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def take(self, name: str, size: int, kind: type[_Item]) -> npt.NDArray[_Item]:
        """An array of at least `size` uninitialised items; pages that are never touched take no memory."""
        array = self._arrays.get(name)
        if array is None or array.size < size:
            self._arrays.pop(name, None)  # frees its memory first
            array = self._arrays[name] = np.empty(size + size // 4, kind)
        return array


_THREAD = threading.local()


def thread_scratch() -> Scratch:
    """The scratch memory of this thread."""
    if not hasattr(_THREAD, "scratch"):
        _THREAD.scratch = Scratch()
    return _THREAD.scratch


def scan(captions: pa.StringArray, scratch: Scratch) -> Scan:
    """Words and hashes of n clean captions without nulls; bytes that are not UTF-8 belong to no word."""
    if captions.null_count:
        raise ValueError(f"captions of a scan hold {captions.null_count} nulls; clean them first")
    data, offsets = text_buffers(captions)
    n, size = len(captions), int(offsets[-1] - offsets[0])
    block = max(BLOCK_BYTES, int(np.diff(offsets).max(initial=0)))
    room = 4 * block + 16 * BLOCK_ROWS + 4 * PADDING  # the block, its rows written anew, and their gaps
    words, texts = scratch.take("words", n, np.int32)[:n], scratch.take("texts", n, np.uint64)[:n]
    ends = scratch.take("ends", n, np.int64)[:n]
    ngrams = scratch.take("ngrams", size + 2, np.uint64)  # a row of b bytes has at most b
    text, signs = scratch.take("text", room, np.uint8), scratch.take("signs", room, np.uint8)
    places = (scratch.take(name, block + PADDING, np.uint64) for name in ("starts", "stops"))
    word_kernels.scan_rows(data, offsets, unicode_data.table(), text, signs, *places, words, texts, ngrams, ends)
    return Scan(words, texts, ngrams[: int(ends[-1]) if n else 0], ends)


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
