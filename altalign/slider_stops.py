"""How far joint counts tell values apart: known to those who count (`pipelines`) and to those who sum (`audit`).

A stop is a place where a limit may be put; the run's own limits are among them.
"""

from fractions import Fraction
from math import ceil

from altalign.curation import ImageSettings

WORDS_AT_MOST = 1_023  # more are counted as so many
EXACT_BELOW = 1_024  # images of a text, texts of an image; from there on 1,024 + eight times log2, rounded
SHORT_SIDE_AT_MOST = 1_024  # pixels; more are counted as so many
ASPECT_AT_MOST = 1_001  # hundredths; the same
ABOVE_ALL = 2**31 - 1

# What became of a pair that `judge` kept.
OUTCOMES = (KEPT, NEAR_DUPLICATE, NOT_SEARCHED, FAILS_OTHERWISE) = (
    "kept",
    "near_duplicate",
    "not_searched",
    "fails_otherwise",
)

_SHORT_SIDES = (
    0,
    32,
    64,
    96,
    100,
    128,
    160,
    192,
    200,
    224,
    240,
    256,
    288,
    320,
    336,
    384,
    400,
    448,
    512,
    600,
    640,
    768,
    800,
    1_024,
)
_ASPECTS = (125, 150, 175, 200, 225, 250, 300, 350, 400, 500, 600, 800, 1_000)  # hundredths


def short_sides(config: ImageSettings) -> list[int]:
    """The stops of the short side, pixels, rising."""
    return sorted({*_SHORT_SIDES, min(config.short_side_above_px, ABOVE_ALL)})


def aspects(config: ImageSettings) -> dict[int, Fraction]:
    """The stops of long side / short side, rising: in hundredths, and exactly.

    What else would have the number of the run's own gives way: below it is what the rule keeps, to the pixel.
    """
    own = config.aspect_ratio_below
    stops = {**{percent: Fraction(percent, 100) for percent in _ASPECTS}, hundredths(own): Fraction(str(own))}
    return {percent: stops[percent] for percent in sorted(stops) if percent < ABOVE_ALL}


def hundredths(limit: float) -> int:
    """A limit in hundredths as it is written (100 * 2.2 is more than 220 in binary), rounded up: what is held against it is rounded down."""
    return ceil(100 * Fraction(str(limit)))
