"""Distributions of the measured values, kept and dropped, with the thresholds between bins."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from altalign.audit import rows as run_rows
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


@dataclass(frozen=True)
class Distribution:
    """One measured value."""

    key: str  # its name in links
    title: str  # what was measured
    names: Names  # what is counted
    bins: tuple[Bin, ...] = ()  # the bars, in order
    thresholds: tuple[Threshold, ...] = ()  # those that stand between the bins
    is_log: bool = False  # heights are logarithmic, for bars that differ much; then no bin has both colours
    is_curve: bool = False  # bins are stops of a threshold (`thresholds`), and a threshold stands at a bin
    note: str = ""  # what a reader needs to know
    missing: str = ""  # why there is no distribution; then there are no bins


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
    """A measure of text or image that has values; without any where nothing was measured, or the run has no file."""
    is_of_image = name in ("short_side_px", "aspect_percent", "nsfw_percent")
    table = run_rows.of_audit(run, IMAGE_MEASURES if is_of_image else TEXT_MEASURES) or MEASURED.empty_table()
    table = table.filter((pc.field("measure") == name) & pc.field("value").is_valid())
    fails = table["fails_otherwise"].to_numpy().astype(bool)
    return Measured(table["value"].to_numpy().astype(np.int64), table["rows"].to_numpy(), ~fails)


def histogram(run: RunFolder, name: str) -> Measured:
    """The values of a histogram of the pool, and how often each occurs; none where the run has no such histogram."""
    try:
        entries = np.array(run.json(HISTOGRAMS).get(name, []), np.int64).reshape(-1, 2)
    except (ValueError, TypeError, OverflowError) as error:
        why = f"not as it was written ({type(error).__name__}: {error!s:.60})"
        raise UnreadableError(f"{run.path(HISTOGRAMS)}: {why}") from None
    return Measured(entries[:, 0], entries[:, 1], np.ones(len(entries), bool))


def hundredths(limit: float) -> int:
    """A limit in hundredths, rounded up; values compared with it are rounded down.

    The limit counts as it is written in decimals: in binary, 100 * 2.2 is more than 220.
    """
    return ceil(100 * Fraction(str(limit)))


def growing(limit: int, most: int) -> list[int]:
    """Edges from 1: every number up to 10, then 20, 50, 100, …, and the number after the limit."""
    edges, step = set(range(1, 11)), 10
    while step <= most:
        edges |= {step, 2 * step, 5 * step}
        step *= 10
    return sorted(edges | {limit + 1})


def binned(
    drawn: Distribution,
    some: Measured,
    kept: Truths,
    edges: Sequence[int],
    named: Sequence[tuple[str, int]],
    labels: Sequence[str] = (),
) -> Distribution:
    """A distribution with its bins, and its thresholds between them.

    `kept` says of each value whether it was kept. Edges are first values of bins, smaller values are in the first bin;
    labels are those of whole numbers where none are given. `named` are thresholds, each with the first value on its
    other side, which is an edge. Empty bins at the end are left out, except those before a threshold and the one after
    it.
    """
    at = np.maximum(np.searchsorted(edges, some.values, side="right") - 1, 0)
    sums = np.zeros((2, len(edges)), np.int64)
    np.add.at(sums, (kept.astype(np.int64), at), some.rows)
    if not sums.any():
        return drawn
    if not labels:
        ends = [(first, after - 1) for first, after in pairwise(edges)]
        labels = [f"{first:,}" if first == last else f"{first:,}\u2013{last:,}" for first, last in ends]
        labels = [*labels, f"{edges[-1]:,} or more"]
    thresholds = tuple(Threshold(name, edges.index(first)) for name, first in named)
    used = 1 + max([*np.flatnonzero(sums.any(axis=0)).tolist(), *(each.at for each in thresholds)])
    bins = tuple(Bin(labels[place], int(sums[1, place]), int(sums[0, place])) for place in range(used))
    return replace(drawn, bins=bins, thresholds=thresholds)


# Texts ---------------------------------------------------------------------------------------------------------------

TEXT = Names("candidates", "pass every text rule", "fail a text rule")


def _words(run: RunFolder) -> Distribution:
    words, least, most = measured(run, "words"), run.config.text.words_at_least, run.config.text.words_at_most
    end = min(WORDS_AT_MOST, max(2 * most, 30))
    step = -(-end // BINS_ABOUT) if end > 60 else 1
    limits = {least: f"at least {least}"} | ({most + 1: f"at most {most}"} if most < WORDS_AT_MOST else {})
    edges = sorted({*range(0, end, step), end, *limits})
    kept = words.passes_others & (words.values >= least) & (words.values <= most)
    named = [(label, first) for first, label in limits.items() if first > 0]
    drawn = Distribution("words", "Words of a caption", TEXT, note="Repeated pairs are counted every time.")
    return binned(drawn, words, kept, edges, named)


def _rarest(run: RunFolder) -> Distribution:
    """Bins of one octave of the count each; a level is 8 x log2 of a count, rounded."""
    every = measured(run, "rarest_log2")
    levels = every.where(every.values < 255)
    without = int(every.rows.sum() - levels.rows.sum())
    note = "By how often the pool has it; each bar is an octave."
    note += f" {without:,} candidates without a word are left out." if without else ""
    drawn = Distribution("rarest", "Rarest n-gram of a caption", TEXT, note=note)
    if not levels.values.any():
        missing = "Every n-gram of the pool is in the vocabulary, so none was looked up." if len(every.values) else ""
        return replace(drawn, note="", missing=missing)
    octaves = range(12, 256, 8)
    labels = ["outside", "\u2248\u20092", *(f"\u2248\u2009{2 ** ((level + 4) // 8):,}" for level in octaves)]
    kept = levels.passes_others & (levels.values > 0)
    return binned(drawn, levels, kept, [0, 1, *octaves], [("vocabulary", 1)], labels)


def _in_pool(run: RunFolder, name: str, title: str, counted: str, limit: int) -> Distribution:
    """What `tables` counted over the whole pool; no bin straddles the limit."""
    some = histogram(run, name)
    edges = growing(limit, int(some.values.max(initial=1)))
    edges = edges if some.values.all() else [0, *edges]
    names = Names(counted, "within the limit", "above it")
    drawn = Distribution(name, title, names, is_log=True, note="Over the whole pool, before any rule.")
    return binned(drawn, some, some.values <= limit, edges, [(f"at most {limit:,}", limit + 1)])


def _ngrams(run: RunFolder) -> Distribution:
    vocabulary, counted = run.json("tables/vocabulary.json"), histogram(run, "ngram_count")
    names = Names("distinct n-grams", "in the vocabulary", "outside")
    drawn = Distribution("ngram_count", "Count of an n-gram", names, is_log=True)
    if not vocabulary:
        return replace(drawn, missing="This run has no tables/vocabulary.json, so there is nothing to draw.")
    least = 1 if vocabulary["all"] else int(vocabulary["threshold"])
    edges = sorted({*(2**power for power in range(int(counted.values.max(initial=1)).bit_length())), least})
    named = [] if vocabulary["all"] else [(f"seen {least:,} times or more", least)]
    inside = int(counted.rows[counted.values >= least].sum())
    size = int(vocabulary.get("vocabulary_size", inside))
    note = f"the vocabulary has {inside:,} of {int(counted.rows.sum()):,}"
    if vocabulary["all"]:
        note = "all n-grams are in the vocabulary"
    elif inside > size:
        note += f", more than vocabulary_size = {size:,} because ties with the last one are included"
    drawn = replace(drawn, note=f"Unigrams and bigrams together; {note}.")
    return binned(drawn, counted, counted.values >= least, edges, named)


# Images --------------------------------------------------------------------------------------------------------------

IMAGE = Names("candidates", "pass every image rule", "fail an image rule")


def _short_side(run: RunFolder) -> Distribution:
    """Bins of one width, placed so that one begins just above the limit."""
    sides, limit = measured(run, "short_side_px"), run.config.image.short_side_above_px
    step, first = 25, min(limit + 1, SHORT_SIDE_AT_MOST)
    edges = sorted({1, *range(first % step or step, SHORT_SIDE_AT_MOST, step), first, SHORT_SIDE_AT_MOST})
    note = "Pixels as stored, of images whose size is known."
    drawn = Distribution("short_side", "Short side of an image", IMAGE, note=note)
    kept = sides.passes_others & (sides.values > limit)
    return binned(drawn, sides, kept, edges, [(f"above {limit:,} px", first)])


def _aspect(run: RunFolder) -> Distribution:
    ratios, limit = measured(run, "aspect_percent"), run.config.image.aspect_ratio_below
    below = min(hundredths(limit), ASPECT_AT_MOST)
    end = min(ASPECT_AT_MOST, max(2 * below - 100, 300))
    step = max(10, (end - 100) // BINS_ABOUT // 5 * 5)
    edges = sorted({100, *range(100 + (below - 100) % step, end, step), below, end})
    labels = [f"{first / 100:.2f}\u2013{after / 100:.2f}" for first, after in pairwise(edges)]
    labels.append(f"{edges[-1] / 100:g} or more")
    note = "Long side to short side, of images whose size is known."
    drawn = Distribution("aspect", "Aspect ratio of an image", IMAGE, note=note)
    kept = ratios.passes_others & (ratios.values < hundredths(limit))
    return binned(drawn, ratios, kept, edges, [(f"below {limit:g}", below)], labels)


def _cosines(run: RunFolder) -> Distribution:
    names = Names("pairs of a pool image and a test image", "not near", "near-duplicates")
    drawn = Distribution("cosine", "Cosine with the nearest test images", names, is_log=True)
    if not run.config.decontaminate.test_sets:
        missing = "No test set was named ([decontaminate] test_sets), so nothing was compared."
        return replace(drawn, missing=missing)
    above = run.json("audit/near_duplicates/found.json").get(
        "similarity_above", run.config.decontaminate.similarity_above
    )
    pairs: Any = run_rows.of_audit(run, SIMILARITY) or SIMILARITY.schema.empty_table()
    is_far = pairs["verdict"].to_numpy() != "above"
    cosines = Measured(pairs["cosine_permille"].to_numpy(), pairs["pairs"].to_numpy(), is_far)
    first = round(above * 1_000_000) // 1_000
    smallest = int(cosines.values.min(initial=first))
    step = 5 if smallest >= first - 200 else 10
    edges = [*range(first - -((smallest - first) // step) * step, 1_001, step)]
    labels = [f"{edge / 1000:.3f}" for edge in edges]
    labels[-1] += " or more"
    note = "Every pair above the threshold; below it, the nearest pairs of a sample of the images."
    return binned(replace(drawn, note=note), cosines, is_far, edges, [(f"above {above:g}", first)], labels)


def _nsfw(run: RunFolder) -> Distribution:
    settings, note = run.config.image.nsfw, "The score of the classifier, for images that decode."
    drawn = Distribution("nsfw", "NSFW score", IMAGE, note=note)
    if not settings.model:
        missing = "No classifier was set ([image.nsfw] model), so no image has a score."
        return replace(drawn, note="", missing=missing)
    scores, least = measured(run, "nsfw_percent"), settings.drop_at_or_above
    first = min(100, hundredths(least))
    edges = sorted({0, *range(first % 5, 100, 5), first})
    labels = [f"{edge / 100:.2f}" for edge in edges]
    labels[-1] += " or more"
    kept = scores.passes_others & (scores.values < hundredths(least))
    return binned(drawn, scores, kept, edges, [(f"{least:g} or more", first)], labels)


def of_run(run: RunFolder) -> list[Distribution]:
    """All distributions in the order of stages, with those that the run has no data for at the end."""
    per_text, per_image = run.config.text.images_per_text_at_most, run.config.image.texts_per_image_at_most
    drawn = [
        _words(run),
        _rarest(run),
        _in_pool(run, "images_per_text", "Images of a text", "distinct texts", per_text),
        _in_pool(run, "texts_per_image", "Texts of an image", "distinct images", per_image),
        _ngrams(run),
        _short_side(run),
        _aspect(run),
        _cosines(run),
        _nsfw(run),
    ]
    return sorted(drawn, key=lambda each: not each.bins)
