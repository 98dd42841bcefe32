"""Words of captions, for columns: unigrams, bigrams and whole folded captions, each known by a 64-bit hash of our own.

`one_caption` has the same rules in plain Python. Every table of hashes has HASH_VERSION. Expect 0.03 colliding pairs in
a thousand million n-grams. Rows of ASCII, which most are, have a loop of their own.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from altalign.filters import bits, unicode_data
from altalign.filters.bits import PADDING, Bytes, Hashes, Longs, address_of
from altalign.filters.one_caption import BIGRAM, MIX_1, MIX_2
from altalign.filters.unicode_data import CONNECTOR, FOLD, FORMAT, LETTER, MARK, MODIFIER_LETTER, NUMBER, SINGLE

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
    n, longest = len(captions), int(np.diff(offsets).max(initial=0))
    folded, word = np.empty((2, longest * 3 // 2 + PADDING), np.uint8)  # the longest growth is from 2 bytes to 3
    words, texts, ends = np.empty(n, np.int32), np.empty(n, np.uint64), np.empty(n, np.int64)
    ngrams = np.empty(int(offsets[-1] - offsets[0]) + 2, np.uint64)  # a row of b bytes has at most b
    _scan_rows(data, offsets, unicode_data.table(), folded, word, words, texts, ngrams, ends)
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


# Kernels --------------------------------------------------------------------------------------------------------------

# primes with about half of their bits set
STEP_1, STEP_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
APOSTROPHE, TYPOGRAPHIC_APOSTROPHE = 0x27, 0x2019
_STRONG = LETTER | NUMBER  # a word needs one of them
_OF_WORD = _STRONG | MARK | CONNECTOR
_A, _AFTER_Z, _ZERO, _AFTER_NINE, _CONNECTOR, _APOSTROPHE = np.frombuffer(b"a{0:_'", np.uint8)


@njit(nogil=True)
def mix(h: np.uint64) -> np.uint64:
    """A bijection of uint64 in which every bit depends on every bit."""
    h = (h ^ (h >> np.uint64(30))) * MIX_1
    h = (h ^ (h >> np.uint64(27))) * MIX_2
    return h ^ (h >> np.uint64(31))


@njit(nogil=True)
def hash_word(text: int, start: int, size: int) -> np.uint64:
    """Hash of a word of at least one byte; any two words of up to 8 bytes differ."""
    h = mix(bits.load64(text, start) & bits.LOW_BYTES[min(size, 8)])
    longer = mix(h ^ (bits.load64(text, start + 8) & bits.LOW_BYTES[min(max(size - 8, 0), 8)]))
    h = longer if size > 8 else h  # computed in any case: a branch on the size would often be mispredicted
    at = 16
    while at < size:
        h = mix(h ^ (bits.load64(text, start + at) & bits.LOW_BYTES[min(size - at, 8)]))
        at += 8
    return h


@njit(nogil=True)
def _step(lane: np.uint64, word: np.uint64) -> np.uint64:
    lane += word * STEP_2
    return (lane << np.uint64(31) | lane >> np.uint64(33)) * STEP_1


@njit(nogil=True)
def hash_text(text: int, size: int) -> np.uint64:
    """Hash of a whole folded caption: two lanes of 8 bytes a step, the last step padded with zeros."""
    left, right = STEP_1, STEP_2
    at = 0
    for _ in range(size >> 4):
        left, right = _step(left, bits.load64(text, at)), _step(right, bits.load64(text, at + 8))
        at += 16
    rest = size & 15
    left = _step(left, bits.load64(text, at) & bits.LOW_BYTES[min(rest, 8)])
    right = _step(right, bits.load64(text, at + 8) & bits.LOW_BYTES[max(rest - 8, 0)])
    return mix(mix(left + np.uint64(size)) ^ right)


@njit(nogil=True)
def _fold_ascii(source: Bytes, folded: Bytes) -> np.bool_:
    """Copies a row with its ASCII letters in lower case; whether there is nothing else than ASCII in it."""
    high = np.uint8(0)
    for i in range(source.size):  # without branches, which the compiler makes vector code of
        byte = source[i]
        high |= byte
        folded[i] = byte + np.uint8(32) if np.uint8(byte - np.uint8(65)) < np.uint8(26) else byte
    return high < 0x80


@njit(nogil=True)
def _add(ngrams: int, made: int, n: int, previous: np.uint64, h: np.uint64) -> int:
    """Adds a row's word of number n, and the bigram that it ends; returns the new `made`."""
    bits.store64(ngrams, made * 8, h)
    bits.store64(ngrams, made * 8 + 8, mix((previous * BIGRAM) ^ h))  # the first word's is overwritten
    return made + (2 if n else 1)


@njit(nogil=True)
def _scan_ascii(text: int, end: int, ngrams: int, made: int) -> tuple[int, int]:
    """The words of a folded row, between two bytes of none: their number, and the new `made`."""
    n, begin, carry, previous = 0, -1, np.uint64(0), np.uint64(0)
    for chunk in range(0, end + 1, 64):
        joins = bits.between64(text, chunk - 1, _A, _AFTER_Z) & bits.between64(text, chunk + 1, _A, _AFTER_Z)
        inside = bits.equal64(text, chunk, _APOSTROPHE) & joins | bits.equal64(text, chunk, _CONNECTOR)
        inside |= bits.between64(text, chunk, _A, _AFTER_Z) | bits.between64(text, chunk, _ZERO, _AFTER_NINE)
        inside &= bits.first64(end - chunk)
        edges, carry = inside ^ (inside << np.uint64(1) | carry), inside >> np.uint64(63)
        while edges:
            at = chunk + bits.first_bit(edges)
            edges &= edges - np.uint64(1)
            if begin < 0:
                begin = at
                continue
            strong = begin
            while strong < at and bits.load8(text, strong) == _CONNECTOR:
                strong += 1
            if strong < at:
                h = hash_word(text, begin, at - begin)
                made = _add(ngrams, made, n, previous, h)
                n, previous = n + 1, h
            begin = -1
    return n, made


@njit(nogil=True)
def _joins_next(data: int, at: int, end: int, blocks: int, entries: int) -> bool:
    """Whether an apostrophe can join what comes: past format characters, a letter of a script with spaces."""
    while at < end:
        point, size = bits.decode(data, at, end)
        entry = bits.entry_of(point, blocks, entries)
        if not entry & FORMAT:
            return entry & LETTER != 0 and entry & SINGLE == 0
        at += size
    return False


@njit(nogil=True)
def _scan_any(
    data: int, at: int, end: int, blocks: int, entries: int, text: int, word: int, ngrams: int, made: int
) -> tuple[int, int, int]:
    """Folds a row to `text`, a word at a time to `word`: bytes of the text, number of words, and the new `made`."""
    to = size = n = state = strong = 0  # state: class of the word's last character, SINGLE in a script without spaces
    previous = np.uint64(0)
    while True:
        point, entry, is_end = -1, 0, at >= end  # the end of the row ends a word
        if not is_end:
            point, length = bits.decode(data, at, end)
            entry = bits.entry_of(point, blocks, entries)
            if point < 0:
                bits.store8(text, to, bits.load8(data, at))
                to += 1
            else:
                point = (point + entry) & FOLD
                to += bits.encode(point, text, to)
            at += length
            if entry & FORMAT:
                continue
        if state & SINGLE:
            extends = entry & (MARK | MODIFIER_LETTER) != 0
        elif entry & _OF_WORD:
            extends = entry & SINGLE == 0
        else:
            is_apostrophe = point in (APOSTROPHE, TYPOGRAPHIC_APOSTROPHE)
            extends = is_apostrophe and state & (LETTER | MARK) and _joins_next(data, at, end, blocks, entries)
            if extends:
                point, entry = APOSTROPHE, CONNECTOR
        if not extends:
            if strong:
                h = hash_word(word, 0, size)
                made = _add(ngrams, made, n, previous, h)
                n, previous = n + 1, h
            if is_end:
                return to, n, made
            size = strong = state = 0
        if extends or entry & _OF_WORD:
            size += bits.encode(point, word, size)
            strong |= entry & _STRONG
            state = state if state & SINGLE else entry


@njit(nogil=True, cache=True)
def _scan_rows(
    data: Bytes,
    offsets: Longs,
    table: unicode_data.UnicodeTable,
    folded: Bytes,
    word: Bytes,
    words: npt.NDArray[np.int32],
    texts: Hashes,
    ngrams: Hashes,
    ends: Longs,
) -> None:
    """Fill words, texts, ngrams and ends (see `Scan`) for the n rows between the offsets.

    `offsets` are int64[n + 1]; `folded` and `word` are scratch memory for the longest row.
    """
    source, blocks, entries = address_of(data), address_of(table.blocks), address_of(table.entries)
    folded[0], text_at, word_at, ngrams_at = 0, address_of(folded) + 1, address_of(word), address_of(ngrams)
    made = 0
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        size = end - at
        if _fold_ascii(data[at:end], folded[1:]):
            bits.store8(text_at, size, 0)
            words[row], made = _scan_ascii(text_at, size, ngrams_at, made)
        else:
            size, words[row], made = _scan_any(source, at, end, blocks, entries, text_at, word_at, ngrams_at, made)
        texts[row] = hash_text(text_at, size)
        ends[row] = made
