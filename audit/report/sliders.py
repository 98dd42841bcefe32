"""The sliders of *What if*: which values each threshold can be given so that the run's joint counts are exact there."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from altalign.curation import CurateConfig
from altalign.dedup.hash_tables import log2_counts
from altalign.slider_stops import EXACT_BELOW, WORDS_AT_MOST, aspects, hundredths, short_sides

NO_LIMIT = 2**31 - 1
DETAILS = 5  # coarser and coarser stops, should cells be too many

_WORDS_TOGETHER = (80, 100, 120, 150, 200, 256, 400, 600)
_GROWING = (15, 20, 30, 40, 50, 75, 100, 150, 200, 300, 500, 750, 1_000)


@dataclass(frozen=True)
class Slider:
    """A threshold and the values that it can be given.

    Attributes:
        key: for the page.
        label: what it limits.
        setting: `section.key`.
        stops: values as the setting has them, in order; `NO_LIMIT` for none.
        bounds: of each stop, the value that measured ones are held against; rising.
        labels: of each stop, for people.
        at: the number of the run's own stop.
        about: where it can be moved.
        disabled: why it cannot be moved; else empty.
        is_from_below: whether what is at a bound or above it is allowed; else what is at it or below.
        is_of_text: whether `judge` asks it.
    """

    key: str
    label: str
    setting: str
    stops: tuple[float, ...]
    bounds: tuple[int, ...]
    labels: tuple[str, ...]
    at: int
    about: str
    disabled: str = ""
    is_from_below: bool = False
    is_of_text: bool = True

    def numbers(self, values: np.ndarray) -> np.ndarray:
        """Of each value, one more than the number of the last stop (from below) or the first stop (else) that allows it: uint8; 0 or 255 where none does."""
        bounds = np.asarray(self.bounds, np.int64)
        if self.is_from_below:
            return np.searchsorted(bounds, values, side="right").astype(np.uint8)
        found = np.searchsorted(bounds, values, side="left")
        return np.where(found == len(bounds), 255, found + 1).astype(np.uint8)

    def allows(self, numbers: np.ndarray, at: int) -> np.ndarray:
        """Which of these the slider at a stop allows."""
        return numbers >= at + 1 if self.is_from_below else numbers <= at + 1


def of_text(config: CurateConfig, joint: dict[str, np.ndarray], ngrams: np.ndarray, *, detail: int) -> list[Slider]:
    """Sliders of what `judge` asks.

    Args:
        config: of the run.
        joint: columns of audit/pairs_joint.parquet.
        ngrams: of every count, how many n-grams have it: int64[n, 2]; empty where the run has no vocabulary.
        detail: 0 is the finest.
    """
    shared, captioned = config.text.images_per_text_at_most, config.image.texts_per_image_at_most
    return [
        *_words(config.text.words_at_least, config.text.words_at_most, detail),
        _looser(
            "images_per_text",
            "Images of a text, at most",
            "text.images_per_text_at_most",
            shared,
            joint["images_per_text"],
            detail,
        ),
        _looser(
            "texts_per_image",
            "Texts of an image, at most",
            "image.texts_per_image_at_most",
            captioned,
            joint["texts_per_image"],
            detail,
        ),
        _vocabulary(config.text.vocabulary_size, joint["rarest_log2"], ngrams, detail),
    ]


def of_images(config: CurateConfig, *, is_counted: bool, is_searched: bool) -> list[Slider]:
    """Sliders of size and shape."""
    why = "" if is_counted else "This run has no audit/outcome_joint.parquet."
    side, below = min(config.image.short_side_above_px, NO_LIMIT), config.image.aspect_ratio_below
    sides, own = short_sides(config.image), hundredths(below)
    percents = sorted({*aspects(config.image), own})
    ratios = [below if each == own else each / 100 for each in percents]
    about = "Both ways. What is newly let in was not searched for near-duplicates." if is_searched else "Both ways."
    return [
        Slider(
            "short_side", "Short side in pixels, above", "image.short_side_above_px", tuple(sides), tuple(sides), _said(sides), sides.index(side), about, why,
            is_from_below=True, is_of_text=False,
        ),
        Slider(
            "aspect", "Aspect ratio, below", "image.aspect_ratio_below", tuple(ratios), tuple(percents), tuple(f"{ratio:g}" for ratio in ratios),
            percents.index(own), about, why, is_of_text=False,
        ),
    ]  # fmt: skip


def _words(least: int, most: int, detail: int) -> list[Slider]:
    """Every number up to 60 (30 where that is too many), then some; what is counted as one nothing tells apart."""
    whole, own = range(61 if detail < 3 else 31), min(most, NO_LIMIT)
    lows = sorted({*whole, *(each for each in _WORDS_TOGETHER if each < least), least})
    limits = sorted({*whole, *_WORDS_TOGETHER, own, WORDS_AT_MOST - 1, NO_LIMIT})
    low, high = (
        (tuple(lows), tuple(lows), _said(lows), lows.index(least)),
        (tuple(limits), tuple(limits), _said(limits), limits.index(own)),
    )
    return [
        Slider("words_at_least", "Words, at least", "text.words_at_least", *low, "Both ways.", is_from_below=True),
        Slider("words_at_most", "Words, at most", "text.words_at_most", *high, "Both ways."),
    ]


def _looser(key: str, label: str, setting: str, limit: int, measured: np.ndarray, detail: int) -> Slider:
    """The run's own limit, then larger ones up to the most that was measured, then none. Within the limit the run has counted nothing."""
    most = int(measured.max(initial=0))
    thin = 3 if detail > 3 else 1
    grown = [each for each in _GROWING[::thin] if each > limit and each < most]
    # an octave each; the largest number of a level is a limit that is exact
    levels = range(EXACT_BELOW + 87, most, 8 * thin)
    stops, bounds = [limit, *grown], [0, *grown]
    for level in levels:
        if (largest := _largest_of(level - EXACT_BELOW)) > max(limit, EXACT_BELOW - 1):
            stops.append(largest)
            bounds.append(level)
    stops, bounds = [*stops, NO_LIMIT], [*bounds, NO_LIMIT]
    why = "" if most else "Nothing is above the run's own limit."
    return Slider(
        key,
        label,
        setting,
        tuple(stops),
        tuple(bounds),
        _said(stops),
        0,
        "Looser only: what is within the limit was not told apart.",
        why,
    )


def _largest_of(level: int) -> int:
    """The largest number whose eight times log2, rounded, is the level."""
    guess = int(2 ** ((2 * level + 1) / 16))
    return max(each for each in range(guess - 2, guess + 3) if log2_counts(np.array([each]))[0] <= level)


def _vocabulary(size: int, rarest: np.ndarray, ngrams: np.ndarray, detail: int) -> Slider:
    """The run's own vocabulary, then ever fewer n-grams: those whose count has a level or a higher one."""
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
    why = "" if len(stops) > 1 else "Every n-gram of this pool is in the vocabulary, so that no order of them was kept."
    about = "Stricter only: of n-grams outside the vocabulary the run has kept nothing."
    return Slider(
        "vocabulary",
        "Vocabulary",
        "text.vocabulary_size",
        tuple(stops),
        tuple(bounds),
        tuple(labels),
        0,
        about,
        why,
        is_from_below=True,
    )


def _said(stops: Iterable[int]) -> tuple[str, ...]:
    return tuple("no limit" if stop == NO_LIMIT else f"{stop:,}" for stop in stops)
