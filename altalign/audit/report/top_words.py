"""The most common words and bigrams of kept captions, and of those that a text rule dropped.

Counted on a sample of bounded size, whatever the run has: rows at even distances, in row groups at even distances.
Side-cars are in the order of image_id, a hash; dropped rows are in the order of the input.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.audit import run_parquet
from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import KEPT, DropReason, Stage, stages_of
from altalign.errors import UnreadableError
from altalign.filters import one_caption, words

CAPTIONS_AT_MOST = 10_000  # of each side
GROUPS_AT_MOST = 16  # row groups that are read of each side, of as many files or fewer
CHARACTERS_AT_MOST = 1_000  # of a caption
MOST = 25  # words of each side, and as many bigrams
TIMES_AS_COMMON = 2  # what is so much more common on one side is typical of it


@dataclass(frozen=True)
class Ngram:
    """A word, or two, and in how many kept and dropped captions of the sample it is."""

    text: str
    kept: int
    dropped: int


@dataclass(frozen=True)
class Side:
    """The most common n-grams of the kept or of the dropped captions, and whether each is typical of this side."""

    captions: int  # in the sample
    captions_in_all: int
    words: list[tuple[Ngram, bool]]
    bigrams: list[tuple[Ngram, bool]]


@dataclass(frozen=True)
class TopWords:
    """Both sides."""

    kept: Side
    dropped: Side

    @property
    def is_sample(self) -> bool:
        """Whether there are captions that were not counted."""
        return any(side.captions < side.captions_in_all for side in (self.kept, self.dropped))


def of_run(run: RunFolder, counts: Counter[tuple[str, str]]) -> TopWords | None:
    """Counts the words of a run; None if it did not keep its dropped rows.

    Args:
        run: the run, finished.
        counts: rows by stage and reason.

    Raises:
        UnreadableError: a side-car or a file of dropped rows is damaged.
    """
    if not run.config.audit.keep_dropped:
        return None
    by_text = [n for (stage, reason), n in counts.items() if stage == Stage.JUDGE and reason not in _NOT_BY_TEXT]
    in_all = counts[stages_of(stage for stage, _ in counts)[-1].value, KEPT], sum(by_text)
    return compared(list(_sample(run, "shards")), list(_sample(run, "dropped", Stage.JUDGE.value)), in_all)


_NOT_BY_TEXT = (KEPT, DropReason.PAIR_REPEATED.value)  # a repeated pair has the caption of one that stays


def compared(kept: Sequence[str], dropped: Sequence[str], in_all: tuple[int, int]) -> TopWords:
    """The most common n-grams of two samples of captions; `in_all` says how many captions each was drawn from."""
    found = [_Sample(sample) for sample in (kept, dropped)]
    return TopWords(*(_side(found, in_all, own) for own in range(2)))


class _Sample:
    """The n-grams of captions by their hashes; words first, then bigrams.

    Attributes:
        size: how many captions there are.
        hashes: of both kinds, the distinct ones, sorted: uint64[n].
        counts: in how many captions each is: int64[n].
    """

    def __init__(self, captions: Sequence[str]):
        self.size, self._captions = len(captions), [caption[:CHARACTERS_AT_MOST] for caption in captions]
        hashes, rows, places = self._scanned()
        self.hashes, self.counts, self._first = [], [], []
        for is_kind in ((places == 0) | (places % 2 == 1), (places > 0) & (places % 2 == 0)):  # in the order of a scan
            at = np.flatnonzero(is_kind)
            at = at[np.lexsort((rows[at], hashes[at]))]
            same_hash, same_row = (of[at][1:] == of[at][:-1] for of in (hashes, rows))
            at = at[np.r_[True, ~(same_hash & same_row)][: len(at)]]  # once a caption
            distinct, first, counts = np.unique(hashes[at], return_index=True, return_counts=True)
            self.hashes.append(distinct)
            self.counts.append(counts)
            self._first.append(np.stack([rows[at[first]], places[at[first]]], axis=1))

    def _scanned(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The hash of each n-gram, the number of its caption, and its place there: uint64[m], int64[m], int64[m]."""
        hashes, lengths = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
        for begin in range(0, self.size, words.BLOCK):
            found = words.scan(pa.array(self._captions[begin : begin + words.BLOCK]), words.thread_scratch())
            hashes.append(found.ngrams.copy())
            lengths.append(np.diff(found.ends, prepend=0))
        of_row = np.concatenate(lengths)
        places = np.arange(of_row.sum()) - np.repeat(np.cumsum(of_row) - of_row, of_row)
        return np.concatenate(hashes), np.repeat(np.arange(len(of_row)), of_row), places

    def most_common(self, kind: int) -> Iterator[tuple[str, np.uint64]]:
        """Yields the most common n-grams with their hashes; where counts are equal, those first in the alphabet."""
        counts = self.counts[kind]
        at_least = np.partition(counts, -MOST)[-MOST] if len(counts) > MOST else 0
        ngrams = cache(lambda row: one_caption.ngrams_of(self._captions[row]))
        at = np.flatnonzero(counts >= at_least).tolist()
        where = self._first[kind][at].tolist()
        told = [(-counts[i], ngrams(row)[place], i) for i, (row, place) in zip(at, where, strict=True)]
        for _, text, i in sorted(told)[:MOST]:
            yield text, self.hashes[kind][i]

    def count(self, kind: int, hash_: np.uint64) -> int:
        """In how many captions an n-gram is."""
        at = int(np.searchsorted(self.hashes[kind], hash_))
        return int(self.counts[kind][at]) if at < len(self.hashes[kind]) and self.hashes[kind][at] == hash_ else 0


def _side(samples: Sequence[_Sample], in_all: Sequence[int], own: int) -> Side:
    sizes = [sample.size for sample in samples]
    ngrams = []
    for kind in range(2):
        found = samples[own].most_common(kind)
        told = [Ngram(text, *(sample.count(kind, hash_) for sample in samples)) for text, hash_ in found]
        ngrams.append([(ngram, _is_typical((ngram.kept, ngram.dropped), sizes, own)) for ngram in told])
    return Side(sizes[own], in_all[own], *ngrams)


def _is_typical(counts: Sequence[int], sizes: Sequence[int], own: int) -> bool:
    """Whether an n-gram is so much more common, by share of the captions, on its own side."""
    other = 1 - own
    return counts[own] * sizes[other] >= TIMES_AS_COMMON * counts[other] * sizes[own]


# The sample -----------------------------------------------------------------------------------------------------------


def _sample(run: RunFolder, *folder: str) -> Iterator[str]:
    """Captions of the files of a folder, but for repeated pairs, which have files of their own."""
    names = [name for name in storage.names(run.path(*folder), ".parquet") if not name.startswith("repeated-")]
    paths = [run.path(*folder, names[number]) for number in run_parquet.spread(len(names), GROUPS_AT_MOST)]
    of_file = GROUPS_AT_MOST // max(1, len(paths))
    for path in paths:
        most = CAPTIONS_AT_MOST // len(paths)
        groups = [
            _thinned(rows["caption"], most) for rows in run_parquet.row_groups(path, ["caption"], at_most=of_file)
        ]
        for captions in groups:
            try:
                yield from (caption or "" for caption in _thinned(captions, most // len(groups)).to_pylist())
            except UnicodeDecodeError as error:
                raise UnreadableError(f"{path}: cannot be read as Parquet (a string is not UTF-8)") from error


def _thinned(captions: Any, at_most: int) -> Any:
    """These captions (an Arrow column), or so many at even distances."""
    return captions.take(pa.array(run_parquet.spread(len(captions), at_most), pa.int64()))
