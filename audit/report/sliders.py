"""The sliders of *What if*: the values of each threshold at which the run's joint counts are exact."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from altalign.curation import CurateConfig
from altalign.dedup.hash_tables import log2_counts
from altalign.slider_stops import EXACT_BELOW, WORDS_AT_MOST, aspects, hundredths, short_sides

NO_LIMIT = 2**31 - 1
DETAILS = 5  # coarser and coarser stops, should cells be too many

_TEXTS_PER_IMAGE = "image.texts_per_image_at_most"
_WORDS_TOGETHER = (80, 100, 120, 150, 200, 256, 400, 600)
_GROWING = (15, 20, 30, 40, 50, 75, 100, 150, 200, 300, 500, 750, 1_000)


@dataclass(frozen=True)
class Slider:
    """A threshold and the values that it can be given.

    Attributes:
        key: its name in the page.
        label: what it limits.
        setting: the setting that it stands for, as `section.key`.
        stops: the values of the setting, in order; `NO_LIMIT` means no limit.
        bounds: for each stop, the bound that measured values are compared with; rising.
        labels: for each stop, the text that people see.
        at: the number of the run's own stop.
        about: in which directions it can be moved.
        disabled: why it cannot be moved; empty if it can.
        is_from_below: whether values at or above a bound are allowed; otherwise those at or below it.
        is_of_text: whether `judge` applies this threshold.
    """

    key: str
    label: str
    setting: str
    stops: tuple[float, ...]
    bounds: tuple[float, ...]
    labels: tuple[str, ...]
    at: int
    about: str
    disabled: str = ""
    is_from_below: bool = False
    is_of_text: bool = True

    def numbers(self, values: np.ndarray) -> np.ndarray:
        """Encodes each value by the stop that decides about it: uint8[n], read by `allows`.

        It is one more than the number of the last stop (from below) or of the first stop (otherwise) that allows the
        value; 0 or 255 if no stop does.
        """
        bounds = np.asarray(self.bounds)
        if self.is_from_below:
            return np.searchsorted(bounds, values, side="right").astype(np.uint8)
        found = np.searchsorted(bounds, values, side="left")
        return np.where(found == len(bounds), 255, found + 1).astype(np.uint8)

    def allows(self, numbers: np.ndarray, at: int) -> np.ndarray:
        """Which of these encoded values the slider allows at a stop: bool[n]."""
        return numbers >= at + 1 if self.is_from_below else numbers <= at + 1


def of_text(config: CurateConfig, joint: dict[str, np.ndarray], ngrams: np.ndarray, *, detail: int) -> list[Slider]:
    """Sliders of the thresholds of `judge`.

    Args:
        config: the settings of the run.
        joint: columns of audit/pairs_joint.parquet.
        ngrams: counts and how many n-grams have each, int64[n, 2]; empty if the run has no vocabulary.
        detail: how coarse the stops are; 0 is the finest.
    """
    shared, captioned = config.text.images_per_text_at_most, config.image.texts_per_image_at_most
    return [
        *_words(config.text.words_at_least, config.text.words_at_most, detail),
        _looser("images_per_text", "Images of a text, at most", "text.images_per_text_at_most", shared, joint, detail),
        _looser("texts_per_image", "Texts of an image, at most", _TEXTS_PER_IMAGE, captioned, joint, detail),
        _vocabulary(config.text.vocabulary_size, joint["rarest_log2"], ngrams, detail),
    ]


def of_images(config: CurateConfig, *, is_counted: bool, is_searched: bool) -> list[Slider]:
    """Sliders of the image's size and shape."""
    why = "" if is_counted else "This run has no audit/outcome_joint.parquet."
    side, below = min(config.image.short_side_above_px, NO_LIMIT), config.image.aspect_ratio_below
    sides, own = short_sides(config.image), hundredths(below)
    percents = sorted({*aspects(config.image), own})
    ratios = [below if each == own else each / 100 for each in percents]
    about = "Both ways. Newly admitted images were not searched for near-duplicates." if is_searched else "Both ways."
    of_side = tuple(sides), tuple(sides), _said(sides), sides.index(side), about, why
    of_shape = tuple(ratios), tuple(percents), tuple(f"{each:g}" for each in ratios), percents.index(own), about, why
    named = ("short_side", "Short side in pixels, above", "image.short_side_above_px")
    return [
        Slider(*named, *of_side, is_from_below=True, is_of_text=False),
        Slider("aspect", "Aspect ratio, below", "image.aspect_ratio_below", *of_shape, is_of_text=False),
    ]


def _words(least: int, most: int, detail: int) -> list[Slider]:
    """Stops at every number up to 60 (30 if those are too many), then where the counts tell values apart."""
    whole, own = range(61 if detail < 3 else 31), min(most, NO_LIMIT)
    lows = sorted({*whole, *(each for each in _WORDS_TOGETHER if each < least), least})
    limits = sorted({*whole, *_WORDS_TOGETHER, own, WORDS_AT_MOST - 1, NO_LIMIT})
    low = tuple(lows), tuple(lows), _said(lows), lows.index(least)
    high = tuple(limits), tuple(limits), _said(limits), limits.index(own)
    return [
        Slider("words_at_least", "Words, at least", "text.words_at_least", *low, "Both ways.", is_from_below=True),
        Slider("words_at_most", "Words, at most", "text.words_at_most", *high, "Both ways."),
    ]


def _looser(key: str, label: str, setting: str, limit: int, joint: dict[str, np.ndarray], detail: int) -> Slider:
    """Stops from the run's own limit up to the largest measured value, then no limit."""
    most = int(joint[key].max(initial=0))
    thin = 3 if detail > 3 else 1
    grown = [each for each in _GROWING[::thin] if each > limit and each < most]
    # one stop an octave; the largest number of a level is a limit at which the counts are exact
    levels = range(EXACT_BELOW + 87, most, 8 * thin)
    stops, bounds = [limit, *grown], [0, *grown]
    for level in levels:
        if (largest := _largest_of(level - EXACT_BELOW)) > max(limit, EXACT_BELOW - 1):
            stops.append(largest)
            bounds.append(level)
    stops, bounds = [*stops, NO_LIMIT], [*bounds, NO_LIMIT]
    why = "" if most else "Nothing is above this run's limit."
    about = "Looser only: counts below the limit were not recorded."
    return Slider(key, label, setting, tuple(stops), tuple(bounds), _said(stops), 0, about, why)


def _largest_of(level: int) -> int:
    """The largest number whose level (8 x log2, rounded) is this one."""
    guess = int(2 ** ((2 * level + 1) / 16))
    return max(each for each in range(guess - 2, guess + 3) if log2_counts(np.array([each]))[0] <= level)


def _vocabulary(size: int, rarest: np.ndarray, ngrams: np.ndarray, detail: int) -> Slider:
    """Stops from the run's own vocabulary to ever fewer n-grams: those whose count has at least some level."""
    known = rarest[rarest < 255]
    step = 4 << detail
    levels = range(step, int(known.max(initial=0)) + 1, step) if len(ngrams) and len(known) else []
    stops, bounds, labels = [size], [0], [f"{size:,} n-grams"]
    of_count = log2_counts(ngrams[:, 0]) if len(ngrams) else np.zeros(0, np.uint8)
    for level in levels:
        is_in = of_count >= level
        if level > int(known.min()) and 0 < (left := int(ngrams[is_in, 1].sum())) < size:
            stops.append(left)
            bounds.append(level)
            labels.append(f"{left:,} n-grams (seen {int(ngrams[is_in, 0].min()):,} times or more)")
    why = "" if len(stops) > 1 else "Every n-gram of this pool is in the vocabulary, so their order was not recorded."
    about = "Stricter only: n-grams outside the vocabulary were not recorded."
    named, at = ("vocabulary", "Vocabulary", "text.vocabulary_size"), 0
    return Slider(*named, tuple(stops), tuple(bounds), tuple(labels), at, about, why, is_from_below=True)


def _said(stops: Iterable[int]) -> tuple[str, ...]:
    return tuple("no limit" if stop == NO_LIMIT else f"{stop:,}" for stop in stops)
