"""The most common words and bigrams of kept captions, and of those that a text rule dropped.

Counted on a sample of bounded size, whatever the run has: rows at even distances, in row groups at even distances.
Side-cars are in the order of image_id, a hash; dropped rows are in the order of the input.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from altalign import storage
from altalign.audit import run_parquet
from altalign.audit.run_folder import RunFolder
from altalign.errors import UnreadableError
from altalign.filters import one_caption
from altalign.reasons import KEPT, DropReason, Stage, stages_of

CAPTIONS_AT_MOST = 10_000  # of each side: under a second of counting
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
    samples = kept, dropped
    found = [_counted(sample) for sample in samples]
    return TopWords(*(_side(samples, in_all, found, own) for own in range(2)))


Counts = tuple[Counter[str], Counter[str]]  # captions that have a word, captions that have a bigram


def _counted(captions: Sequence[str]) -> Counts:
    of_words, of_bigrams = Counter[str](), Counter[str]()
    for caption in captions:
        for ngram in set(one_caption.ngrams_of(caption[:CHARACTERS_AT_MOST])):
            (of_bigrams if " " in ngram else of_words)[ngram] += 1
    return of_words, of_bigrams


def _side(samples: Sequence[Sequence[str]], in_all: Sequence[int], found: Sequence[Counts], own: int) -> Side:
    sizes = [len(sample) for sample in samples]
    ngrams = []
    for kept, dropped in zip(*found, strict=True):  # words, then bigrams
        here = (kept, dropped)[own]
        most = sorted(here, key=lambda text: (-here[text], text))[:MOST]
        told = [Ngram(text, kept[text], dropped[text]) for text in most]
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
