"""The image rules, in the order in which they are asked: columns in, booleans out, true where a row is dropped.

A null is a value that could not be measured. The rule keeps such a row; another rule drops it and has the reason.
"""

from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from altalign.filters.text import Mask
from altalign.rules.rule import Paper, rule


@rule(
    explain="it is empty, or its first bytes match no known image format; JPEG 2000, JPEG XL and SVG are not read and "
    "have to be converted to JPEG or PNG before, HEIC too without the extra heif",
    card="no known image format",
    why="An image that cannot be decoded is of no use for training.",
)
def image_undecodable(format: pa.StringArray) -> Mask:  # noqa: A002 - the column's name
    """The first bytes are of no image format that is read: JPEG 2000, JPEG XL, SVG, HTML, nothing at all.

    Without the extra `heif`, HEIC too.
    """
    return format.is_null()


@rule(
    explain="the image is cut or corrupt",
    card="an image that does not decode whole",
    why="A damaged image is of no use for training.",
)
def image_damaged(damage: pa.StringArray) -> Mask:
    """The format is known, but the image does not decode completely."""
    return damage.is_valid()


@rule(
    setting="image.pixels_at_most",
    explain="{size}, {setting}",
    card="more pixels",
    why="Protects against decompression bombs.",
)
def image_too_many_pixels(width: pa.Int32Array, height: pa.Int32Array, *, pixels_at_most: int) -> Mask:
    """More pixels than `image.pixels_at_most`; never decoded."""
    pixels = pc.multiply(width.cast(pa.int64()), height.cast(pa.int64()))
    return _where_known(pc.greater(pixels, pa.scalar(pixels_at_most)))


@rule(
    setting="image.short_side_above_px",
    measured="short_side_px",
    explain="{size}, {setting}",
    card="a short side of so many pixels or fewer",
    paper=Paper(
        "keep only images whose shorter dimension is larger than 200 pixels",
        "Short side, above",
        "200 px",
        number=200,
        less_is_stricter=False,
        shown="{:,} px",
        note="Exactly 200 px is dropped, as in the paper.",
    ),
)
def image_too_small(width: pa.Int32Array, height: pa.Int32Array, *, short_side_above_px: int) -> Mask:
    """The short side is not above `image.short_side_above_px`."""
    limit = pa.scalar(short_side_above_px)
    return _where_known(pc.or_(pc.less_equal(width, limit), pc.less_equal(height, limit)))


@rule(
    setting="image.aspect_ratio_below",
    measured="aspect_percent",
    explain="{size}, {setting}",
    card="long side / short side of so much or more",
    paper=Paper(
        "aspect ratio is smaller than 3",
        "Aspect ratio, below",
        "3",
        number=3,
        shown="{:g}",
        note="Exactly 3 is dropped, as in the paper.",
    ),
)
def image_too_elongated(width: pa.Int32Array, height: pa.Int32Array, *, aspect_ratio_below: float) -> Mask:
    """Long side / short side is not below `image.aspect_ratio_below`."""
    # Exact: the limit is the decimal fraction as written (2.1 is 21/10, so 100 x 210 is dropped), and Python's integers
    # hold any product. Images come at hundreds a second, so a loop over rows costs nothing.
    limit = Fraction(str(aspect_ratio_below))
    is_elongated = [
        w is not None and h is not None and max(w, h) * limit.denominator >= min(w, h) * limit.numerator
        for w, h in zip(width.to_pylist(), height.to_pylist(), strict=True)
    ]
    return pa.array(is_elongated, pa.bool_())


@rule(
    explain="its hash is in a file of [image] blocked_hashes",
    card="on a block list",
    why="For legal and ethical block lists.",
)
def image_blocked(is_blocked: pa.BooleanArray) -> Mask:
    """A file of `image.blocked_hashes` lists its hash."""
    return _where_known(is_blocked)


@rule(
    setting="image.nsfw.drop_at_or_above",
    measured="nsfw_percent",
    explain="score {row[nsfw_score]}, {setting}",
    card="a classifier's score for pornography of so much or more",
    on_with="image.nsfw.model",
    paper=Paper(
        "we remove pornographic images",
        "Pornographic images",
        "removed",
        note="The paper names neither classifier nor threshold.",
        off="No classifier was set ([image.nsfw] model).",
    ),
)
def image_nsfw(nsfw_score: pa.FloatArray, *, drop_at_or_above: float) -> Mask:
    """The classifier's score is at or above `image.nsfw.drop_at_or_above`. Off without a model."""
    # The score has 32 bits; the threshold is not rounded to them.
    return _where_known(pc.greater_equal(nsfw_score.cast(pa.float64()), pa.scalar(drop_at_or_above)))


RULES = (
    image_undecodable,
    image_damaged,
    image_too_many_pixels,
    image_too_small,
    image_too_elongated,
    image_blocked,
    image_nsfw,
)


def _where_known(mask: Any) -> Mask:
    return pc.fill_null(mask, pa.scalar(False))  # noqa: FBT003 (Arrow's own signature)
