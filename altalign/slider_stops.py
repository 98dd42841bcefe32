"""The resolution of joint counts, shared by the code that counts (`pipelines`) and the code that sums (`audit`).

A stop is a value to which a slider may set a limit; the run's own limits are among the stops.
"""

from fractions import Fraction
from math import ceil

from altalign.curation import ImageSettings

WORDS_AT_MOST = 1_023  # more words are counted as this many
EXACT_BELOW = 1_024  # images of a text, texts of an image; larger counts n become 1,024 + 8 log2(n), rounded
SHORT_SIDE_AT_MOST = 1_024  # pixels; more are counted as this many
ASPECT_AT_MOST = 1_001  # hundredths; more are counted as this many
ABOVE_ALL = 2**31 - 1

# What became of a pair that `judge` kept.
KEPT, NEAR_DUPLICATE, NOT_SEARCHED, FAILS_OTHERWISE = "kept", "near_duplicate", "not_searched", "fails_otherwise"
OUTCOMES = (KEPT, NEAR_DUPLICATE, NOT_SEARCHED, FAILS_OTHERWISE)

# fmt: off
_SHORT_SIDES = (
    0, 32, 64, 96, 100, 128, 160, 192, 200, 224, 240, 256,
    288, 320, 336, 384, 400, 448, 512, 600, 640, 768, 800, 1_024,
)  # pixels
# fmt: on
_ASPECTS = (125, 150, 175, 200, 225, 250, 300, 350, 400, 500, 600, 800, 1_000)  # hundredths


def short_sides(config: ImageSettings) -> list[int]:
    """The stops of the short side in pixels, rising."""
    return sorted({*_SHORT_SIDES, min(config.short_side_above_px, ABOVE_ALL)})


def aspects(config: ImageSettings) -> dict[int, Fraction]:
    """The stops of long side / short side, rising: hundredths -> exact value.

    The run's own limit replaces a stop of the same hundredths, so that what is below it is exactly what the rule keeps.
    """
    own = config.aspect_ratio_below
    stops = {**{percent: Fraction(percent, 100) for percent in _ASPECTS}, hundredths(own): Fraction(str(own))}
    return {percent: stops[percent] for percent in sorted(stops) if percent < ABOVE_ALL}


def hundredths(limit: float) -> int:
    """A limit in hundredths, rounded up; values compared with it are rounded down.

    The limit counts as it is written in decimals: in binary, 100 * 2.2 is more than 220.
    """
    return ceil(100 * Fraction(str(limit)))
