"""What another threshold would keep, all else as it is: a curve for each rule that compares a measure with one."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from altalign.audit.report import files
from altalign.audit.report.distributions import (
    LARGEST,
    Bin,
    Distribution,
    Measured,
    Names,
    Threshold,
    growing,
    histogram,
    hundredths,
    measured,
)
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import ASPECT_AT_MOST, EXACT_BELOW, SHORT_SIDE_AT_MOST, WORDS_AT_MOST
from altalign.dedup.hash_tables import log2_counts

TEXT = Names("candidates", "pass every text rule", "fail this rule alone")
IMAGE = Names("candidates", "pass every image rule", "fail this rule alone")

# fmt: off
_SHORT_SIDES = (
    0, 32, 64, 96, 100, 128, 160, 192, 200, 224, 240, 256,
    288, 320, 336, 384, 400, 448, 512, 600, 640, 768, 800, 1_000,
)  # pixels
# fmt: on
_ASPECTS = (1.25, 1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 5, 6, 8, 10)
_NO_LIMIT = (LARGEST, "no limit")
_UNCOUNTED = "This run did not count what this curve is drawn from."

Stop = tuple[float, str]  # the first value above a threshold, and the threshold in words


def of_run(run: RunFolder) -> list[Distribution]:
    """The curves in the order of rules; without bins where the run did not count what they need.

    Raises UnreadableError: a file of the run is damaged.
    """
    text, image, words = run.config.text, run.config.image, measured(run, "words")
    least, most = text.words_at_least, text.words_at_most
    short_side, aspect, nsfw = image.short_side_above_px, image.aspect_ratio_below, image.nsfw.drop_at_or_above
    at_most = [(number + 1, f"{number:,}") for number in _words(most) if number + 1 < WORDS_AT_MOST]
    sides = [(side + 1, f"{side:,}") for side in {*_SHORT_SIDES, short_side} if side < SHORT_SIDE_AT_MOST]
    ratios = {hundredths(ratio): f"{ratio:g}" for ratio in (*_ASPECTS, aspect)}
    scores = {hundredths(score): f"{score:g}" for score in (*(step / 20 for step in range(1, 21)), nsfw)}

    def drawn(setting: str, title: str, key: str = "") -> Distribution:
        section, _, name = setting.partition(".")
        names = TEXT if section == "text" else IMAGE
        return Distribution(key or name, title, names, note=f"Setting {setting}.")

    curves = [
        _curve(
            drawn("text.words_at_least", "Words, at least"),
            words.where(words.values <= most),
            [(number, f"{number:,}") for number in _words(least)],
            least,
            keeps_above=True,
        ),
        _curve(
            drawn("text.words_at_most", "Words, at most"),
            words.where(words.values >= least),
            [*at_most, _NO_LIMIT],
            most + 1 if most + 1 < WORDS_AT_MOST else LARGEST,
            keeps_above=False,
        ),
        _looser(run, "text.images_per_text_at_most", "Images of a text, at most", text.images_per_text_at_most),
        _vocabulary(run, measured(run, "rarest_log2")),
        _looser(run, "image.texts_per_image_at_most", "Texts of an image, at most", image.texts_per_image_at_most),
        _curve(
            drawn("image.short_side_above_px", "Short side in pixels, above", "short_side_above"),
            measured(run, "short_side_px"),
            sides,
            short_side + 1,
            keeps_above=True,
        ),
        _curve(
            drawn("image.aspect_ratio_below", "Aspect ratio, below", "aspect_below"),
            measured(run, "aspect_percent"),
            [(first, label) for first, label in ratios.items() if first < ASPECT_AT_MOST],
            hundredths(aspect),
            keeps_above=False,
        ),
    ]
    if image.nsfw.model:
        of_nsfw = drawn("image.nsfw.drop_at_or_above", "NSFW score, below", "nsfw_below")
        stops, own = list(scores.items()), hundredths(nsfw)
        curves.append(_curve(of_nsfw, measured(run, "nsfw_percent"), stops, own, keeps_above=False))
    return [each if each.bins else replace(each, missing=each.missing or _UNCOUNTED) for each in curves]


def _words(limit: int) -> set[int]:
    """Numbers of words around a limit, at each of which candidates are counted exactly."""
    end = min(WORDS_AT_MOST, max(30, 2 * limit))
    return {*range(0, end, -(-end // 40)), min(limit, WORDS_AT_MOST)}


def curve(
    drawn: Distribution,
    values: npt.ArrayLike,
    rows: npt.ArrayLike,
    stops: Iterable[Stop],
    own: float,
    *,
    keeps_above: bool,
) -> Distribution:
    """A curve: what is kept with the threshold at each stop, and what is then dropped.

    Values are numbers[n] of what no other rule drops, and `rows` how often each occurs. A threshold keeps values from
    the first number of a stop on, or those below it. `own` is the stop of the run, by its first number; it stands at
    none where it is not among the stops.
    """
    values, rows, stops = np.asarray(values), np.asarray(rows, np.int64), sorted(dict(stops).items())
    if not len(values):
        return drawn
    every = int(rows.sum())
    below = [int(rows[values < first].sum()) for first, _ in stops]
    kept = [every - each if keeps_above else each for each in below]
    bins = tuple(Bin(label, each, every - each) for (_, label), each in zip(stops, kept, strict=True))
    at = [Threshold("this run", place) for place, (first, _) in enumerate(stops) if first == own]
    return replace(drawn, bins=bins, thresholds=tuple(at), is_curve=True)


def _curve(
    drawn: Distribution, some: Measured, stops: Sequence[Stop], own: float, *, keeps_above: bool
) -> Distribution:
    some = some.where(some.passes_others)
    return curve(drawn, some.values, some.rows, stops, own, keeps_above=keeps_above)


def _looser(run: RunFolder, setting: str, title: str, limit: int) -> Distribution:
    """Stops from the limit of the run on: counts within it were not recorded."""
    key, note = setting.partition(".")[2], f"Setting {setting}. Looser only: counts within the limit were not recorded."
    drawn, counts = Distribution(key, title, TEXT, note=note), measured(run, key.removesuffix("_at_most"))
    most = int(counts.values.max(initial=0))
    if len(counts.values) and not most:
        return replace(drawn, missing="Nothing is above this run's limit.")
    exact = [count for count in growing(limit, min(most, EXACT_BELOW)) if limit < count < EXACT_BELOW]
    stops = [(count + 1, f"{count:,}") for count in exact]
    # Levels are eighths of an octave: one stop an octave, at the largest count of a level, where the sum is exact.
    for level in range(EXACT_BELOW + 87, most, 8):
        largest = int(2 ** ((2 * (level - EXACT_BELOW) + 1) / 16))
        if largest > max(limit, EXACT_BELOW):
            stops.append((level + 1, f"{largest:,}"))
    return _curve(drawn, counts, [(1, f"{limit:,}"), *stops, _NO_LIMIT], 1, keeps_above=False)


def _vocabulary(run: RunFolder, rarest: Measured) -> Distribution:
    """Smaller vocabularies only: of n-grams outside its own, the run did not count how often a caption has them."""
    note = "Setting text.vocabulary_size. Smaller only: n-grams outside the vocabulary were not recorded."
    drawn = Distribution("vocabulary", "Size of the vocabulary", TEXT, note=note)
    counts, ngrams = histogram(run, "ngram_count")
    known = rarest.values[(rarest.values > 0) & (rarest.values < 255)]
    if not len(rarest.values):
        return drawn
    if files.facts(run, "tables/vocabulary.json").get("all", True) or not len(known) or not len(counts):
        return replace(drawn, missing="Every n-gram of this pool is in the vocabulary.")
    stops, levels = [(1, f"{run.config.text.vocabulary_size:,}")], log2_counts(counts)
    for level in range(4, int(known.max()) + 1, 4):
        size = int(ngrams[levels >= level].sum())
        if level > known.min() and 0 < size < run.config.text.vocabulary_size:
            stops.append((level, f"{size:,}"))
    return _curve(drawn, rarest, stops, 1, keeps_above=True)
