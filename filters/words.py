"""Words of captions: one definition, for columns (`scan`) and in plain Python (`words_of`, `ngram_hashes`).

product.md, section 3, defines a word of the folded caption. Unigrams, bigrams and whole folded captions are known by a
64-bit hash of our own; every table of hashes has HASH_VERSION. Expect 0.03 colliding pairs in a thousand million
n-grams.
"""

import threading
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.filters import unicode_data, word_kernels
from altalign.filters.bits import PADDING
from altalign.filters.unicode_data import CONNECTOR, FORMAT, LETTER, MARK, MODIFIER_LETTER, NUMBER, SINGLE
from altalign.filters.word_kernels import BIGRAM, BLOCK_BYTES, BLOCK_ROWS, MIX_1, MIX_2, STEP_1, STEP_2

HASH_VERSION = 1
APOSTROPHES = "'’"
UINT64 = (1 << 64) - 1
_Item = TypeVar("_Item", bound=np.generic)


class Scan(NamedTuple):
    """Words of n captions. The arrays are views of a Scratch, valid until its next scan."""

    words: npt.NDArray[np.int32]
    """int32[n]: number of unigrams of each row."""
    texts: npt.NDArray[np.uint64]
    """uint64[n]: hash of the folded caption."""
    ngrams: npt.NDArray[np.uint64]
    """uint64[m]: hashes of all n-grams, row after row; in a row, the bigram that a unigram ends comes after it."""
    ends: npt.NDArray[np.int64]
    """int64[n]: where the n-grams of each row end in `ngrams`."""


BLOCK = 8_192  # rows whose n-grams are hashed at a time: they stay in the CPU's cache


class Scratch:
    """Memory that scans reuse and that grows as needed; each thread has its own."""

    def __init__(self) -> None:
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def take(self, name: str, size: int, kind: type[_Item]) -> npt.NDArray[_Item]:
        """An array of at least `size` uninitialised items; pages that are never touched take no memory."""
        array = self._arrays.get(name)
        if array is None or array.size < size:
            self._arrays.pop(name, None)
            array = self._arrays[name] = np.empty(size + size // 4, kind)
        return array


_THREAD = threading.local()


def thread_scratch() -> Scratch:
    """The scratch memory of this thread."""
    if not hasattr(_THREAD, "scratch"):
        _THREAD.scratch = Scratch()
    return _THREAD.scratch


def scan(captions: pa.StringArray, scratch: Scratch) -> Scan:
    """Words and hashes of captions.

    Args:
        captions: n clean captions (string or large_string, no nulls); bytes that are not UTF-8 belong to no word.
        scratch: the memory of this thread.

    Raises:
        ValueError: there are nulls.
    """
    if captions.null_count:
        raise ValueError(f"captions of a scan hold {captions.null_count} nulls; clean them first")
    data, offsets = text_buffers(captions)
    n, size = len(captions), int(offsets[-1] - offsets[0])
    block = max(BLOCK_BYTES, int(np.diff(offsets).max(initial=0)))
    room = 4 * block + 16 * BLOCK_ROWS + 4 * PADDING  # the block, its rows written anew, and their gaps
    words, texts = scratch.take("words", n, np.int32)[:n], scratch.take("texts", n, np.uint64)[:n]
    ends = scratch.take("ends", n, np.int64)[:n]
    ngrams = scratch.take("ngrams", size + 2, np.uint64)  # a row of b bytes has at most b
    word_kernels.scan_rows(
        data,
        offsets,
        *unicode_data.table()[:2],
        scratch.take("text", room, np.uint8),
        scratch.take("signs", room, np.uint8),
        scratch.take("starts", block + PADDING, np.uint64),
        scratch.take("stops", block + PADDING, np.uint64),
        words,
        texts,
        ngrams,
        ends,
    )
    return Scan(words, texts, ngrams[: int(ends[-1]) if n else 0], ends)


def text_buffers(
    captions: pa.StringArray | pa.LargeStringArray,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
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


def folded(caption: str) -> str:
    """The caption with each code point's simple lower-case mapping (UnicodeData field 13); not normalised again."""
    return caption.translate(unicode_data.lower_case())


def words_of(caption: str) -> list[str]:
    """Folded words of a caption, without format characters and with every apostrophe written as '."""
    entries = ((character, unicode_data.entry(character)) for character in folded(caption))
    visible = [(character, entry) for character, entry in entries if not entry & FORMAT]
    words: list[str] = []
    word, state = "", 0  # state: class of the word's last character; SINGLE in a script without spaces
    for i, (character, entry) in enumerate([*visible, ("", 0)]):
        following = visible[i + 1][1] if i + 1 < len(visible) else 0
        joins = state & (LETTER | MARK) and following & LETTER and not (state | following) & SINGLE
        if character and character in APOSTROPHES and joins:
            word, state = word + "'", CONNECTOR
        elif state & SINGLE and entry & (MARK | MODIFIER_LETTER):
            word += character
        elif entry & (LETTER | MARK | NUMBER | CONNECTOR) and not entry & SINGLE and not state & SINGLE:
            word, state = word + character, entry
        else:
            words.append(word)
            is_word = entry & (LETTER | MARK | NUMBER | CONNECTOR)
            word, state = (character, entry) if is_word else ("", 0)
    return [word for word in words if any(unicode_data.entry(character) & (LETTER | NUMBER) for character in word)]


def ngrams_of(caption: str) -> list[str]:
    """Unigrams and bigrams ("first second") of a caption, in the order of `Scan.ngrams`."""
    words = words_of(caption)
    bigrams = [f"{first} {second}" for first, second in pairwise(words)]
    return [ngram for pair in zip(words, ["", *bigrams], strict=True) for ngram in pair if ngram] if words else []


def ngram_hashes(caption: str) -> list[int]:
    """Hashes of `ngrams_of(caption)`."""
    return [hash_of_bigram(*ngram.split(" ")) if " " in ngram else hash_of_word(ngram) for ngram in ngrams_of(caption)]


def hash_of_word(word: str) -> int:
    """64-bit hash of a folded word; any two words of up to 8 bytes differ."""
    h = 0
    for block in _blocks(word.encode()):
        h = _mix(h ^ block)
    return h


def hash_of_bigram(first: str, second: str) -> int:
    """64-bit hash of two neighbouring folded words; their order counts."""
    return _mix(hash_of_word(first) * int(BIGRAM) & UINT64 ^ hash_of_word(second))


def hash_of_text(caption: str) -> int:
    """Hash of a caption after folding, as in `Scan.texts`."""
    text = folded(caption).encode()
    lanes = [int(STEP_1), int(STEP_2)]
    for i, block in enumerate(_blocks(text.ljust(len(text) // 16 * 16 + 16, b"\0"))):
        lane = lanes[i % 2] + block * int(STEP_2) & UINT64
        lanes[i % 2] = (lane << 31 | lane >> 33) * int(STEP_1) & UINT64
    return _mix(_mix(lanes[0] + len(text) & UINT64) ^ lanes[1])


def _blocks(text: bytes) -> list[int]:
    return [int.from_bytes(text[i : i + 8], "little") for i in range(0, len(text), 8)]


def _mix(h: int) -> int:
    h = (h ^ h >> 30) * int(MIX_1) & UINT64
    h = (h ^ h >> 27) * int(MIX_2) & UINT64
    return h ^ h >> 31
