"""Distributions of the measured values, kept and dropped, with the thresholds between bins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.audit.report import files
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import (
    ASPECT_AT_MOST,
    IMAGE_MEASURES,
    MEASURED,
    SHORT_SIDE_AT_MOST,
    SIMILARITY,
    TEXT_MEASURES,
    WORDS_AT_MOST,
)
from altalign.errors import UnreadableError

LARGEST = 2**62  # an edge that no value reaches
BINS_ABOUT = 40
HISTOGRAMS = "audit/histograms.json"  # value and how often, by name

Label = Callable[[int, int], str]  # makes a label from the first and the last value of a bin
Numbers = npt.NDArray[np.int64]  # int64[n]
Truths = npt.NDArray[np.bool_]  # bool[n]


@dataclass(frozen=True)
class Bin:
    """One bar: how many values were kept, and how many dropped."""

    label: str
    kept: int
    dropped: int


@dataclass(frozen=True)
class Threshold:
    """A threshold and the number of the bin that it stands before."""

    label: str
    at: int


@dataclass(frozen=True)
class Names:
    """What the numbers count and what the two colours mean."""

    counted: str
    kept: str
    dropped: str


TEXT = Names("candidates", "pass every text rule", "fail a text rule")
IMAGE = Names("candidates", "pass every image rule", "fail an image rule")


@dataclass(frozen=True)
class Distribution:
    """One measured value."""

    key: str = ""  # its name in links
    title: str = ""  # what was measured
    names: Names = Names("", "", "")  # what is counted
    bins: tuple[Bin, ...] = ()  # the bars, in order
    thresholds: tuple[Threshold, ...] = ()  # those that stand between the bins
    is_log: bool = False  # heights are logarithmic, for bars that differ much; then no bin has both colours
    is_curve: bool = False  # bins are stops of a threshold (`thresholds`), and a threshold stands at a bin
    note: str = ""  # what a reader needs to know
    missing: str = ""  # why there is no distribution; then there are no bins


# What the rules measured, as the run counted it -----------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """n values of a measure: how many candidates have each, and whether no rule on anything else drops them."""

    values: Numbers
    rows: Numbers
    passes_others: Truths

    def where(self, chosen: Truths) -> "Measured":
        """Some of the values."""
        return Measured(self.values[chosen], self.rows[chosen], self.passes_others[chosen])


def measured(run: RunFolder, name: str) -> Measured:
    """A measure of text or image that has values; without any where nothing was measured, or the run has no file.

    Raises UnreadableError: the file is damaged.
    """
    is_of_image = name in ("short_side_px", "aspect_percent", "nsfw_percent")
    table = files.table(run, IMAGE_MEASURES if is_of_image else TEXT_MEASURES) or MEASURED.empty_table()
    table = table.filter(pc.and_(pc.equal(table["measure"], pa.scalar(name)), pc.is_valid(table["value"])))
    value, rows, fails = (files.numbers(table, column) for column in ("value", "rows", "fails_otherwise"))
    return Measured(value, rows, fails == 0)


def histogram(run: RunFolder, name: str) -> tuple[Numbers, Numbers]:
    """The values of a histogram of the pool, and how often each occurs; none where the run has no such histogram.

    Raises UnreadableError: they are not as they were written.
    """
    try:
        entries = np.array(files.facts(run, HISTOGRAMS).get(name, []), np.int64).reshape(-1, 2)
    except (ValueError, TypeError, OverflowError) as error:
        why = f"not as it was written ({type(error).__name__}: {error!s:.60})"
        raise UnreadableError(f"{run.path(HISTOGRAMS)}: {why}") from None
    return entries[:, 0], entries[:, 1]


def hundredths(limit: float) -> int:
    """A limit in hundredths, rounded up; values compared with it are rounded down.

    The limit counts as it is written in decimals: in binary, 100 * 2.2 is more than 220.
    """
    return ceil(100 * Fraction(str(limit)))


# Bins ----------------------------------------------------------------------------------------------------------------


def binned(
    drawn: Distribution,
    values: npt.ArrayLike,
    kept: npt.ArrayLike,
    rows: npt.ArrayLike,
    edges: Sequence[int],
    label: Label,
    named: Sequence[tuple[str, int]] = (),
) -> Distribution:
    """A distribution with its bins, and its thresholds between them.

    Values are int[n], none below the first of the edges, which are first values of bins; `kept` says of each whether it
    was kept, `rows` how often it occurs. The last value of the last bin is `LARGEST`. `named` are thresholds, each with
    the first value on its other side, which is an edge. Empty bins at the end are left out, except those before a
    threshold and the one after it.
    """
    at = np.searchsorted(np.asarray(edges, np.int64), np.asarray(values, np.int64), side="right") - 1
    sums = np.zeros((2, len(edges)), np.int64)
    np.add.at(sums, (np.asarray(kept, np.int64), at), np.asarray(rows, np.int64))
    last = [edge - 1 for edge in edges[1:]] + [LARGEST]
    lines = tuple(Threshold(name, edges.index(first)) for name, first in named)
    used = 1 + max([*np.flatnonzero(sums.any(axis=0)).tolist(), *(line.at for line in lines)]) if sums.any() else 0
    bins = tuple(Bin(label(edges[i], last[i]), int(sums[1, i]), int(sums[0, i])) for i in range(used))
    return replace(drawn, bins=bins, thresholds=lines if used else ())


def _whole(first: int, last: int) -> str:
    return f"{first:,} or more" if last == LARGEST else f"{first:,}" if first == last else f"{first:,}\u2013{last:,}"


def growing(limit: int, most: int) -> list[int]:
    """Edges from 1: every number up to 10, then 20, 50, 100, …, and the number after the limit."""
    edges, step = set(range(1, 11)), 10
    while step <= most:
        edges |= {step, 2 * step, 5 * step}
        step *= 10
    return sorted(edges | {limit + 1})


# Texts ---------------------------------------------------------------------------------------------------------------


def _words(run: RunFolder) -> Distribution:
    words, least, most = measured(run, "words"), run.config.text.words_at_least, run.config.text.words_at_most
    end = min(WORDS_AT_MOST, max(2 * most, 30))
    step = -(-end // BINS_ABOUT) if end > 60 else 1
    limits = {least: f"at least {least}"} | ({most + 1: f"at most {most}"} if most < WORDS_AT_MOST else {})
    edges = sorted({*range(0, end, step), end, *limits})
    kept = words.passes_others & (words.values >= least) & (words.values <= most)
    named = [(label, first) for first, label in limits.items() if first > 0]
    drawn = Distribution(names=TEXT, note="Repeated pairs are counted every time.")
    return binned(drawn, words.values, kept, words.rows, edges, _whole, named)


def _rarest(run: RunFolder) -> Distribution:
    """Bins of one octave of the count each; a level is 8 x log2 of a count, rounded."""
    every = measured(run, "rarest_log2")
    levels = every.where(every.values < 255)
    if not levels.values.any():
        return Distribution(missing="Every n-gram of the pool is in the vocabulary, so none was looked up.")

    def label(first: int, _: int) -> str:
        return "outside" if first == 0 else f"\u2248\u2009{2 ** ((first + 4) // 8):,}" if first > 1 else "\u2248\u20092"

    kept = levels.passes_others & (levels.values > 0)
    without = int(every.rows.sum() - levels.rows.sum())
    note = "By how often the pool has it; each bar is an octave."
    note += f" {without:,} candidates without a word are left out." if without else ""
    drawn, edges = Distribution(names=TEXT, note=note), [0, 1, *range(12, 256, 8)]
    return binned(drawn, levels.values, kept, levels.rows, edges, label, [("vocabulary", 1)])


def _shared(run: RunFolder) -> Distribution:
    return _in_pool(run, "images_per_text", "distinct texts", run.config.text.images_per_text_at_most)


def _captioned(run: RunFolder) -> Distribution:
    return _in_pool(run, "texts_per_image", "distinct images", run.config.image.texts_per_image_at_most)


def _in_pool(run: RunFolder, name: str, counted: str, limit: int) -> Distribution:
    """What `tables` counted over the whole pool; no bin straddles the limit."""
    values, rows = histogram(run, name)
    edges = growing(limit, int(values.max(initial=1)))
    edges = edges if values.all() else [0, *edges]
    names = Names(counted, "within the limit", "above it")
    drawn = Distribution(names=names, is_log=True, note="Over the whole pool, before any rule.")
    return binned(drawn, values, values <= limit, rows, edges, _whole, [(f"at most {limit:,}", limit + 1)])


def _ngrams(run: RunFolder) -> Distribution:
    vocabulary, (values, rows) = files.facts(run, "tables/vocabulary.json"), histogram(run, "ngram_count")
    if not vocabulary:
        return Distribution(missing="This run has no tables/vocabulary.json, so there is nothing to draw.")
    least = 1 if vocabulary["all"] else int(vocabulary["threshold"])
    edges = sorted({*(2**power for power in range(int(values.max(initial=1)).bit_length())), least})
    named = [] if vocabulary["all"] else [(f"seen {least:,} times or more", least)]
    inside = int(rows[values >= least].sum())
    size = int(vocabulary.get("vocabulary_size", inside))
    note = f"the vocabulary has {inside:,} of {int(rows.sum()):,}"
    if vocabulary["all"]:
        note = "all n-grams are in the vocabulary"
    elif inside > size:
        note += f", more than vocabulary_size = {size:,} because ties with the last one are included"
    names = Names("distinct n-grams", "in the vocabulary", "outside")
    drawn = Distribution(names=names, is_log=True, note=f"Unigrams and bigrams together; {note}.")
    return binned(drawn, values, values >= least, rows, edges, _whole, named)


# Images --------------------------------------------------------------------------------------------------------------


def _short_side(run: RunFolder) -> Distribution:
    """Bins of one width, placed so that one begins just above the limit."""
    sides, limit = measured(run, "short_side_px"), run.config.image.short_side_above_px
    step, first = 25, min(limit + 1, SHORT_SIDE_AT_MOST)
    edges = sorted({1, *range(first % step or step, SHORT_SIDE_AT_MOST, step), first, SHORT_SIDE_AT_MOST})
    kept = sides.passes_others & (sides.values > limit)
    drawn = Distribution(names=IMAGE, note="Pixels as stored, of images whose size is known.")
    return binned(drawn, sides.values.clip(1), kept, sides.rows, edges, _whole, [(f"above {limit:,} px", first)])


def _aspect(run: RunFolder) -> Distribution:
    ratios, limit = measured(run, "aspect_percent"), run.config.image.aspect_ratio_below
    below = min(hundredths(limit), ASPECT_AT_MOST)
    end = min(ASPECT_AT_MOST, max(2 * below - 100, 300))
    step = max(10, (end - 100) // BINS_ABOUT // 5 * 5)
    edges = sorted({100, *range(100 + (below - 100) % step, end, step), below, end})

    def label(first: int, last: int) -> str:
        return f"{first / 100:g} or more" if last == LARGEST else f"{first / 100:.2f}\u2013{(last + 1) / 100:.2f}"

    kept = ratios.passes_others & (ratios.values < hundredths(limit))
    drawn = Distribution(names=IMAGE, note="Long side to short side, of images whose size is known.")
    return binned(drawn, ratios.values.clip(100), kept, ratios.rows, edges, label, [(f"below {limit:g}", below)])


def _nsfw(run: RunFolder) -> Distribution:
    scores, least = measured(run, "nsfw_percent"), run.config.image.nsfw.drop_at_or_above
    first = min(100, hundredths(least))

    def label(low: int, high: int) -> str:
        return f"{low / 100:.2f}" + (" or more" if high == LARGEST else "")

    kept = scores.passes_others & (scores.values < hundredths(least))
    drawn = Distribution(names=IMAGE, note="The score of the classifier, for images that decode.")
    edges = sorted({0, *range(first % 5, 100, 5), first})
    return binned(drawn, scores.values, kept, scores.rows, edges, label, [(f"{least:g} or more", first)])


def _cosines(run: RunFolder) -> Distribution:
    pairs = files.table(run, SIMILARITY)
    assert pairs is not None  # or it would not be drawn
    facts = files.facts(run, "audit/near_duplicates/found.json")
    above = facts.get("similarity_above", run.config.decontaminate.similarity_above)
    value, rows = files.numbers(pairs, "cosine_permille"), files.numbers(pairs, "pairs")
    first = round(above * 1_000_000) // 1_000
    step = 5 if value.min(initial=first) >= first - 200 else 10
    below = first - int(value.min(initial=first))
    edges = [*range(first - -(-below // step) * step, 1_001, step)]

    def label(low: int, high: int) -> str:
        return f"{low / 1000:.3f}" + (" or more" if high == LARGEST else "")

    is_far = np.array([verdict != "above" for verdict in pairs["verdict"].to_pylist()], bool)
    names = Names("pairs of a pool image and a test image", "not near", "near-duplicates")
    note = "Every pair above the threshold; below it, the nearest pairs of a sample of the images."
    drawn = Distribution(names=names, is_log=True, note=note)
    return binned(drawn, value, is_far, rows, edges, label, [(f"above {above:g}", first)])


# Key, title, the file that it is drawn from, and the function that draws it.
_EVERY = (
    ("words", "Words of a caption", TEXT_MEASURES.path, _words),
    ("rarest", "Rarest n-gram of a caption", TEXT_MEASURES.path, _rarest),
    ("images_per_text", "Images of a text", HISTOGRAMS, _shared),
    ("texts_per_image", "Texts of an image", HISTOGRAMS, _captioned),
    ("ngram_count", "Count of an n-gram", HISTOGRAMS, _ngrams),
    ("short_side", "Short side of an image", IMAGE_MEASURES.path, _short_side),
    ("aspect", "Aspect ratio of an image", IMAGE_MEASURES.path, _aspect),
    ("cosine", "Cosine with the nearest test images", SIMILARITY.path, _cosines),
    ("nsfw", "NSFW score", IMAGE_MEASURES.path, _nsfw),
)


def of_run(run: RunFolder) -> list[Distribution]:
    """All distributions in the order of stages, with those that the run has no data for at the end.

    Raises UnreadableError: a file of them is damaged.
    """
    unset = {}
    if not run.config.decontaminate.test_sets:
        unset["cosine"] = "No test set was named ([decontaminate] test_sets), so nothing was compared."
    if not run.config.image.nsfw.model:
        unset["nsfw"] = "No classifier was set ([image.nsfw] model), so no image has a score."
    drawn = []
    for key, title, path, draw in _EVERY:
        missing = "" if storage.exists(run.path(path)) else f"This run has no {path}, so there is nothing to draw."
        missing = unset.get(key, missing)
        each = Distribution(missing=missing) if missing else draw(run)
        drawn.append(replace(each, key=key, title=title))
    return sorted(drawn, key=lambda each: not each.bins)
