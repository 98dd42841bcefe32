"""What the image rules measure, recomputed by plain loops."""

from collections import Counter
from math import log2

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.audit_tables import IMAGE_JOINT
from altalign.pipelines.evidence import image_joint

REASONS = ["image_damaged", "image_too_small", "image_too_elongated", "image_blocked"]
SIZES = st.one_of(st.none(), st.integers(1, 3_000))
SCORES = st.none() | st.floats(0, 1, width=32)
ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        SIZES,
        st.integers(1, 3_000),
        st.lists(st.sampled_from(REASONS), unique=True),
        st.integers(0, 10**7),
        SCORES,
    ),
    max_size=40,
)


def table(rows: list) -> pa.Table:
    """As the fetch stage has them: width and height are both known, or neither."""
    columns = {
        "source": pa.array([row[0] for row in rows], pa.string()),
        "width": pa.array([row[1] for row in rows], pa.int32()),
        "height": pa.array([row[2] if row[1] else None for row in rows], pa.int32()),
        "failed": pa.array([row[3] for row in rows], pa.list_(pa.string())),
        "reason": pa.array([row[3][0] if row[3] else None for row in rows], pa.string()),
        "format": pa.array(["jpeg" if row[1] else None for row in rows], pa.string()),
        "blob_bytes": pa.array([row[4] for row in rows], pa.int64()),
        "nsfw_score": pa.array([row[5] for row in rows], pa.float32()),
    }
    return pa.table(columns)


def counted(found: pa.Table) -> dict:
    """Rows by combination."""
    return {tuple(row.values())[:-1]: row["rows"] for row in found.to_pylist()}


@settings(derandomize=True, deadline=None, max_examples=60)
@given(ROWS)
def test_joint_counts_are_those_of_a_plain_loop(rows: list) -> None:
    expected = Counter()
    for source, width, height, failed, *_ in rows:
        short, long = (min(width, height), max(width, height)) if width else (None, None)
        percent = None if short is None else min(long * 100 // short, 1_001)
        fails_otherwise = bool(set(failed) - {"image_too_small", "image_too_elongated"})
        expected[source, None if short is None else min(short, 1_024), percent, fails_otherwise] += 1
    assert counted(image_joint.joint(table(rows))) == expected


@settings(derandomize=True, deadline=None, max_examples=60)
@given(ROWS)
def test_values_are_those_of_a_plain_loop(rows: list) -> None:
    expected = Counter()
    for source, width, _, failed, size, score in rows:
        percent = None if score is None else int(np.float32(score) * np.float32(100))
        expected[
            source,
            failed[0] if failed else "kept",
            "jpeg" if width else None,
            round(8 * log2(size)) if size else 0,
            percent,
        ] += 1
    assert counted(image_joint.values(table(rows))) == expected


@settings(derandomize=True, deadline=None, max_examples=30)
@given(ROWS, st.integers(0, 40))
def test_parts_add_up_in_any_cut(rows: list, cut: int) -> None:
    whole, parts = (
        image_joint.joint(table(rows)),
        [image_joint.joint(table(rows[:cut])), image_joint.joint(table(rows[cut:]))],
    )
    assert image_joint.total(parts, IMAGE_JOINT.schema).equals(whole)
