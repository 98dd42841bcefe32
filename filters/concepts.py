"""Concepts in captions, and how likely a pair stays so that frequent concepts are no more frequent than asked for.

The idea is that of MetaCLIP (Xu et al., 2023, section 3), from its text alone: entries are words and titles; an entry
that is in c captions keeps each of them with probability min(1, t / c), on its own, so that a caption with entries e
stays with 1 - prod(1 - min(1, t / c_e)). One without any entry goes. Entries are matched by words, not by bytes.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.filters import words
from altalign.filters.one_caption import BIGRAM, MIX_1, MIX_2
from altalign.filters.word_kernels import STEP_1

WORDS_AT_MOST = 8  # of an entry; longer ones are refused by `Entries.from_lines`
_ROWS = 8_192  # whose n-grams are in memory at a time

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]


class Entries(NamedTuple):
    """Distinct entries by the hashes of their words, sorted: uint64[n]; `number` is the first line of each."""

    hashes: Hashes
    number: Numbers
    longest: int

    @classmethod
    def from_lines(cls, lines: pa.StringArray) -> "Entries":
        """The entries of n lines without nulls; those without a word, or with more than `WORDS_AT_MOST`, are none."""
        parts = [_ngrams(lines.slice(begin, _ROWS), whole=True) for begin in range(0, len(lines), _ROWS)]
        rows = np.concatenate([np.zeros(0, np.int64), *(part[0] + at * _ROWS for at, part in enumerate(parts))])
        hashes, first = np.unique(
            np.concatenate([np.zeros(0, np.uint64), *(part[1] for part in parts)]), return_index=True
        )
        return cls(hashes, rows[first], max((part[2] for part in parts), default=0))


class Matches(NamedTuple):
    """Which captions have which entries, each once: rows (rising) and places in `Entries.hashes`, int64[m] each."""

    rows: Numbers
    entries: Numbers


def match(captions: pa.StringArray, entries: Entries) -> Matches:
    """The entries of n captions without nulls: wherever the words of one stand side by side."""
    rows, places = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for begin in range(0, len(captions) if len(entries.hashes) else 0, _ROWS):
        of_row, hashes, _ = _ngrams(captions.slice(begin, _ROWS), at_most=entries.longest)
        at = np.minimum(np.searchsorted(entries.hashes, hashes), len(entries.hashes) - 1)
        is_entry = entries.hashes[at] == hashes
        both = np.unique(of_row[is_entry] * len(entries.hashes) + at[is_entry])
        rows.append(both // len(entries.hashes) + begin)
        places.append(both % len(entries.hashes))
    return Matches(np.concatenate(rows), np.concatenate(places))


def _ngrams(texts: pa.StringArray, *, at_most: int = WORDS_AT_MOST, whole: bool = False) -> tuple[Numbers, Hashes, int]:
    """Rows and hashes of all n-grams of up to so many words, and the longest n; with `whole`, only of all words."""
    rows, word = words.unigrams(words.scan(texts))
    size = np.bincount(rows, minlength=len(texts))
    of_rows, of_hashes, longest, hashes = list[Numbers](), list[Hashes](), 0, word
    for n in range(1, at_most + 1):
        if n > 1:
            hashes = _mixed((hashes[:-1] * BIGRAM) ^ word[n - 1 :]) if len(hashes) > 1 else hashes[:0]
        first, last = rows[: len(hashes)], rows[n - 1 : n - 1 + len(hashes)]
        inside = first == last
        if whole:  # the n-gram that begins a row and has all of its words
            begins = np.r_[True, rows[1:] != rows[:-1]][: len(hashes)]
            inside &= begins & (size[first] == n)
        of_rows.append(first[inside])
        of_hashes.append(hashes[inside])
        longest = n if inside.any() else longest
    return np.concatenate([np.zeros(0, np.int64), *of_rows]), np.concatenate([word[:0], *of_hashes]), longest


def _mixed(h: Hashes) -> Hashes:
    h = (h ^ (h >> np.uint64(30))) * MIX_1
    h = (h ^ (h >> np.uint64(27))) * MIX_2
    return h ^ (h >> np.uint64(31))


def limit_of(counts: Numbers, tail: float) -> int:
    """The largest t so that entries in fewer than t captions have at most this share of all matches."""
    rising = np.sort(counts[counts > 0])
    if not len(rising):
        return 1
    below = np.r_[0, np.cumsum(rising)[:-1]]  # matches of the entries before, which have fewer or as many
    first = np.flatnonzero(np.r_[True, np.diff(rising) > 0])
    fits = first[below[first] <= tail * rising.sum()]
    return int(rising[fits[-1]])


def probabilities(matches: Matches, counts: Numbers, limit: int, rows: int) -> npt.NDArray[np.float64]:
    """How likely each of n captions stays: float64[n]; `counts` are captions of each entry, over the whole pool."""
    stays = np.minimum(1.0, limit / np.maximum(counts[matches.entries], 1))
    goes = np.ones(rows)
    np.multiply.at(goes, matches.rows, 1.0 - stays)
    return 1.0 - goes


def coins(keys: npt.NDArray[np.bytes_], seed: int) -> npt.NDArray[np.float64]:
    """A number from 0 to 1 for each key (S32, hex digits): the same for the same key and seed."""
    halves = np.array([[int(key[:16], 16), int(key[16:], 16)] for key in keys.tolist()], np.uint64).reshape(-1, 2)
    with np.errstate(over="ignore"):
        mixed = _mixed(halves[:, 0] ^ _mixed(halves[:, 1] + np.uint64(seed) * STEP_1))
    return (mixed >> np.uint64(11)) / float(1 << 53)
