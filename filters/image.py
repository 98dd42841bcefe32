"""Image-based filtering (ALIGN section 3), one function a rule: Arrow columns in, verdict out (null keeps).

A null is a value nobody could measure: it is not decided by the rule, so the rule keeps it, and another one has the
reason.
"""

from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from altalign.curation import ImageSettings
from altalign.reasons import DropReason, Verdict, drop_where


def undecodable(image_format: pa.StringArray) -> Verdict:
    """Drops what is no known image format by its first bytes (a null format)."""
    return drop_where(image_format.is_null(), DropReason.IMAGE_UNDECODABLE)


def damaged(damage: pa.StringArray) -> Verdict:
    """Drops a known format that does not decode whole (its damage is not null)."""
    return drop_where(damage.is_valid(), DropReason.IMAGE_DAMAGED)


def too_many_pixels(width: pa.Int32Array, height: pa.Int32Array, *, pixels_at_most: int) -> Verdict:
    """Drops images of more pixels than may be decoded."""
    pixels = pc.multiply(width.cast(pa.int64()), height.cast(pa.int64()))
    return _drop_where_known(pc.greater(pixels, pa.scalar(pixels_at_most)), DropReason.IMAGE_TOO_MANY_PIXELS)


def too_small(width: pa.Int32Array, height: pa.Int32Array, *, short_side_above_px: int) -> Verdict:
    """Drops a shorter side that is not strictly above the limit (ALIGN section 3: larger than 200 pixels)."""
    limit = pa.scalar(short_side_above_px)
    is_small = pc.or_(pc.less_equal(width, limit), pc.less_equal(height, limit))
    return _drop_where_known(is_small, DropReason.IMAGE_TOO_SMALL)


def too_elongated(width: pa.Int32Array, height: pa.Int32Array, *, aspect_ratio_below: float) -> Verdict:
    """Drops a ratio of long to short side that is not strictly below the limit (ALIGN section 3: smaller than 3).

    Exact: the limit counts as the decimal fraction it is written as (2.1 is 21/10, and 100 x 210 goes), in Python's
    integers, which hold any product. Images come at hundreds a second, so a loop over rows costs nothing.
    """
    limit = Fraction(str(aspect_ratio_below))
    is_elongated = [
        w is not None and h is not None and max(w, h) * limit.denominator >= min(w, h) * limit.numerator
        for w, h in zip(width.to_pylist(), height.to_pylist(), strict=True)
    ]
    return drop_where(pa.array(is_elongated, pa.bool_()), DropReason.IMAGE_TOO_ELONGATED)


def blocked(is_blocked: pa.BooleanArray) -> Verdict:
    """Drops what a block list names."""
    return _drop_where_known(is_blocked, DropReason.IMAGE_BLOCKED)


def nsfw(score: pa.FloatArray, *, drop_at_or_above: float) -> Verdict:
    """Drops a score at or above the threshold. The score is compared as it is stored, in 32 bits, without rounding the threshold."""
    return _drop_where_known(
        pc.greater_equal(score.cast(pa.float64()), pa.scalar(drop_at_or_above)), DropReason.IMAGE_NSFW
    )


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
    """The verdict of every rule of the stage, in the order of `REASONS[Stage.IMAGE]`; columns of one length, nulls where not measured."""
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
    """`drop_where` of a mask (a boolean array) whose nulls do not hold."""
    return drop_where(pc.fill_null(mask, pa.scalar(False)), reason)  # noqa: FBT003 (Arrow's own signature)
