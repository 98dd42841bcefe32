"""The image rules at their limits, with what is not known, and against a plain loop over rows."""

from fractions import Fraction
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.data.reasons import REASONS, Stage, ask, reasons_of
from altalign.filters import image
from altalign.settings.curate import ImageSettings, NsfwSettings

SIDES = st.one_of(st.none(), st.integers(1, 2**31 - 1), st.integers(1, 700))


def ints(*values: int | None) -> pa.Int32Array:
    return pa.array(values, pa.int32())


def kept(mask: pa.BooleanArray) -> list[bool]:
    return [not drops for drops in mask.to_pylist()]


def test_the_short_side_is_strictly_above_its_limit() -> None:
    sides = ints(200, 201, 201, 5000, None), ints(5000, 200, 201, 200, None)
    assert kept(image.image_too_small(*sides, short_side_above_px=200)) == [False, False, True, False, True]


def test_a_limit_of_nought_keeps_every_size() -> None:
    assert kept(image.image_too_small(ints(1), ints(1), short_side_above_px=0)) == [True]


@pytest.mark.parametrize(
    ("width", "height", "limit", "keeps"),
    [
        (201, 603, 3.0, False),
        (603, 201, 3.0, False),
        (201, 602, 3.0, True),
        (200, 500, 2.5, False),
        (200, 499, 2.5, True),
        (100, 210, 2.1, False),  # in floats 2.1 * 100 is 210.00000000000003
        (100, 209, 2.1, True),
        (10, 11, 1.1, False),
        (715_827_882, 2**31 - 1, 3.0, False),
        (715_827_883, 2**31 - 1, 3.0, True),
    ],
)
def test_the_aspect_ratio_is_compared_exactly(width: int, height: int, limit: float, *, keeps: bool) -> None:
    assert kept(image.image_too_elongated(ints(width), ints(height), aspect_ratio_below=limit)) == [keeps]


def test_pixels_are_counted_beyond_32_bits_and_the_limit_is_inclusive() -> None:
    verdict = image.image_too_many_pixels(
        ints(70_000, 50_000, 10, 10, None), ints(70_000, 50_000, 10, 11, None), pixels_at_most=100
    )
    assert kept(verdict) == [False, False, True, False, True]


def test_what_is_not_known_is_not_decided() -> None:
    assert kept(image.image_too_elongated(ints(None, 100), ints(100, None), aspect_ratio_below=3.0)) == [True, True]
    assert kept(image.image_blocked(pa.array([None, False, True]))) == [True, True, False]
    assert kept(image.image_nsfw(pa.array([None, float("nan"), 0.2], pa.float32()), drop_at_or_above=0.5)) == [
        True,
        True,
        True,
    ]


def test_formats_and_damage() -> None:
    assert image.image_undecodable(pa.array(["png", None])).to_pylist() == [False, True]
    assert image.image_damaged(pa.array(["cut", None])).to_pylist() == [True, False]


def test_a_score_at_the_threshold_goes() -> None:
    assert kept(image.image_nsfw(pa.array([0.49, 0.5, 0.51], pa.float32()), drop_at_or_above=0.5)) == [
        True,
        False,
        False,
    ]


def judged(rows: list[dict[str, object]], rules: ImageSettings) -> list[pa.StringArray]:
    def column(name: str, kind: pa.DataType) -> pa.Array:
        return pa.array([row.get(name) for row in rows], kind)

    columns = {
        "format": column("format", pa.string()),
        "damage": column("damage", pa.string()),
        "width": column("width", pa.int32()),
        "height": column("height", pa.int32()),
        "is_blocked": column("is_blocked", pa.bool_()),
        "nsfw_score": column("nsfw_score", pa.float32()),
    }
    return ask(image.RULES, columns, SimpleNamespace(image=rules))


def test_every_rule_that_holds_is_named_and_the_first_is_the_reason() -> None:
    rows: list[dict[str, object]] = [
        {},
        {"format": "jpeg", "damage": "cut", "width": 100, "height": 300},
        {"format": "png", "width": 20_000, "height": 20_000},
        {"format": "png", "width": 300, "height": 300, "is_blocked": True, "nsfw_score": 0.9},
        {"format": "png", "width": 300, "height": 300, "is_blocked": False, "nsfw_score": 0.1},
    ]
    verdicts = judged(rows, ImageSettings())
    assert len(verdicts) == len(REASONS[Stage.IMAGE])
    assert reasons_of(verdicts)[0].to_pylist() == [
        "image_undecodable",
        "image_damaged",
        "image_too_many_pixels",
        "image_blocked",
        None,
    ]
    assert reasons_of(verdicts)[1].to_pylist() == [
        ["image_undecodable"],
        ["image_damaged", "image_too_small", "image_too_elongated"],
        ["image_too_many_pixels"],
        ["image_blocked", "image_nsfw"],
        [],
    ]


def test_no_rows_have_no_verdicts() -> None:
    assert [len(verdict) for verdict in judged([], ImageSettings())] == [0] * 7


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "format": st.sampled_from(["jpeg", None]),
                "damage": st.sampled_from(["cut", None]),
                "width": SIDES,
                "height": SIDES,
                "is_blocked": st.sampled_from([None, True, False]),
                "nsfw_score": st.one_of(st.none(), st.floats(0, 1, width=32)),
            }
        ),
        max_size=20,
    ),
    ratio=st.sampled_from([1.1, 1.5, 2.1, 3.0, 2.123456789012345]),
    pixels=st.integers(1, 2**40),
)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_columns_and_a_loop_over_rows_agree(rows: list[dict[str, object]], ratio: float, pixels: int) -> None:
    rules = ImageSettings(aspect_ratio_below=ratio, pixels_at_most=pixels, nsfw=NsfwSettings(drop_at_or_above=0.3))
    assert reasons_of(judged(rows, rules))[1].to_pylist() == [one(row, rules) for row in rows]


def one(row: dict, rules: ImageSettings) -> list[str]:
    width, height, score = row["width"], row["height"], row["nsfw_score"]
    holds = []
    if row["format"] is None:
        holds.append("image_undecodable")
    if row["damage"] is not None:
        holds.append("image_damaged")
    if width is not None and height is not None:
        if width * height > rules.pixels_at_most:
            holds.append("image_too_many_pixels")
        if min(width, height) <= rules.short_side_above_px:
            holds.append("image_too_small")
        if Fraction(max(width, height), min(width, height)) >= Fraction(str(rules.aspect_ratio_below)):
            holds.append("image_too_elongated")
    if row["is_blocked"]:
        holds.append("image_blocked")
    if score is not None and score >= rules.nsfw.drop_at_or_above:
        holds.append("image_nsfw")
    return holds
