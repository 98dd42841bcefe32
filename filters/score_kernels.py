"""Kernels behind `text_scores` and `scripts`: one walk over the code points, or the words, of each caption."""

import numpy as np
import numpy.typing as npt
from numba import njit

from altalign.filters import unicode_data
from altalign.filters.bits import address_of
from altalign.filters.utf8 import decode, entry_of

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


@njit(nogil=True, cache=True)
def main_script(
    data: Bytes,
    offsets: Longs,
    blocks: npt.NDArray[np.uint16],
    entries: npt.NDArray[np.uint32],
    script_of: Bytes,
    scripts: int,
    main: Bytes,
) -> None:
    """The number of the script of most letters of each row, uint8[n]; 0: of none. `script_of` has it of code points."""
    text, of_blocks, of_entries = address_of(data), address_of(blocks), address_of(entries)
    letters = np.zeros(scripts, np.int64)
    for row in range(len(offsets) - 1):
        letters[:] = 0
        at, end = offsets[row], offsets[row + 1]
        while at < end:
            point, size = decode(text, at, end)
            at += size
            if entry_of(point, of_blocks, of_entries) & LETTER:
                letters[script_of[point]] += 1
        letters[0] = 0  # no script of its own
        main[row] = letters.argmax()
