"""Stops of size and shape, and what became of pairs, by plain loops."""

from collections import Counter
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.audit_tables import OUTCOME_JOINT
from altalign.curation import ImageSettings
from altalign.filters import image
from altalign.pipelines.evidence import outcome_joint

derandomized = settings(derandomize=True, deadline=None, max_examples=100)

sides = st.sampled_from([1, 32, 33, 199, 200, 201, 400, 500, 600, 1024, 1025, 2**31 - 1]) | st.integers(1, 3_000)
limits = st.sampled_from([1.0001, 1.5, 2.495, 2.5, 2.505, 2.1, 3.0, 10.0, 3e6, 1e12, 1.3333333333333333]) | st.floats(
    1.001, 12, allow_nan=False
)


def rows_of(found: list[dict[str, Any]]) -> pa.Table:
    kinds = {
        "words": pa.int32(),
        "rarest_log2": pa.uint8(),
        "width": pa.int32(),
        "height": pa.int32(),
        "failed": pa.list_(pa.string()),
    }
    return pa.table({name: pa.array([row[name] for row in found], kind) for name, kind in kinds.items()})


def row(width: int | None, height: int | None, *failed: str, words: int = 3, rarest: int = 9) -> dict[str, Any]:
    return {"words": words, "rarest_log2": rarest, "width": width, "height": height, "failed": list(failed)}


@given(st.lists(st.tuples(sides, sides), min_size=1, max_size=20), st.integers(0, 1_100) | st.just(2**40), limits)
@derandomized
def test_what_the_stops_allow_is_what_the_rules_keep(sizes: list[tuple[int, int]], above: int, below: float) -> None:
    """At the run's own limits, and at every stop."""
    config = ImageSettings(short_side_above_px=above, aspect_ratio_below=below)
    rows = outcome_joint.of_fetched(rows_of([row(*size, words=n) for n, size in enumerate(sizes)]), config).to_pylist()
    assert [found["words"] for found in rows] == list(range(len(sizes)))
    width, height = (pa.array([size[n] for size in sizes], pa.int32()) for n in range(2))
    for stop in outcome_joint.short_sides(config):
        kept = image.too_small(width, height, short_side_above_px=stop).is_null().to_pylist()
        assert [found["short_side_px"] >= stop for found in rows] == kept
    stops = outcome_joint.aspects(config)
    assert list(stops) == sorted(stops)
    own = -(-100 * Fraction(str(below)).numerator // Fraction(str(below)).denominator)
    assert stops.get(own, own) == (Fraction(str(below)) if own < 2**31 - 1 else own)
    for percent, limit in stops.items():
        assert [found["aspect_percent"] <= percent for found in rows] == [
            max(size) < limit * min(size) for size in sizes
        ]
        if float(limit) == below:
            kept = image.too_elongated(width, height, aspect_ratio_below=below).is_null().to_pylist()
            assert [found["aspect_percent"] <= percent for found in rows] == kept


@pytest.mark.parametrize(
    ("failed", "outcome"),
    [
        ([], "kept"),
        (["image_too_small"], "not_searched"),
        (["image_too_small", "image_too_elongated"], "not_searched"),
        (["image_too_small", "image_nsfw"], "fails_otherwise"),
        (["image_blocked"], "fails_otherwise"),
        (["http_status"], "fails_otherwise"),
    ],
)
def test_the_outcome_is_by_the_rules_that_hold(failed: list[str], outcome: str) -> None:
    found = outcome_joint.of_fetched(
        rows_of([row(300, 300), row(220, 230, *failed), row(None, None, "not_in_archive")]), ImageSettings()
    )
    assert Counter(each["outcome"] for each in found.to_pylist() for _ in range(each["pairs"])) == Counter(
        ["kept", outcome, "fails_otherwise"]
    )


def test_values_go_by_steps_and_what_is_not_known_is_null() -> None:
    some = [
        row(0, 5, "image_damaged", words=3_000, rarest=255),
        row(None, 5, "image_damaged", words=1_023, rarest=254),
        row(640, 480, rarest=11),
    ]
    found = outcome_joint.of_fetched(rows_of([*some, row(639, 481, rarest=8)]), ImageSettings()).to_pylist()
    assert [tuple(each.values()) for each in found] == [
        (3, 8, 448, 150, "kept", 2),
        (1_023, 252, None, None, "fails_otherwise", 1),
        (1_023, 255, None, None, "fails_otherwise", 1),
    ]
    assert outcome_joint.of_fetched(rows_of([]), ImageSettings()).schema == OUTCOME_JOINT.schema


def test_near_duplicates_are_no_longer_kept() -> None:
    some = rows_of([row(300, 300), row(300, 300), row(640, 300)])
    added = outcome_joint.of_near_duplicates(some.slice(1), ImageSettings())
    joint = outcome_joint.image_joint.total(
        [outcome_joint.of_fetched(some, ImageSettings()), added], OUTCOME_JOINT.schema
    ).to_pylist()
    left = {
        (each["short_side_px"], each["aspect_percent"], each["outcome"]): each["pairs"]
        for each in joint
        if each["pairs"]
    }
    assert left == {(288, 125, "kept"): 1, (288, 125, "near_duplicate"): 1, (288, 225, "near_duplicate"): 1}
