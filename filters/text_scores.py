"""What is measured on captions beside their words' number: characters, digits, capitals, repetition, listed words.

Shares are multiples of 1/4096, so that they are the same on every machine and in every file.
"""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from altalign.filters import unicode_data, words
from altalign.filters.bits import address_of
from altalign.filters.one_caption import hash_of_word, words_of
from altalign.filters.utf8 import decode, entry_of

STEPS = 4096  # of a share

Shares = npt.NDArray[np.float32]

COLUMNS = pa.schema(
    [
        ("characters", pa.int32()),  # code points
        ("digits", pa.float32()),  # share of the characters that are 0 to 9
        ("capitals", pa.float32()),  # share of the letters that have another lower case
        ("repeated", pa.float32()),  # share of the words that the caption has had before
        ("listed", pa.int32()),  # words that are in the list of the settings
    ]
)


def rounded(values: npt.NDArray[np.floating]) -> Shares:
    """The nearest multiples of 1/4096, float32; what is not finite is NaN."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(values), np.rint(values * STEPS) / STEPS, np.nan).astype(np.float32)


def listed_hashes(lines: Collection[str]) -> npt.NDArray[np.uint64]:
    """The sorted hashes of the words in some lines: uint64[n]."""
    return np.unique(np.array([hash_of_word(word) for line in lines for word in words_of(line)], np.uint64))


def measure(captions: pa.StringArray, listed: npt.NDArray[np.uint64]) -> pa.Table:
    """The columns of `COLUMNS` for n captions without nulls."""
    data, offsets = words.text_buffers(captions)
    blocks, entries, _ = unicode_data.table()
    counts = np.zeros((len(captions), 4), np.int64)
    count_characters(data, offsets, blocks, entries, counts)
    characters, digits, letters, capitals = counts.T
    repeated, of_list = _words(captions, listed)
    return pa.table(
        [
            pa.array(characters.astype(np.int32)),
            pa.array(rounded(digits / np.maximum(characters, 1))),
            pa.array(rounded(capitals / np.maximum(letters, 1))),
            pa.array(repeated),
            pa.array(of_list),
        ],
        schema=COLUMNS,
    )


def _words(captions: pa.StringArray, listed: npt.NDArray[np.uint64]) -> tuple[Shares, npt.NDArray[np.int32]]:
    """The share of repeated words of each caption, float32[n], and how many are listed, int32[n]."""
    n = len(captions)
    scan = words.scan(captions, words.thread_scratch())
    most = int(np.diff(scan.ends, prepend=0).max(initial=0))
    number, distinct, of_list = (np.zeros(n, np.int64) for _ in range(3))
    room = np.zeros(most + 1, np.uint64)
    count_words(scan.ngrams, scan.ends, listed, number, distinct, of_list, room)
    return rounded((number - distinct) / np.maximum(number, 1)), of_list.astype(np.int32)


CHARACTERS, DIGITS, LETTERS, CAPITALS = range(4)
LETTER, FOLD = unicode_data.LETTER, unicode_data.FOLD
_FEW = 48  # words of a caption that are compared each with each; more are sorted

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


@njit(nogil=True, cache=True)
def count_characters(
    data: Bytes, offsets: Longs, blocks: npt.NDArray[np.uint16], entries: npt.NDArray[np.uint32], counts: Longs
) -> None:
    """Adds up characters, digits, letters and capitals of each row: `counts` is int64[n, 4]."""
    text, of_blocks, of_entries = address_of(data), address_of(blocks), address_of(entries)
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        characters = digits = letters = capitals = 0
        while at < end:
            point, size = decode(text, at, end)
            at += size
            entry = entry_of(point, of_blocks, of_entries)
            characters += 1
            digits += 48 <= point <= 57
            if entry & LETTER:
                letters += 1
                capitals += (entry & FOLD) != 0
        counts[row, CHARACTERS], counts[row, DIGITS] = characters, digits
        counts[row, LETTERS], counts[row, CAPITALS] = letters, capitals


@njit(nogil=True, cache=True)
def count_words(
    ngrams: npt.NDArray[np.uint64],
    ends: Longs,
    listed: npt.NDArray[np.uint64],
    number: Longs,
    distinct: Longs,
    of_list: Longs,
    words: npt.NDArray[np.uint64],
) -> None:
    """Counts words of each row, distinct ones, and those that are listed; `words` has room for those of any row."""
    begin = 0
    for row in range(len(ends)):
        n = 0
        for at in range(begin, ends[row]):
            # in a row the first n-gram is a word, and then the bigram that a word ends comes after it
            if at == begin or (at - begin) & 1:
                words[n] = ngrams[at]
                n += 1
        begin = ends[row]
        number[row], distinct[row], of_list[row] = n, _distinct(words[:n]), 0
        if len(listed):
            for place in range(n):
                at = np.searchsorted(listed, words[place])
                of_list[row] += at < len(listed) and listed[at] == words[place]


@njit(nogil=True)
def _distinct(words: npt.NDArray[np.uint64]) -> int:
    if len(words) > _FEW:
        in_order = np.sort(words)
        return 1 + (in_order[1:] != in_order[:-1]).sum()
    number = len(words)
    for place in range(len(words)):
        for before in range(place):
            if words[before] == words[place]:
                number -= 1
                break
    return number
