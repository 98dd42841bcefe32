"""What is measured on captions beside their words' number: characters, digits, capitals, repetition, listed words.

Shares are multiples of 1/4096, so that they are the same on every machine and in every file.
"""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.filters import unicode_data, words
from altalign.filters.one_caption import hash_of_word, words_of

STEPS = 4096  # of a share
_ROWS = 8_192  # whose code points are in memory at a time

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
    parts = [_measured(captions.slice(begin, _ROWS), listed) for begin in range(0, max(1, len(captions)), _ROWS)]
    return pa.concat_tables(parts).combine_chunks()


def _measured(captions: pa.StringArray, listed: npt.NDArray[np.uint64]) -> pa.Table:
    n = len(captions)
    texts: list[str] = captions.to_pylist()  # type: ignore[assignment]
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    sizes = np.fromiter(map(len, texts), np.int64, n)
    rows = np.repeat(np.arange(n), sizes)
    blocks, entries, _ = unicode_data.table()
    entry = entries[blocks[points >> 6].astype(np.int64) << 6 | points & 63]
    is_letter = (entry & unicode_data.LETTER) > 0
    is_capital = is_letter & ((entry & unicode_data.FOLD) > 0)
    is_digit = (points >= ord("0")) & (points <= ord("9"))
    digits, letters, capitals = (np.bincount(rows[mask], minlength=n) for mask in (is_digit, is_letter, is_capital))
    repeated, of_list = _words(captions, listed)
    return pa.table(
        [
            pa.array(sizes.astype(np.int32)),
            pa.array(rounded(digits / np.maximum(sizes, 1))),
            pa.array(rounded(capitals / np.maximum(letters, 1))),
            pa.array(repeated),
            pa.array(of_list),
        ],
        schema=COLUMNS,
    )


def _words(captions: pa.StringArray, listed: npt.NDArray[np.uint64]) -> tuple[Shares, npt.NDArray[np.int32]]:
    """The share of repeated words of each caption, float32[n], and how many are listed, int32[n]."""
    n = len(captions)
    found = words.scan(captions, words.thread_scratch())
    # in a row the first n-gram is a word, and then the bigram that a word ends comes after it
    starts = np.r_[0, found.ends[:-1]] if n else np.zeros(0, np.int64)
    rows = np.repeat(np.arange(n), found.ends - starts)
    place = np.arange(len(rows)) - starts[rows]
    is_word = (place == 0) | (place % 2 == 1)
    rows, hashes = rows[is_word], found.ngrams[is_word]
    number = np.bincount(rows, minlength=n)
    order = np.lexsort((hashes, rows))
    is_new = np.ones(len(order), bool)
    is_new[1:] = (hashes[order][1:] != hashes[order][:-1]) | (rows[order][1:] != rows[order][:-1])
    distinct = np.bincount(rows[order][is_new], minlength=n)
    of_list = np.zeros(n, np.int64)
    if len(listed):
        at = np.minimum(np.searchsorted(listed, hashes), len(listed) - 1)
        of_list = np.bincount(rows[listed[at] == hashes], minlength=n)
    return rounded((number - distinct) / np.maximum(number, 1)), of_list.astype(np.int32)
