"""What detectors find, against plain loops over boxes and places."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from altalign.errors import UsageError
from altalign.filters import detections
from altalign.filters.detections import Detector

INPUT: dict[str, Any] = {"input_size": [8, 16], "mean": [0.0] * 3, "std": [1.0] * 3, "layout": "nchw"}
places = st.sampled_from([-0.5, 0.0, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5, float("nan")])
rows = st.lists(st.tuples(places, places, places, places, st.sampled_from([0.1, 0.5, 0.7, 0.9])), max_size=12)


def detector(**more: Any) -> Detector:
    return Detector.from_values({**INPUT, **more}, where="detector.toml")


def inside(box: list[float]) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def overlap(one: list[float], other: list[float]) -> float:
    both = inside([max(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3])])
    return both / (inside(one) + inside(other) - both)


@given(rows, st.sampled_from([0.0, 0.25, 0.5, 1.0]))
@settings(max_examples=200)
def test_boxes_are_counted_as_a_plain_loop_counts_them(values: list[tuple[float, ...]], overlap_at_most: float) -> None:
    output = np.array(values, np.float32).reshape(1, -1, 5)
    found = detections.detected([output], detector(unit="shares", overlap_at_most=overlap_at_most))
    kept = list[list[float]]()
    for *corners, score in sorted(values, key=lambda row: -row[4]):
        box = [min(1.0, max(0.0, side)) if side == side else side for side in corners]
        counts = score >= 0.5 and box[2] > box[0] and box[3] > box[1]
        if counts and all(overlap(box, other) <= overlap_at_most for other in kept):
            kept.append(box)
    assert found.number == len(kept)
    steps = [step / 256 for step in range(256)]
    covered = sum(any(b[0] <= x < b[2] and b[1] <= y < b[3] for b in kept) for x in steps[::8] for y in steps[::8])
    assert found.share == covered / 32**2  # all sides are on the coarser grid


@given(rows)
def test_middles_and_pixels_say_the_same_boxes(values: list[tuple[float, ...]]) -> None:
    sound = [row for row in values if row == row and all(side == side for side in row)]
    corners = np.array(sound, np.float32).reshape(-1, 5)
    height, width = 8, 16
    of_middles = corners.copy()
    of_middles[:, 0:2] = (corners[:, 0:2] + corners[:, 2:4]) / 2 * [width, height]
    of_middles[:, 2:4] = (corners[:, 2:4] - corners[:, 0:2]) * [width, height]
    wanted = detections.detected([corners], detector(unit="shares"))
    assert detections.detected([of_middles], detector(corners=False)) == wanted


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 7), st.integers(1, 7)), elements=st.sampled_from([0, 0.4, 1]))
)
def test_regions_of_a_map_are_those_of_a_plain_search(output: Any) -> None:
    found = detections.detected([output[None, None]], detector(finds="map", score_at_least=0.4))
    left = {(y, x) for y, x in np.ndindex(output.shape) if output[y, x] >= np.float32(0.4)}
    assert found.share == len(left) / output.size
    regions = 0
    while left:
        regions, reached = regions + 1, [left.pop()]
        while reached:
            y, x = reached.pop()
            near = {(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)} & left
            left -= near
            reached += near
    assert found.number == regions


@pytest.mark.parametrize(
    ("outputs", "more"),
    [
        ([(3, 4)], {}),
        ([(2, 3, 5)], {}),
        ([(5,)], {}),
        ([(3, 4), (2, 1)], {"boxes_output": "b", "scores_output": "s"}),
        ([(3, 4), (3, 1)], {"boxes_output": "b", "scores_output": "s", "scores_column": 1}),
        ([(4,)], {"finds": "map"}),
    ],
)
def test_outputs_of_other_shapes_are_refused(outputs: list[tuple[int, ...]], more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"shape|columns"):
        detections.detected([np.ones(shape, np.float32) for shape in outputs], detector(**more))


@pytest.mark.parametrize(
    "more", [{"finds": "map", "boxes_output": "b"}, {"map_output": "m"}, {"scores_output": "s"}, {"finds": "faces"}]
)
def test_what_does_not_go_together_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        detector(**more)
