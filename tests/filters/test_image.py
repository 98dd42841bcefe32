"""The image rules at their limits, with what is not known, and against a plain loop over rows."""

from fractions import Fraction
from types import SimpleNamespace

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.data.reasons import REASONS, Stage, ask, reasons_of
from altalign.filters import image
from altalign.settings.curate import ImageSettings, NsfwSettings

SIDES = st.one_of(st.none(), st.integers(1, 2**31 - 1), st.integers(1, 700))


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
