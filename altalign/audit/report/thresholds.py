"""What another threshold would keep, all else as it is: a curve for each rule that compares a measure with one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

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
_NO_LIMIT = {LARGEST: "no limit"}


def of_run(run: RunFolder) -> list[Distribution]:
    """The curves in the order of rules; without bins where the run did not count what they need."""
    text, image, words = run.config.text, run.config.image, _passing(run, "words")
    least, most = text.words_at_least, text.words_at_most
    at_least = {number: f"{number:,}" for number in _around(least)}
    at_most = {number + 1: f"{number:,}" for number in _around(most) if number + 1 < WORDS_AT_MOST}
    end = most + 1 if most + 1 < WORDS_AT_MOST else LARGEST
    curves = [
        _curve("text.words_at_least", "Words, at least", words.where(words.values <= most), at_least, least),
        _curve("text.words_at_most", "Words, at most", words.where(words.values >= least), at_most | _NO_LIMIT, end),
        _looser(run, "text.images_per_text_at_most", "Images of a text, at most", text.images_per_text_at_most),
        _vocabulary(run),
        _looser(run, "image.texts_per_image_at_most", "Texts of an image, at most", image.texts_per_image_at_most),
    ]
    side, aspect, nsfw = image.short_side_above_px, image.aspect_ratio_below, image.nsfw.drop_at_or_above
    stops = {each + 1: f"{each:,}" for each in {*_SHORT_SIDES, side} if each < SHORT_SIDE_AT_MOST}
    some = _passing(run, "short_side_px")
    curves.append(_curve("image.short_side_above_px", "Short side in pixels, above", some, stops, side + 1))
    stops = {hundredths(each): f"{each:g}" for each in (*_ASPECTS, aspect) if hundredths(each) < ASPECT_AT_MOST}
    some = _passing(run, "aspect_percent")
    curves.append(_curve("image.aspect_ratio_below", "Aspect ratio, below", some, stops, hundredths(aspect)))
    if image.nsfw.model:
        stops = {hundredths(each): f"{each:g}" for each in (*(step / 20 for step in range(1, 21)), nsfw)}
        some = _passing(run, "nsfw_percent")
        curves.append(_curve("image.nsfw.drop_at_or_above", "NSFW score, below", some, stops, hundredths(nsfw)))
    missing = "This run did not count what this curve is drawn from."
    return [each if each.bins or each.missing else replace(each, missing=missing) for each in curves]


def _around(limit: int) -> set[int]:
    """Numbers of words around a limit, at each of which candidates are counted exactly."""
    end = min(WORDS_AT_MOST, max(30, 2 * limit))
    return {*range(0, end, -(-end // 40)), min(limit, WORDS_AT_MOST)}


def _passing(run: RunFolder, name: str) -> Measured:
    """A measure of the candidates that no rule on anything else drops."""
    every = measured(run, name)
    return every.where(every.passes_others)


_KEYS = {
    "short_side_above_px": "short_side_above",
    "aspect_ratio_below": "aspect_below",
    "drop_at_or_above": "nsfw_below",
    "vocabulary_size": "vocabulary",
}


def _curve(
    setting: str, title: str, some: Measured, stops: Mapping[int, str], own: int, *, note: str = "", missing: str = ""
) -> Distribution:
    """The curve of a setting, by whose name a threshold keeps what is above or below it."""
    section, _, name = setting.partition(".")
    name = name.rpartition(".")[2]
    names, note = TEXT if section == "text" or name.startswith("texts_per") else IMAGE, f"Setting {setting}.{note}"
    drawn = Distribution(_KEYS.get(name, name), title, names, note=note, missing=missing)
    keeps_above = name in ("words_at_least", "short_side_above_px", "vocabulary_size")
    return drawn if missing else curve(drawn, some.values, some.rows, stops, own, keeps_above=keeps_above)


def curve(
    drawn: Distribution,
    values: npt.NDArray[Any],
    rows: npt.NDArray[np.int64],
    stops: Mapping[Any, str],
    own: float,
    *,
    keeps_above: bool,
) -> Distribution:
    """A curve: what is kept with the threshold at each stop, and what is then dropped.

    Values are numbers[n] of what no other rule drops, and `rows` how often each occurs. Stops are thresholds in words
    by the first value above each: one keeps values from that on, or those below it. `own` is the stop of the run, by
    its first value; it stands at none where it is not among the stops.
    """
    if not len(values):
        return drawn
    stops, every = dict(sorted(stops.items())), int(rows.sum())
    below = [int(rows[values < first].sum()) for first in stops]
    kept = [every - each if keeps_above else each for each in below]
    bins = tuple(Bin(label, each, every - each) for label, each in zip(stops.values(), kept, strict=True))
    at = tuple(Threshold("this run", place) for place, first in enumerate(stops) if first == own)
    return replace(drawn, bins=bins, thresholds=at, is_curve=True)


def _looser(run: RunFolder, setting: str, title: str, limit: int) -> Distribution:
    """Stops from the limit of the run on: counts within it were not recorded."""
    every = measured(run, setting.partition(".")[2].removesuffix("_at_most"))
    most = int(every.values.max(initial=0))
    missing = "Nothing is above this run's limit." if len(every.values) and not most else ""
    exact = [count for count in growing(limit, min(most, EXACT_BELOW)) if limit < count < EXACT_BELOW]
    stops = {1: f"{limit:,}", **{count + 1: f"{count:,}" for count in exact}}
    # Levels are eighths of an octave: one stop an octave, at the largest count of a level, where the sum is exact.
    for level in range(EXACT_BELOW + 87, most, 8):
        largest = int(2 ** ((2 * (level - EXACT_BELOW) + 1) / 16))
        if largest > max(limit, EXACT_BELOW):
            stops[level + 1] = f"{largest:,}"
    note, passing = " Looser only: counts within the limit were not recorded.", every.where(every.passes_others)
    return _curve(setting, title, passing, stops | _NO_LIMIT, 1, note=note, missing=missing)


def _vocabulary(run: RunFolder) -> Distribution:
    """Smaller vocabularies only: of n-grams outside its own, the run did not count how often a caption has them."""
    rarest, counted, own = measured(run, "rarest_log2"), histogram(run, "ngram_count"), run.config.text.vocabulary_size
    known = rarest.values[(rarest.values > 0) & (rarest.values < 255)]
    is_whole = run.json("tables/vocabulary.json").get("all", True) or not len(known) or not len(counted.values)
    missing = "Every n-gram of this pool is in the vocabulary." if is_whole and len(rarest.values) else ""
    stops, levels = {1: f"{own:,}"}, log2_counts(counted.values)
    for level in range(4, int(known.max(initial=0)) + 1, 4):
        size = int(counted.rows[levels >= level].sum())
        if level > known.min() and 0 < size < own:
            stops[level] = f"{size:,}"
    note = " Smaller only: n-grams outside the vocabulary were not recorded."
    passing = rarest.where(rarest.passes_others)
    return _curve("text.vocabulary_size", "Size of the vocabulary", passing, stops, 1, note=note, missing=missing)
