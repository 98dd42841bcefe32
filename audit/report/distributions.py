"""Distributions of the measured values, kept and dropped, with the thresholds between bins."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.audit.report import files
from altalign.audit.run_folder import RunFolder
from altalign.audit_tables import IMAGE_JOINT, IMAGE_VALUES, SIMILARITY, TEXT_FIELDS, TEXT_JOINT
from altalign.pages.page_text import shown
from altalign.reasons import KEPT
from altalign.slider_stops import ASPECT_AT_MOST, SHORT_SIDE_AT_MOST, WORDS_AT_MOST, hundredths

LARGEST = 2**62  # an edge that no value reaches
BINS_ABOUT = 40


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
    """One measured value.

    Attributes:
        key: its name in links.
        title: what was measured.
        names: what is counted.
        bins: the bars, in order.
        thresholds: those that stand between the bins.
        is_log: whether heights are logarithmic, for bars that differ much. Then no bin has both colours.
        note: what a reader needs to know.
        missing: why there is no distribution; then there are no bins.
    """

    key: str
    title: str
    names: Names = Names("", "", "")
    bins: tuple[Bin, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    is_log: bool = False
    note: str = ""
    missing: str = ""


def of_run(run: RunFolder) -> list[Distribution]:
    """All distributions in the order of stages, with those that the run has no data for at the end."""
    every = [*_of_texts(run), *_of_histograms(run), *_of_images(run), *_of_values(run), _cosines(run), _nsfw(run)]
    return sorted(every, key=lambda each: not each.bins)


def missing(key: str, title: str, file: str) -> Distribution:
    """The placeholder for a distribution whose file the run does not have."""
    return Distribution(key, title, missing=f"This run has no {file}, so there is nothing to draw.")


# Bins ----------------------------------------------------------------------------------------------------------------


Histograms = Mapping[str, list[list[int]]]  # audit/histograms.json: value and how often, by name
Vocabulary = Mapping[str, int]  # tables/vocabulary.json
Drawn = tuple[tuple[Bin, ...], tuple[Threshold, ...]]
Named = Sequence[tuple[str, int]]  # thresholds, each with the first value on its other side, which is an edge


def binned(
    values: npt.ArrayLike,
    kept: npt.ArrayLike,
    rows: npt.ArrayLike,
    edges: Sequence[int],
    label: Callable[[int, int], str],
    named: Named = (),
) -> Drawn:
    """Sums values into bins, each from its edge to the next; the last one takes everything above.

    Empty bins at the end are left out, except those before a threshold and the one after it.

    Args:
        values: int[n], none below the first edge.
        kept: bool[n], whether each value was kept.
        rows: int[n], how often each value occurs.
        edges: first values of the bins, rising.
        label: makes a label from the first and last value of a bin; the last value of the last bin is `LARGEST`.
        named: thresholds.
    """
    values, kept, rows = np.asarray(values, np.int64), np.asarray(kept, bool), np.asarray(rows, np.int64)
    at = np.searchsorted(np.asarray(edges, np.int64), values, side="right") - 1
    sums = np.zeros((2, len(edges)), np.int64)
    np.add.at(sums, (kept.astype(np.int64), at), rows)
    last = [edge - 1 for edge in edges[1:]] + [LARGEST]
    lines = tuple(Threshold(said, edges.index(first)) for said, first in named)
    used = 1 + max([*np.flatnonzero(sums.any(axis=0)).tolist(), *(line.at for line in lines)]) if sums.any() else 0
    bins = tuple(Bin(label(edges[i], last[i]), int(sums[1, i]), int(sums[0, i])) for i in range(used))
    return bins, lines if used else ()


def whole(first: int, last: int) -> str:
    """The label of a bin of whole numbers."""
    return f"{first:,} or more" if last == LARGEST else f"{first:,}" if first == last else f"{first:,}\u2013{last:,}"


def _growing(limit: int, most: int) -> list[int]:
    """Edges from 1: every number up to 10, then 20, 50, 100, …, and the number after the limit."""
    edges, step = set(range(1, 11)), 10
    while step <= most:
        edges |= {step, 2 * step, 5 * step}
        step *= 10
    return sorted(edges | {limit + 1})


# Texts ---------------------------------------------------------------------------------------------------------------


def _of_texts(run: RunFolder) -> list[Distribution]:
    named = (("words", "Words of a caption"), ("rarest", "Rarest n-gram of a caption"))
    fields = [name for name, _ in TEXT_FIELDS]
    joint = files.table(run, TEXT_JOINT, *fields, "rows")
    if joint is None:
        return [missing(key, title, TEXT_JOINT.path) for key, title in named]
    columns = {name: files.numbers(joint, name) for name in joint.column_names}
    settings = run.config.text
    words, level = columns["words"], columns["rarest_log2"]
    kept = (words > 0) & (words >= settings.words_at_least) & (words <= max(settings.words_at_most, 0)) & (level > 0)
    kept &= (columns["images_per_text"] == 0) & (columns["texts_per_image"] == 0) & (columns["has_identity"] == 1)
    return [
        _words(settings.words_at_least, settings.words_at_most, words, kept, columns["rows"]),
        _rarest(level, kept, columns["rows"]),
    ]


def _words(least: int, most: int, words: np.ndarray, kept: np.ndarray, rows: np.ndarray) -> Distribution:
    end = min(WORDS_AT_MOST, max(2 * most, 30))
    step = -(-end // BINS_ABOUT) if end > 60 else 1
    limits = {least: f"at least {least}"} | ({most + 1: f"at most {most}"} if most < WORDS_AT_MOST else {})
    edges = sorted({*range(0, end, step), end, *limits})
    drawn = binned(words, kept, rows, edges, whole, [(label, first) for first, label in limits.items() if first > 0])
    return Distribution("words", "Words of a caption", TEXT, *drawn, note="Repeated pairs are counted every time.")


def _rarest(level: np.ndarray, kept: np.ndarray, rows: np.ndarray) -> Distribution:
    """Bins of one octave of the count each; a level is 8 x log2 of a count, rounded."""
    title, is_known = "Rarest n-gram of a caption", level < 255
    if not level[is_known].any():
        why = "Every n-gram of the pool is in the vocabulary, so none was looked up."
        return Distribution("rarest", title, missing=why)
    edges = [0, 1, *range(12, 256, 8)]

    def label(first: int, _: int) -> str:
        return "outside" if first == 0 else f"\u2248\u2009{2 ** ((first + 4) // 8):,}" if first > 1 else "\u2248\u20092"

    drawn = binned(level[is_known], kept[is_known], rows[is_known], edges, label, [("vocabulary", 1)])
    without = int(rows[~is_known].sum())
    note = (
        f"By how often the pool has it; each bar is an octave. {without:,} candidates without a word are left out."
        if without
        else "Each bar is an octave."
    )
    return Distribution("rarest", title, TEXT, *drawn, note=note)


def _of_histograms(run: RunFolder) -> list[Distribution]:
    """Distributions of what `tables` counted over the whole pool; no bin straddles its limit."""
    config, vocabulary = run.config, files.facts(run, "tables/vocabulary.json")
    histograms = files.facts(run, "audit/histograms.json")
    shared, captioned = config.text.images_per_text_at_most, config.image.texts_per_image_at_most
    named: list[tuple[str, str, str, int]] = [
        ("images_per_text", "Images of a text", "distinct texts", shared),
        ("texts_per_image", "Texts of an image", "distinct images", captioned),
    ]
    found, note = [], "Over the whole pool, before any rule."
    for key, title, counted, limit in named:
        if key not in histograms:
            found.append(missing(key, title, "audit/histograms.json"))
            continue
        values, rows = _pairs(run, histograms, key)
        edges = _growing(limit, int(values.max(initial=1)))
        edges = edges if values.all() else [0, *edges]
        drawn = binned(values, values <= limit, rows, edges, whole, [(f"at most {limit:,}", limit + 1)])
        names = Names(counted, "within the limit", "above it")
        found.append(Distribution(key, title, names, *drawn, is_log=True, note=note))
    return [*found, _ngrams(run, histograms, vocabulary)]


def _ngrams(run: RunFolder, histograms: Histograms, vocabulary: Vocabulary) -> Distribution:
    key, title = "ngram_count", "Count of an n-gram"
    if "ngram_count" not in histograms or not vocabulary:
        return missing(key, title, "audit/histograms.json or tables/vocabulary.json")
    values, rows = _pairs(run, histograms, "ngram_count")
    least = 1 if vocabulary["all"] else int(vocabulary["threshold"])
    edges = sorted({*(2**power for power in range(int(values.max(initial=1)).bit_length())), least})
    named = [] if vocabulary["all"] else [(f"seen {least:,} times or more", least)]
    drawn = binned(values, values >= least, rows, edges, whole, named)
    note = f"Unigrams and bigrams together; {_said_of(vocabulary, int(rows[values >= least].sum()), int(rows.sum()))}."
    names = Names("distinct n-grams", "in the vocabulary", "outside")
    return Distribution(key, title, names, *drawn, is_log=True, note=note)


def _said_of(vocabulary: Vocabulary, inside: int, of_all: int) -> str:
    """How many n-grams the vocabulary has, and why that can be more than the setting says."""
    if vocabulary["all"]:
        return "all n-grams are in the vocabulary"
    asked = int(vocabulary.get("vocabulary_size", inside))
    tied = f", more than vocabulary_size = {asked:,} because ties with the last one are included"
    return f"the vocabulary has {inside:,} of {of_all:,}{tied if inside > asked else ''}"


def _pairs(run: RunFolder, histograms: Histograms, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The values of a histogram and how often each occurs: int64[n] both."""
    try:
        entries = np.array(histograms[name], np.int64).reshape(-1, 2)
    except (ValueError, TypeError, OverflowError) as error:
        raise files.damaged(run, "audit/histograms.json", error) from None
    return entries[:, 0], entries[:, 1]


# Images --------------------------------------------------------------------------------------------------------------


def _of_images(run: RunFolder) -> list[Distribution]:
    named = (("short_side", "Short side of an image"), ("aspect", "Aspect ratio of an image"))
    joint = files.table(run, IMAGE_JOINT, "short_side_px", "aspect_percent", "fails_otherwise", "rows")
    if joint is None:
        return [missing(key, title, IMAGE_JOINT.path) for key, title in named]
    short, aspect, fails, rows = (files.numbers(joint, name) for name in joint.column_names)
    is_known = short >= 0
    without = int(rows[~is_known].sum())
    short, aspect, fails, rows = (column[is_known] for column in (short, aspect, fails, rows))
    limit, below = run.config.image.short_side_above_px, hundredths(run.config.image.aspect_ratio_below)
    kept = (short > limit) & (aspect < below) & (fails == 0)
    note = f"{without:,} candidates whose image has no readable size are left out." if without else ""
    return [
        _short_side(limit, short, kept, rows, note),
        _aspect(below, run.config.image.aspect_ratio_below, aspect, kept, rows, note),
    ]


def _short_side(limit: int, short: np.ndarray, kept: np.ndarray, rows: np.ndarray, note: str) -> Distribution:
    """Bins of one width, placed so that one begins just above the limit."""
    step = 25
    first = min(limit + 1, SHORT_SIDE_AT_MOST)
    edges = sorted({1, *range(first % step or step, SHORT_SIDE_AT_MOST, step), first, SHORT_SIDE_AT_MOST})
    drawn = binned(short.clip(1), kept, rows, edges, whole, [(f"above {limit:,} px", first)])
    return Distribution("short_side", "Short side of an image", IMAGE, *drawn, note=f"Pixels as stored. {note}".strip())


def _aspect(below: int, said: float, aspect: np.ndarray, kept: np.ndarray, rows: np.ndarray, note: str) -> Distribution:
    below = min(below, ASPECT_AT_MOST)
    end = min(ASPECT_AT_MOST, max(2 * below - 100, 300))
    step = max(10, (end - 100) // BINS_ABOUT // 5 * 5)
    edges = sorted({100, *range(100 + (below - 100) % step, end, step), below, end})

    def label(first: int, last: int) -> str:
        if last == LARGEST:
            return f"{first / 100:g} or more"
        return f"{first / 100:.2f}\u2013{(last + 1) / 100:.2f}"

    drawn = binned(aspect.clip(100), kept, rows, edges, label, [(f"below {said:g}", below)])
    note = f"Long side to short side. {note}".strip()
    return Distribution("aspect", "Aspect ratio of an image", IMAGE, *drawn, note=note)


def _of_values(run: RunFolder) -> list[Distribution]:
    named = (("bytes", "Bytes of an image"), ("format", "Format of an image"))
    values = files.table(run, IMAGE_VALUES, "verdict", "format", "bytes_log2", "rows")
    if values is None:
        return [missing(key, title, IMAGE_VALUES.path) for key, title in named]
    kept, rows = _equals(values, "verdict", KEPT), files.numbers(values, "rows")
    sizes = _bytes(files.numbers(values, "bytes_log2"), kept, rows)
    return [sizes, _formats(values["format"].to_pylist(), kept, rows)]


def _equals(table: pa.Table, name: str, value: str) -> npt.NDArray[np.bool_]:
    """Which rows have this string in a column, bool[n]."""
    return np.asarray(pc.equal(table[name], pa.scalar(value))).astype(bool)


def _bytes(level: np.ndarray, kept: np.ndarray, rows: np.ndarray) -> Distribution:
    edges = [0, *range(8, 256, 8)]
    first = max(0, int(level.min(initial=255)) // 8)
    bins, _ = binned(level, kept, rows, edges, lambda low, _: _octave(low // 8))
    return Distribution("bytes", "Bytes of an image", IMAGE, bins[first:], note="As fetched; each bar is an octave.")


def _octave(power: int) -> str:
    """The label of the bin from 2^power to 2^(power + 1) bytes."""
    units = ("B", "KiB", "MiB", "GiB")
    low, high = 2 ** (power % 10), 2 ** ((power + 1) % 10)
    of_low, of_high = units[power // 10], units[(power + 1) // 10]
    return f"{low}\u2013{high} {of_high}" if of_low == of_high else f"{low} {of_low}\u2013{high} {of_high}"


def _formats(formats: list[str | None], kept: np.ndarray, rows: np.ndarray) -> Distribution:
    sums: dict[str, list[int]] = {}
    for name, is_kept, count in zip(formats, kept.tolist(), rows.tolist(), strict=True):
        sums.setdefault(shown(name, 20).text if name else "unknown", [0, 0])[0 if is_kept else 1] += count
    bins = [Bin(name, *both) for name, both in sorted(sums.items(), key=lambda entry: (-sum(entry[1]), entry[0]))]
    return Distribution("format", "Format of an image", IMAGE, tuple(bins), note="Told by its first bytes, as fetched.")


def _nsfw(run: RunFolder) -> Distribution:
    key, title = "nsfw", "NSFW score"
    if not run.config.image.nsfw.model:
        return Distribution(key, title, missing="No classifier was set ([image.nsfw] model), so no image has a score.")
    values = files.table(run, IMAGE_VALUES, "verdict", "nsfw_percent", "rows")
    if values is None:
        return missing(key, title, IMAGE_VALUES.path)
    scored = values.filter(pc.is_valid(values["nsfw_percent"]))
    kept = _equals(scored, "verdict", KEPT)
    score, rows = files.numbers(scored, "nsfw_percent"), files.numbers(scored, "rows")
    least = run.config.image.nsfw.drop_at_or_above
    first = min(100, hundredths(least))
    edges = sorted({0, *range(first % 5, 100, 5), first})

    def label(low: int, high: int) -> str:
        return f"{low / 100:.2f}" + (" or more" if high == LARGEST else "")

    drawn = binned(score, kept, rows, edges, label, [(f"{least:g} or more", first)])
    return Distribution(key, title, IMAGE, *drawn, note="The score of the classifier, for images that decode.")


# Near-duplicates -----------------------------------------------------------------------------------------------------


def _cosines(run: RunFolder) -> Distribution:
    key, title = "cosine", "Cosine with the nearest test images"
    if not run.config.decontaminate.test_sets:
        why = "No test set was named ([decontaminate] test_sets), so nothing was compared."
        return Distribution(key, title, missing=why)
    found = files.table(run, SIMILARITY)
    if found is None:
        return missing(key, title, SIMILARITY.path)
    of_run = files.facts(run, "audit/near_duplicates/found.json")
    above = of_run.get("similarity_above", run.config.decontaminate.similarity_above)
    value, pairs = files.numbers(found, "cosine_permille"), files.numbers(found, "pairs")
    is_near = _equals(found, "verdict", "above")
    first = round(above * 1_000_000) // 1_000
    step = 5 if value.min(initial=first) >= first - 200 else 10
    edges = sorted({-1_000, *range(first % step, 1_001, step), first})

    def label(low: int, high: int) -> str:
        if low == edges[0]:
            return f"below {(high + 1) / 1000:.3f}"
        return f"{low / 1000:.3f}" + (" or more" if high == LARGEST else "")

    bins, lines = binned(value.clip(-1_000), ~is_near, pairs, edges, label, [(f"above {above:g}", first)])
    begin = next((number for number, each in enumerate(bins) if each.kept or each.dropped), 0)
    lines = tuple(Threshold(line.label, max(0, line.at - begin)) for line in lines)
    names = Names("pairs of a pool image and a test image", "not near", "near-duplicates")
    note = "Every pair above the threshold; below it, the nearest pairs of a sample of the images."
    return Distribution(key, title, names, bins[begin:], lines, is_log=True, note=note)
