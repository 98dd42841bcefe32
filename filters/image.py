"""Image-based filtering (ALIGN section 3), one function for each rule: Arrow columns in, verdict out (null keeps).

A null is a value that could not be measured. The rule keeps such a row; another rule drops it and has the reason.
"""

from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from altalign.data.reasons import DropReason, Verdict, drop_where
from altalign.settings.curate import ImageSettings


def undecodable(image_format: pa.StringArray) -> Verdict:
    """Drops bytes that begin like no known image format (a null format)."""
    return drop_where(image_format.is_null(), DropReason.IMAGE_UNDECODABLE)


def damaged(damage: pa.StringArray) -> Verdict:
    """Drops a known format that does not decode completely (its damage is not null)."""
    return drop_where(damage.is_valid(), DropReason.IMAGE_DAMAGED)


def too_many_pixels(width: pa.Int32Array, height: pa.Int32Array, *, pixels_at_most: int) -> Verdict:
    """Drops images with more pixels than may be decoded."""
    pixels = pc.multiply(width.cast(pa.int64()), height.cast(pa.int64()))
    return _drop_where_known(pc.greater(pixels, pa.scalar(pixels_at_most)), DropReason.IMAGE_TOO_MANY_PIXELS)


def too_small(width: pa.Int32Array, height: pa.Int32Array, *, short_side_above_px: int) -> Verdict:
    """Drops images whose shorter side is not strictly above the limit (ALIGN section 3: larger than 200 pixels)."""
    limit = pa.scalar(short_side_above_px)
    is_small = pc.or_(pc.less_equal(width, limit), pc.less_equal(height, limit))
    return _drop_where_known(is_small, DropReason.IMAGE_TOO_SMALL)


def too_elongated(width: pa.Int32Array, height: pa.Int32Array, *, aspect_ratio_below: float) -> Verdict:
    """Drops images whose ratio of long to short side is not strictly below the limit (ALIGN section 3: smaller than 3).

    The comparison is exact: the limit is the decimal fraction as written (2.1 is 21/10, so 100 x 210 is dropped), and
    Python's integers hold any product. Images come at hundreds a second, so a loop over rows costs nothing.
    """
    limit = Fraction(str(aspect_ratio_below))
    is_elongated = [
        w is not None and h is not None and max(w, h) * limit.denominator >= min(w, h) * limit.numerator
        for w, h in zip(width.to_pylist(), height.to_pylist(), strict=True)
    ]
    return drop_where(pa.array(is_elongated, pa.bool_()), DropReason.IMAGE_TOO_ELONGATED)


def blocked(is_blocked: pa.BooleanArray) -> Verdict:
    """Drops images that a block list names."""
    return _drop_where_known(is_blocked, DropReason.IMAGE_BLOCKED)


def nsfw(score: pa.FloatArray, *, drop_at_or_above: float) -> Verdict:
    """Drops a score at or above the threshold; the score has 32 bits, the threshold is not rounded to them."""
    is_at_or_above = pc.greater_equal(score.cast(pa.float64()), pa.scalar(drop_at_or_above))
    return _drop_where_known(is_at_or_above, DropReason.IMAGE_NSFW)


def judge_images(
    *,
    image_format: pa.StringArray,
    damage: pa.StringArray,
    width: pa.Int32Array,
    height: pa.Int32Array,
    is_blocked: pa.BooleanArray,
    nsfw_score: pa.FloatArray,
    rules: ImageSettings,
) -> list[Verdict]:
    """The verdict of every rule of the stage, in the order of `REASONS[Stage.IMAGE]`.

    All columns have n rows; a value that was not measured is null.
    """
    return [
        undecodable(image_format),
        damaged(damage),
        too_many_pixels(width, height, pixels_at_most=rules.pixels_at_most),
        too_small(width, height, short_side_above_px=rules.short_side_above_px),
        too_elongated(width, height, aspect_ratio_below=rules.aspect_ratio_below),
        blocked(is_blocked),
        nsfw(nsfw_score, drop_at_or_above=rules.nsfw.drop_at_or_above),
    ]


def _drop_where_known(mask: Any, reason: DropReason) -> Verdict:
    """`drop_where` for a mask (a boolean array) in which null counts as false."""
    return drop_where(pc.fill_null(mask, pa.scalar(False)), reason)  # noqa: FBT003 (Arrow's own signature)
