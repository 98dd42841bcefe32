"""What is measured on captions beside their words' number: characters, digits, capitals, repetition, listed words.

Shares are multiples of 1/4096, so that they are the same on every machine and in every file.
"""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.filters import score_kernels, unicode_data, words
from altalign.filters.one_caption import hash_of_word, words_of

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
    score_kernels.count_characters(data, offsets, blocks, entries, counts)
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
    score_kernels.count_words(scan.ngrams, scan.ends, listed, number, distinct, of_list, room)
    return rounded((number - distinct) / np.maximum(number, 1)), of_list.astype(np.int32)
