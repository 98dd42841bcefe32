"""What is measured on captions beside their words' number: characters, digits, capitals, repetition, listed words.

Shares are multiples of 1/4096, so that they are the same on every machine and in every file.
"""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from altalign.filters import unicode_data, words
from altalign.filters.bits import Bytes, Hashes, Longs, address_of
from altalign.filters.unicode_data import FOLD, LETTER, UnicodeTable
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


def listed_hashes(lines: Collection[str]) -> Hashes:
    """The sorted hashes of the words in some lines: uint64[n]."""
    return np.unique(words.unigrams(words.scan(pa.array(list(lines), pa.string())))[1])


def measure(captions: pa.StringArray, listed: Hashes) -> pa.Table:
    """The columns of `COLUMNS` for n captions without nulls."""
    data, offsets = words.text_buffers(captions)
    counts, of_words = np.zeros((len(captions), 4), np.int64), np.zeros((len(captions), 3), np.int64)
    _count_characters(data, offsets, unicode_data.table(), counts)
    scan = words.scan(captions)
    room = np.zeros(int(np.diff(scan.ends, prepend=0).max(initial=0)) + 1, np.uint64)
    _count_words(scan.ngrams, scan.ends, listed, room, of_words)
    characters, digits, letters, capitals = counts.T
    number, distinct, of_list = of_words.T
    columns = [
        characters.astype(np.int32),
        rounded(digits / np.maximum(characters, 1)),
        rounded(capitals / np.maximum(letters, 1)),
        rounded((number - distinct) / np.maximum(number, 1)),
        of_list.astype(np.int32),
    ]
    return pa.table(columns, schema=COLUMNS)


@njit(nogil=True, cache=True)
def _count_characters(data: Bytes, offsets: Longs, table: UnicodeTable, counts: Longs) -> None:
    """Characters, digits, letters and capitals of each row: `counts` is int64[n, 4]."""
    text, blocks, entries = address_of(data), address_of(table.blocks), address_of(table.entries)
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        characters = digits = letters = capitals = 0
        while at < end:
            point, size = decode(text, at, end)
            at += size
            entry = entry_of(point, blocks, entries)
            characters += 1
            digits += 48 <= point <= 57
            if entry & LETTER:
                letters += 1
                capitals += (entry & FOLD) != 0
        counts[row, 0], counts[row, 1], counts[row, 2], counts[row, 3] = characters, digits, letters, capitals


@njit(nogil=True, cache=True)
def _count_words(ngrams: Hashes, ends: Longs, listed: Hashes, words: Hashes, counts: Longs) -> None:
    """Words of each row, distinct ones, and those that are listed: int64[n, 3]; `words` has room for any row's."""
    begin = 0
    for row in range(len(ends)):
        n = 0
        for at in range(begin, ends[row]):
            # in a row the first n-gram is a word, and then the bigram that a word ends comes after it
            if at == begin or (at - begin) & 1:
                words[n] = ngrams[at]
                n += 1
        begin = ends[row]
        in_order = words[:n]
        in_order.sort()
        counts[row, 0], counts[row, 1] = n, min(n, 1) + (in_order[1:] != in_order[:-1]).sum()
        if len(listed):
            for word in in_order:
                at = np.searchsorted(listed, word)
                counts[row, 2] += at < len(listed) and listed[at] == word
