"""The most common words and bigrams of kept captions, and of those that a text rule dropped.

Counted on a sample of bounded size, whatever the run has: rows at even distances, in row groups at even distances.
Side-cars are in the order of image_id, a hash; dropped rows are in the order of the input.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any

import pyarrow as pa

from altalign import storage
from altalign.audit import run_parquet
from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import KEPT, DropReason, Stage, stages_of
from altalign.errors import UnreadableError
from altalign.filters import one_caption

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

    Raises UnreadableError: a side-car or a file of dropped rows is damaged.

    Args:
        run: the run, finished.
        counts: rows by stage and reason.
    """
    if not run.config.audit.keep_dropped:
        return None
    by_text = [n for (stage, reason), n in counts.items() if stage == Stage.JUDGE and reason not in _NOT_BY_TEXT]
    in_all = counts[stages_of(stage for stage, _ in counts)[-1].value, KEPT], sum(by_text)
    return compared(_sample(run, "shards"), _sample(run, "dropped", Stage.JUDGE.value), in_all)


_NOT_BY_TEXT = (KEPT, DropReason.PAIR_REPEATED.value)  # a repeated pair has the caption of one that stays


def compared(kept: Iterable[str], dropped: Iterable[str], in_all: tuple[int, int]) -> TopWords:
    """The most common n-grams of two samples of captions; `in_all` says how many captions each was drawn from."""
    counts, sizes = [Counter[str](), Counter[str]()], [0, 0]
    for own, captions in enumerate((kept, dropped)):
        for caption in captions:
            sizes[own] += 1
            counts[own].update({*one_caption.ngrams_of(caption[:CHARACTERS_AT_MOST])})

    def most_common(own: int, *, is_bigram: bool) -> list[tuple[Ngram, bool]]:
        of_kind = [(-number, text) for text, number in counts[own].items() if (" " in text) == is_bigram]
        ngrams = [Ngram(text, counts[0][text], counts[1][text]) for _, text in nsmallest(MOST, of_kind)]
        return [(ngram, _is_typical((ngram.kept, ngram.dropped), sizes, own)) for ngram in ngrams]

    sides = [most_common(own, is_bigram=is_bigram) for own in range(2) for is_bigram in (False, True)]
    return TopWords(Side(sizes[0], in_all[0], *sides[:2]), Side(sizes[1], in_all[1], *sides[2:]))


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
