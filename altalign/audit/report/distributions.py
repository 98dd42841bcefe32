"""Histograms of what the rules measure, with their thresholds; and what each rule would keep at another threshold.

A curve is exact for its stage: the run counts apart what another rule drops.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.audit import rows as run_rows
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import (
    ASPECT_AT_MOST,
    EXACT_BELOW,
    IMAGE_MEASURES,
    MEASURED,
    SHORT_SIDE_AT_MOST,
    SIMILARITY,
    TEXT_MEASURES,
    WORDS_AT_MOST,
)
from altalign.dedup.hash_tables import log2_counts
from altalign.rules.rule import value_of

BINS = 40  # about
# Larger values are counted as this one.
_LARGEST = {"words": WORDS_AT_MOST, "short_side_px": SHORT_SIDE_AT_MOST, "aspect_percent": ASPECT_AT_MOST}

Truths = npt.NDArray[np.bool_]  # bool[n]


@dataclass(frozen=True)
class Bin:
    """One bar or stop: how many are kept, and how many dropped."""

    label: str
    kept: int
    dropped: int


@dataclass(frozen=True)
class Threshold:
    """A threshold and the number of the bin that it stands before; of a curve, the stop that it stands at."""

    label: str
    at: int


@dataclass(frozen=True)
class Names:
    """What the numbers count, and what the two colours mean; `dropped` is empty where there is one."""

    counted: str
    kept: str
    dropped: str


@dataclass(frozen=True)
class Distribution:
    """A histogram of a measure, or the curve of a threshold. Without bins where nothing was measured."""

    key: str  # its name in links
    title: str
    names: Names
    bins: tuple[Bin, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    is_log: bool = False  # heights are logarithmic, for bars that differ much; then no bin has both colours
    is_curve: bool = False
    note: str = ""


class Measured(NamedTuple):
    """n values: how many candidates have each (int64[n] both), and whether no rule on anything else drops them."""

    values: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    passes_others: Truths

    def where(self, chosen: Truths) -> "Measured":
        """Some of the values."""
        return Measured(self.values[chosen], self.rows[chosen], self.passes_others[chosen])


TEXT = Names("candidates", "pass every text rule", "fail a text rule")
IMAGE = Names("candidates", "pass every image rule", "fail an image rule")


class Cut(NamedTuple):
    """A threshold of a run. Its stops are named by their first values, less `minus`: "at most 3" is below 4."""

    setting: str
    first: int  # the first value above it
    line: str  # the threshold in words
    keeps_above: bool
    minus: int = 0


def of_run(run: RunFolder) -> list[Distribution]:
    """The histograms and curves of a run, in the order of rules; those that it has no values for are left out."""
    text, image = run.config.text, run.config.image
    least, most, side = text.words_at_least, text.words_at_most, image.short_side_above_px
    end = min(WORDS_AT_MOST, max(2 * most, 30))
    words = {*range(0, end, -(-end // BINS) if end > 60 else 1), end, least, most + 1}
    of_words = [
        Cut("text.words_at_least", least, f"at least {least}", keeps_above=True),
        Cut("text.words_at_most", most + 1, f"at most {most}", keeps_above=False, minus=1),
    ]
    of_side = Cut("image.short_side_above_px", side + 1, f"above {side:,} px", keeps_above=True, minus=1)
    aspect, nsfw = image.aspect_ratio_below, image.nsfw.drop_at_or_above
    of_aspect = Cut("image.aspect_ratio_below", hundredths(aspect), f"below {aspect:g}", keeps_above=False)
    of_nsfw = Cut("image.nsfw.drop_at_or_above", hundredths(nsfw), f"{nsfw:g} or more", keeps_above=False)
    end = min(ASPECT_AT_MOST, max(2 * of_aspect.first - 100, 300))
    ratios = range(100, end, max(10, (end - 100) // BINS // 5 * 5))
    sides, scores = range(1, SHORT_SIDE_AT_MOST, 25), range(0, 100, 5)
    drawn = [
        *_charts(run, "words", "Words of a caption", words, of_words),
        *_vocabulary(run, text.vocabulary_size),
        *_shared(run, "text.images_per_text_at_most", "Images of a text", "distinct texts"),
        *_shared(run, "image.texts_per_image_at_most", "Texts of an image", "distinct images"),
        *_charts(run, "short_side_px", "Short side of an image", _aligned(sides, of_side), [of_side]),
        *_charts(
            run, "aspect_percent", "Aspect ratio of an image", _aligned(ratios, of_aspect), [of_aspect], scale=100
        ),
        *_cosines(run),
    ]
    if image.nsfw.model:
        drawn += _charts(run, "nsfw_percent", "NSFW score", _aligned(scores, of_nsfw), [of_nsfw], scale=100)
    return [each for each in drawn if each.bins]


def hundredths(limit: float) -> int:
    """A limit in hundredths, rounded up; values compared with it are rounded down.

    The limit counts as it is written in decimals: in binary, 100 * 2.2 is more than 220.
    """
    return ceil(100 * Fraction(str(limit)))


def _aligned(bins: range, cut: Cut) -> set[int]:
    """Edges of bins of one width, of which one begins at the threshold."""
    begin = bins.start + (cut.first - bins.start) % bins.step
    return {bins.start, *range(begin, bins.stop, bins.step), cut.first, bins.stop}


# The two kinds of charts ----------------------------------------------------------------------------------------------


def histogram(
    drawn: Distribution,
    some: Measured,
    kept: Truths,
    edges: Sequence[int],
    lines: Mapping[int, str],
    *,
    scale: int = 1,
    labels: Sequence[str] = (),
) -> Distribution:
    """A histogram between `edges`, the first values of bins; `kept` says of each value whether it was kept.

    `lines` are thresholds in words, by the edge on whose sides they part values. `scale` is how many make 1. Empty bins
    at the end are left out, except those before a threshold and the one after it.
    """
    at = np.maximum(np.searchsorted(edges, some.values, side="right") - 1, 0)
    sums = np.zeros((2, len(edges)), np.int64)
    np.add.at(sums, (kept.astype(np.int64), at), some.rows)
    if not sums.any():
        return drawn
    if not labels:
        digits, last = len(str(scale)) - 1, 1 if scale == 1 else 0  # ranges of whole numbers name their last one
        texts = [(f"{a / scale:,.{digits}f}", f"{(b - last) / scale:,.{digits}f}") for a, b in pairwise(edges)]
        labels = [first if first == end else f"{first}\u2013{end}" for first, end in texts]
        labels = [*labels, f"{edges[-1] / scale:,.{digits}f} or more"]
    thresholds = tuple(Threshold(label, edges.index(first)) for first, label in lines.items())
    used = 1 + max([*np.flatnonzero(sums.any(axis=0)).tolist(), *(each.at for each in thresholds)])
    bins = tuple(Bin(labels[place], int(sums[1, place]), int(sums[0, place])) for place in range(used))
    return replace(drawn, bins=bins, thresholds=thresholds)


def curve(
    setting: str, names: Names, some: Measured, stops: Mapping[int, str], own: int, *, keeps_above: bool
) -> Distribution:
    """What passes every rule with the threshold of a setting at each stop, and what is then dropped.

    Stops are thresholds in words by the first value above each: one keeps values from that on, or those below it. `own`
    is the stop of the run. Without bins where every stop keeps the same.
    """
    some, stops = some.where(some.passes_others), dict(sorted(stops.items()))
    every, below = int(some.rows.sum()), [int(some.rows[some.values < first].sum()) for first in stops]
    kept = [every - each if keeps_above else each for each in below]
    bins = tuple(Bin(label, each, every - each) for label, each in zip(stops.values(), kept, strict=True))
    at = tuple(Threshold("this run", place) for place, first in enumerate(stops) if first == own)
    names = Names(names.counted, names.kept, "fail this rule alone")
    return Distribution(setting.rpartition(".")[2], setting, names, bins if len({*kept}) > 1 else (), at, is_curve=True)


# Measures -------------------------------------------------------------------------------------------------------------


def _measured(run: RunFolder, name: str) -> Measured:
    """A measure of text or image; without values where nothing was measured, or the run has no file."""
    tables = [run_rows.of_audit(run, file) or MEASURED.empty_table() for file in (TEXT_MEASURES, IMAGE_MEASURES)]
    table = pa.concat_tables(tables).filter((pc.field("measure") == name) & pc.field("value").is_valid())
    fails = table["fails_otherwise"].to_numpy().astype(bool)
    return Measured(table["value"].to_numpy().astype(np.int64), table["rows"].to_numpy(), ~fails)


def _of_pool(run: RunFolder, name: str) -> Measured:
    """What `tables` counted over the whole pool; without values where the run has no such histogram."""
    entries = np.array(run.json("audit/histograms.json").get(name, []), np.int64).reshape(-1, 2)
    return Measured(entries[:, 0], entries[:, 1], np.ones(len(entries), bool))


def _charts(
    run: RunFolder, measure: str, title: str, edges: set[int], cuts: Sequence[Cut], *, scale: int = 1
) -> Iterator[Distribution]:
    """The histogram of a measure, and a curve for each of its thresholds, whose stops are the edges of bins."""
    some, names, ordered = _measured(run, measure), TEXT if measure == "words" else IMAGE, sorted(edges)
    passes = {cut: (some.values >= cut.first) == cut.keeps_above for cut in cuts}
    kept = np.logical_and.reduce([some.passes_others, *passes.values()])
    yield histogram(
        Distribution(measure, title, names), some, kept, ordered, {cut.first: cut.line for cut in cuts}, scale=scale
    )
    most = _LARGEST.get(measure, ordered[-1])
    for cut in cuts:
        others = np.logical_and.reduce([some.passes_others, *(passes[other] for other in cuts if other != cut)])
        stops = {edge: f"{(edge - cut.minus) / scale:,.10g}" for edge in ordered[1:] if edge <= most}
        yield curve(cut.setting, names, some.where(others), stops, cut.first, keeps_above=cut.keeps_above)


def _vocabulary(run: RunFolder, size: int) -> Iterator[Distribution]:
    """By the count of a caption's rarest n-gram, as levels of 8 x log2: 0 is outside the vocabulary, 255 no n-gram.

    Of n-grams outside its vocabulary the run did not count how often a caption has them, so the curve has smaller ones.
    """
    every, counted = _measured(run, "rarest_log2"), _of_pool(run, "ngram_count")
    levels = every.where(every.values < 255)
    if not levels.values.any():  # all n-grams of the pool are in the vocabulary
        return
    octaves = range(12, 256, 8)
    labels = ["outside", "\u2248\u20092", *(f"\u2248\u2009{2 ** ((level + 4) // 8):,}" for level in octaves)]
    note = "By how often the pool has it; each bar is an octave."
    drawn = Distribution("rarest_log2", "Rarest n-gram of a caption", TEXT, note=note)
    kept = levels.passes_others & (levels.values > 0)
    yield histogram(drawn, levels, kept, [0, 1, *octaves], {1: "vocabulary"}, labels=labels)
    stops, of_counts = {1: f"{size:,}"}, log2_counts(counted.values)
    least = levels.values[levels.values > 0].min()
    for level in range(4, int(levels.values.max()) + 1, 4):
        ngrams = int(counted.rows[of_counts >= level].sum())
        if level > least and 0 < ngrams < size:
            stops[level] = f"{ngrams:,}"
    yield curve("text.vocabulary_size", TEXT, levels, stops, 1, keeps_above=True)


def _shared(run: RunFolder, setting: str, title: str, counted: str) -> Iterator[Distribution]:
    """Images of a text, or texts of an image, over the whole pool. Looser stops only: within the limit is 0."""
    limit, name = int(value_of(run.config, setting)), setting.partition(".")[2].removesuffix("_at_most")
    pool, over = _of_pool(run, name), _measured(run, name)

    def growing(most: int) -> set[int]:
        """Every number up to 10, then 20, 50, 100, … up to `most`."""
        return {*range(1, 11), *(n * 10**power for power in range(1, len(str(most))) for n in (1, 2, 5))}

    edges = sorted({*growing(int(pool.values.max(initial=1))), int(pool.values.min(initial=1)), limit + 1})
    names, note = Names(counted, "within the limit", "above it"), "Over the whole pool, before any rule."
    drawn = Distribution(name, title, names, is_log=True, note=note)
    yield histogram(drawn, pool, pool.values <= limit, edges, {limit + 1: f"at most {limit:,}"})
    exact = (count for count in growing(EXACT_BELOW) if limit < count < EXACT_BELOW)
    stops = {1: f"{limit:,}", **{count + 1: f"{count:,}" for count in exact}, 2**62: "no limit"}
    # Levels are eighths of an octave: one stop an octave, at the largest count of a level, where the sum is exact.
    for level in range(EXACT_BELOW + 87, int(over.values.max(initial=0)), 8):
        largest = int(2 ** ((2 * (level - EXACT_BELOW) + 1) / 16))
        if largest > max(limit, EXACT_BELOW):
            stops[level + 1] = f"{largest:,}"
    yield curve(setting, TEXT, over, stops, 1, keeps_above=False)


def _cosines(run: RunFolder) -> Iterator[Distribution]:
    table: Any = run_rows.of_audit(run, SIMILARITY)
    if not table:  # no test set was named
        return
    near = run.json("audit/near_duplicates/found.json")
    above = near.get("similarity_above", run.config.decontaminate.similarity_above)
    is_far = table["verdict"].to_numpy() != "above"
    cosines = Measured(table["cosine_permille"].to_numpy(), table["pairs"].to_numpy(), is_far)
    first = round(above * 1_000_000) // 1_000
    smallest = int(cosines.values.min(initial=first))
    step = 5 if smallest >= first - 200 else 10
    edges = [*range(first - -((smallest - first) // step) * step, 1_001, step)]
    names = Names("pairs of a pool image and a test image", "not near", "near-duplicates")
    note = "Every pair above the threshold; below it, the nearest pairs of a sample of the images."
    drawn = Distribution("cosine", "Cosine with the nearest test images", names, is_log=True, note=note)
    yield histogram(drawn, cosines, is_far, edges, {first: f"above {above:g}"}, scale=1_000)
