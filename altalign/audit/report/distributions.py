"""Distributions of the measured values, kept and dropped, with the thresholds between bins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from altalign import storage
from altalign.audit.report import files
from altalign.audit.report.measures import Numbers, equals, hundredths, measured
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import (
    ASPECT_AT_MOST,
    IMAGE_MEASURES,
    IMAGE_VALUES,
    SHORT_SIDE_AT_MOST,
    SIMILARITY,
    TEXT_MEASURES,
    WORDS_AT_MOST,
)
from altalign.data.reasons import KEPT
from altalign.pages.page_text import shown

LARGEST = 2**62  # an edge that no value reaches
BINS_ABOUT = 40
HISTOGRAMS = "audit/histograms.json"  # value and how often, by name

Label = Callable[[int, int], str]  # makes a label from the first and the last value of a bin


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
    is_log: bool = False  # whether heights are logarithmic, for bars that differ much. Then no bin has both colours
    is_curve: bool = False  # whether bins are stops of a threshold (`thresholds`), and a threshold stands at a bin
    note: str = ""  # what a reader needs to know
    missing: str = ""  # why there is no distribution; then there are no bins


def of_run(run: RunFolder) -> list[Distribution]:
    """All distributions in the order of stages, with those that the run has no data for at the end.

    Raises UnreadableError: a file of them is damaged.
    """
    drawn = []
    for key, title, path, draw in _EVERY:
        why_not = _why_not(run, key, path)
        each = Distribution(missing=why_not) if why_not else draw(run)
        drawn.append(replace(each, key=key, title=title))
    return sorted(drawn, key=lambda each: not each.bins)


def _why_not(run: RunFolder, key: str, path: str) -> str:
    """Why a distribution cannot be drawn; empty if it can."""
    if key == "cosine" and not run.config.decontaminate.test_sets:
        return "No test set was named ([decontaminate] test_sets), so nothing was compared."
    if key == "nsfw" and not run.config.image.nsfw.model:
        return "No classifier was set ([image.nsfw] model), so no image has a score."
    return "" if storage.exists(run.path(path)) else f"This run has no {path}, so there is nothing to draw."


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

    Empty bins at the end are left out, except those before a threshold and the one after it.

    Args:
        drawn: the distribution without them.
        values: int[n], none below the first edge.
        kept: bool[n], whether each value was kept.
        rows: int[n], how often each value occurs.
        edges: first values of the bins, rising.
        label: of a bin; the last value of the last bin is `LARGEST`.
        named: thresholds, each with the first value on its other side, which is an edge.
    """
    values, kept, rows = np.asarray(values, np.int64), np.asarray(kept, bool), np.asarray(rows, np.int64)
    at = np.searchsorted(np.asarray(edges, np.int64), values, side="right") - 1
    sums = np.zeros((2, len(edges)), np.int64)
    np.add.at(sums, (kept.astype(np.int64), at), rows)
    last = [edge - 1 for edge in edges[1:]] + [LARGEST]
    lines = tuple(Threshold(name, edges.index(first)) for name, first in named)
    used = 1 + max([*np.flatnonzero(sums.any(axis=0)).tolist(), *(line.at for line in lines)]) if sums.any() else 0
    bins = tuple(Bin(label(edges[i], last[i]), int(sums[1, i]), int(sums[0, i])) for i in range(used))
    return replace(drawn, bins=bins, thresholds=lines if used else ())


def whole(first: int, last: int) -> str:
    """The label of a bin of whole numbers."""
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
    of, least, most = measured(run, "words"), run.config.text.words_at_least, run.config.text.words_at_most
    end = min(WORDS_AT_MOST, max(2 * most, 30))
    step = -(-end // BINS_ABOUT) if end > 60 else 1
    limits = {least: f"at least {least}"} | ({most + 1: f"at most {most}"} if most < WORDS_AT_MOST else {})
    edges = sorted({*range(0, end, step), end, *limits})
    kept = of.passes_others & (of.values >= least) & (of.values <= most)
    named = [(label, first) for first, label in limits.items() if first > 0]
    drawn = Distribution(names=TEXT, note="Repeated pairs are counted every time.")
    return binned(drawn, of.values, kept, of.rows, edges, whole, named)


def _rarest(run: RunFolder) -> Distribution:
    """Bins of one octave of the count each; a level is 8 x log2 of a count, rounded."""
    every = measured(run, "rarest_log2")
    of = every.where(every.values < 255)
    if not of.values.any():
        return Distribution(missing="Every n-gram of the pool is in the vocabulary, so none was looked up.")

    def label(first: int, _: int) -> str:
        return "outside" if first == 0 else f"\u2248\u2009{2 ** ((first + 4) // 8):,}" if first > 1 else "\u2248\u20092"

    kept = of.passes_others & (of.values > 0)
    without = int(every.rows.sum() - of.rows.sum())
    note = "By how often the pool has it; each bar is an octave."
    note += f" {without:,} candidates without a word are left out." if without else ""
    drawn = Distribution(names=TEXT, note=note)
    return binned(drawn, of.values, kept, of.rows, [0, 1, *range(12, 256, 8)], label, [("vocabulary", 1)])


def _shared(run: RunFolder) -> Distribution:
    return _of_pool(run, "images_per_text", "distinct texts", run.config.text.images_per_text_at_most)


def _captioned(run: RunFolder) -> Distribution:
    return _of_pool(run, "texts_per_image", "distinct images", run.config.image.texts_per_image_at_most)


def _of_pool(run: RunFolder, name: str, counted: str, limit: int) -> Distribution:
    """What `tables` counted over the whole pool; no bin straddles the limit."""
    values, rows = histogram(run, name)
    edges = growing(limit, int(values.max(initial=1)))
    edges = edges if values.all() else [0, *edges]
    names = Names(counted, "within the limit", "above it")
    drawn = Distribution(names=names, is_log=True, note="Over the whole pool, before any rule.")
    return binned(drawn, values, values <= limit, rows, edges, whole, [(f"at most {limit:,}", limit + 1)])


def _ngrams(run: RunFolder) -> Distribution:
    vocabulary, (values, rows) = files.facts(run, "tables/vocabulary.json"), histogram(run, "ngram_count")
    if not vocabulary:
        return Distribution(missing="This run has no tables/vocabulary.json, so there is nothing to draw.")
    least = 1 if vocabulary["all"] else int(vocabulary["threshold"])
    edges = sorted({*(2**power for power in range(int(values.max(initial=1)).bit_length())), least})
    named = [] if vocabulary["all"] else [(f"seen {least:,} times or more", least)]
    inside = int(rows[values >= least].sum())
    asked = int(vocabulary.get("vocabulary_size", inside))
    note = f"the vocabulary has {inside:,} of {int(rows.sum()):,}"
    if vocabulary["all"]:
        note = "all n-grams are in the vocabulary"
    elif inside > asked:
        note += f", more than vocabulary_size = {asked:,} because ties with the last one are included"
    names = Names("distinct n-grams", "in the vocabulary", "outside")
    drawn = Distribution(names=names, is_log=True, note=f"Unigrams and bigrams together; {note}.")
    return binned(drawn, values, values >= least, rows, edges, whole, named)


def histogram(run: RunFolder, name: str) -> tuple[Numbers, Numbers]:
    """The values of a histogram of the pool, and how often each occurs; none where the run has no such histogram.

    Raises UnreadableError: they are not as they were written.
    """
    try:
        entries = np.array(files.facts(run, HISTOGRAMS).get(name, []), np.int64).reshape(-1, 2)
    except (ValueError, TypeError, OverflowError) as error:
        raise files.damaged(run, HISTOGRAMS, error) from None
    return entries[:, 0], entries[:, 1]


# Images --------------------------------------------------------------------------------------------------------------


def _short_side(run: RunFolder) -> Distribution:
    """Bins of one width, placed so that one begins just above the limit."""
    of, limit = measured(run, "short_side_px"), run.config.image.short_side_above_px
    step, first = 25, min(limit + 1, SHORT_SIDE_AT_MOST)
    edges = sorted({1, *range(first % step or step, SHORT_SIDE_AT_MOST, step), first, SHORT_SIDE_AT_MOST})
    kept = of.passes_others & (of.values > limit)
    drawn = Distribution(names=IMAGE, note="Pixels as stored, of images whose size is known.")
    return binned(drawn, of.values.clip(1), kept, of.rows, edges, whole, [(f"above {limit:,} px", first)])


def _aspect(run: RunFolder) -> Distribution:
    of, limit = measured(run, "aspect_percent"), run.config.image.aspect_ratio_below
    below = min(hundredths(limit), ASPECT_AT_MOST)
    end = min(ASPECT_AT_MOST, max(2 * below - 100, 300))
    step = max(10, (end - 100) // BINS_ABOUT // 5 * 5)
    edges = sorted({100, *range(100 + (below - 100) % step, end, step), below, end})

    def label(first: int, last: int) -> str:
        return f"{first / 100:g} or more" if last == LARGEST else f"{first / 100:.2f}\u2013{(last + 1) / 100:.2f}"

    kept = of.passes_others & (of.values < hundredths(limit))
    drawn = Distribution(names=IMAGE, note="Long side to short side, of images whose size is known.")
    return binned(drawn, of.values.clip(100), kept, of.rows, edges, label, [(f"below {limit:g}", below)])


def _bytes(run: RunFolder) -> Distribution:
    values = files.table(run, IMAGE_VALUES, "verdict", "bytes_log2", "rows")
    assert values is not None
    level, rows = files.numbers(values, "bytes_log2"), files.numbers(values, "rows")
    first = int(level.min(initial=247)) // 8
    edges = [*range(8 * first, 256, 8)]
    drawn = Distribution(names=IMAGE, note="As fetched; each bar is an octave.")
    return binned(drawn, level, equals(values["verdict"], KEPT), rows, edges, lambda low, _: _octave(low // 8))


def _octave(power: int) -> str:
    """The label of the bin from 2^power to 2^(power + 1) bytes."""
    units = ("B", "KiB", "MiB", "GiB")
    low, high = 2 ** (power % 10), 2 ** ((power + 1) % 10)
    of_low, of_high = units[power // 10], units[(power + 1) // 10]
    return f"{low}\u2013{high} {of_high}" if of_low == of_high else f"{low} {of_low}\u2013{high} {of_high}"


def _formats(run: RunFolder) -> Distribution:
    counts: dict[str, list[int]] = {}
    for row in files.rows(run, IMAGE_VALUES) or []:
        name = shown(row["format"], 20).text if row["format"] else "unknown"
        counts.setdefault(name, [0, 0])[row["verdict"] != KEPT] += row["rows"]
    bins = [Bin(name, *both) for name, both in sorted(counts.items(), key=lambda entry: (-sum(entry[1]), entry[0]))]
    return Distribution(names=IMAGE, bins=tuple(bins), note="By its first bytes, as fetched.")


def _nsfw(run: RunFolder) -> Distribution:
    of, least = measured(run, "nsfw_percent"), run.config.image.nsfw.drop_at_or_above
    first = min(100, hundredths(least))

    def label(low: int, high: int) -> str:
        return f"{low / 100:.2f}" + (" or more" if high == LARGEST else "")

    kept, edges = of.passes_others & (of.values < hundredths(least)), sorted({0, *range(first % 5, 100, 5), first})
    drawn = Distribution(names=IMAGE, note="The score of the classifier, for images that decode.")
    return binned(drawn, of.values, kept, of.rows, edges, label, [(f"{least:g} or more", first)])


# Near-duplicates -----------------------------------------------------------------------------------------------------


def _cosines(run: RunFolder) -> Distribution:
    pairs = files.table(run, SIMILARITY)
    assert pairs is not None
    facts = files.facts(run, "audit/near_duplicates/found.json")
    above = facts.get("similarity_above", run.config.decontaminate.similarity_above)
    value, rows = files.numbers(pairs, "cosine_permille"), files.numbers(pairs, "pairs")
    first = round(above * 1_000_000) // 1_000
    step = 5 if value.min(initial=first) >= first - 200 else 10
    below = first - int(value.min(initial=first))
    edges = [*range(first - -(-below // step) * step, 1_001, step)]

    def label(low: int, high: int) -> str:
        return f"{low / 1000:.3f}" + (" or more" if high == LARGEST else "")

    is_far = ~equals(pairs["verdict"], "above")
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
    ("bytes", "Bytes of an image", IMAGE_VALUES.path, _bytes),
    ("format", "Format of an image", IMAGE_VALUES.path, _formats),
    ("cosine", "Cosine with the nearest test images", SIMILARITY.path, _cosines),
    ("nsfw", "NSFW score", IMAGE_MEASURES.path, _nsfw),
)
