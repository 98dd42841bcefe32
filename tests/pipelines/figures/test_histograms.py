"""Histograms of what the rules measure against plain loops, whole and in parts."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.data.audit_tables import IMAGE_VALUES, MEASURED
from altalign.pipelines.figures import image_figures, text_figures
from altalign.pipelines.figures.text_figures import OF_IMAGE, OF_TEXT, Histograms
from altalign.storage import parquet

TYPES: dict[str, pa.DataType] = {
    "source": pa.string(),
    "reason": pa.string(),
    "format": pa.string(),
    "blob_bytes": pa.int64(),
    "width": pa.int32(),
    "height": pa.int32(),
    "nsfw_score": pa.float32(),
    "failed": pa.list_(pa.string()),
}
sides = st.none() | st.tuples(*[st.sampled_from([1, 9, 200, 201, 1_023, 1_024, 40_000])] * 2)
reasons = st.sampled_from(["image_too_small", "image_too_elongated", "image_nsfw", "image_damaged"])
images = st.lists(
    st.tuples(sides, st.sampled_from([None, 0.0, 0.29, 0.999, 1.0]), st.lists(reasons, unique=True)), max_size=30
)


def table(rows: list[Any]) -> pa.Table:
    """Candidates with these sizes, scores and reasons, as `fetch` has them."""
    columns = {name: [] for name in TYPES}
    for number, (size, score, failed) in enumerate(rows):
        width, height = size or (None, None)
        reason = failed[0] if failed else None
        values = ("web", reason, ("jpeg", None)[number % 2], 7 * number, width, height, score, failed)
        for name, value in zip(TYPES, values, strict=True):
            columns[name].append(value)
    return pa.table({name: pa.array(columns[name], of) for name, of in TYPES.items()})


def counted(rows: pa.Table) -> pa.Table:
    found = Histograms(OF_IMAGE)
    found.add(image_figures.image_measures(rows), parquet.values(rows, "failed"), np.arange(len(rows)))
    return found.to_arrow()


@given(images)
def test_images_count_once_in_each_measure(rows: list[Any]):
    expected: Counter[tuple[Any, ...]] = Counter()
    for size, score, failed in rows:
        short, long = sorted(size or (0, 0))
        values = {
            "short_side_px": min(short, 1_024) if size else None,
            "aspect_percent": min(100 * long // short, 1_001) if size else None,
            "nsfw_percent": None if score is None else int(np.float32(score) * np.float32(100)),
        }
        own = {
            "short_side_px": "image_too_small",
            "aspect_percent": "image_too_elongated",
            "nsfw_percent": "image_nsfw",
        }
        expected.update((name, value, bool({*failed} - {own[name]})) for name, value in values.items())
    found = counted(table(rows))
    assert found.schema == MEASURED
    assert {tuple(row.values())[:3]: row["rows"] for row in found.to_pylist()} == expected


@given(images, st.integers(0, 30))
def test_parts_add_up_to_the_whole(rows: list[Any], cut: int):
    every = table(rows)
    for make, schema in ((counted, MEASURED), (image_figures.image_values, IMAGE_VALUES.schema)):
        parts = [make(every.slice(0, cut)), make(every.slice(cut))]
        assert text_figures.sum_of(parts, schema).equals(text_figures.sum_of([make(every)], schema))


def test_many_parts_are_added_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text_figures, "_AT_ONCE", 10)
    parts = [counted(table([((200 + number, 300), None, [])])) for number in range(40)]
    found = text_figures.sum_of(parts * 2, MEASURED)
    assert found.filter(pc.equal(found["measure"], pa.scalar("short_side_px")))["rows"].to_pylist() == [2] * 40


def test_counts_of_texts_are_exact_below_1_024_and_in_eighths_of_an_octave_above():
    counts = pa.array([None, 11, 1_023, 1_024, 2_048, 10**6], pa.int64())
    values = text_figures.values_of(
        pa.array([0, 3, 1_022, 1_023, 5_000, 20], pa.int32()), np.zeros(6, np.uint8), counts, counts
    )
    assert values["images_per_text"].tolist() == [0, 11, 1_023, 1_024 + 80, 1_024 + 88, 1_024 + 159]
    assert values["words"].tolist() == [0, 3, 1_022, 1_023, 1_023, 20]


def test_a_row_fails_otherwise_by_rules_on_anything_else():
    found, none = Histograms(OF_TEXT), pa.array([None] * 3, pa.int64())
    values = text_figures.values_of(pa.array([1, 1, 30], pa.int32()), np.full(3, 255, np.uint8), none, none)
    failed = [["text_too_short"], ["text_too_short", "text_has_rare_ngram"], ["text_too_long"]]
    found.add(values, failed, np.array([0, 1, 2]))
    rows = [tuple(row.values()) for row in found.to_arrow().to_pylist()]
    assert [row[1:] for row in rows if row[0] == "words"] == [(1, False, 1), (30, False, 1), (1, True, 1)]
    assert [row[1:] for row in rows if row[0] == "rarest_log2"] == [(255, True, 3)]
