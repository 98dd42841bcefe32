from collections import Counter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.audit_tables import TEXT_JOINT
from altalign.dedup.hash_tables import log2_counts
from altalign.pipelines.evidence.text_joint import JointCounts, combined
from altalign.pipelines.stages.text_measures import TextMeasures

derandomized = settings(derandomize=True, deadline=None, max_examples=60)


class Row(NamedTuple):
    words: int
    rarest: int
    images_per_text: int | None
    texts_per_image: int | None
    has_identity: bool


above = st.none() | st.sampled_from([11, 1_001, 1_022, 1_023, 1_024, 1_025, 5_000_000_000]) | st.integers(1, 3)
rows = st.builds(
    Row,
    st.sampled_from([0, 3, 20, 255, 1_022, 1_023, 1_024, 100_000]),
    st.sampled_from([0, 8, 255]),
    above,
    above,
    st.booleans(),
)
batches = st.lists(st.lists(rows, max_size=25), max_size=4)


def counted(some: list[Row]) -> JointCounts:
    candidates = pa.record_batch(
        {"image_identity": pa.array(["x" if row.has_identity else None for row in some], pa.string())}
    )
    measured = TextMeasures(
        pa.array([row.words for row in some], pa.int32()),
        pa.array([False] * len(some), pa.bool_()),
        np.array([row.rarest for row in some], np.uint8),
        pa.array([row.images_per_text for row in some], pa.int64()),
        pa.array([row.texts_per_image for row in some], pa.int64()),
    )
    return JointCounts.of(combined(candidates, measured))


def bounded(count: int | None) -> int:
    if count is None or count < 1_024:
        return count or 0
    return 1_024 + int(log2_counts(np.array([count]))[0])


def plain(some: list[Row]) -> list[dict[str, object]]:
    tally = Counter(
        (min(r.words, 1_023), r.rarest, bounded(r.images_per_text), bounded(r.texts_per_image), int(r.has_identity))
        for r in some
    )
    names = ("words", "rarest_log2", "images_per_text", "texts_per_image", "has_identity")
    return [
        {"source": "s", **dict(zip(names, combination, strict=True)), "rows": n}
        for combination, n in sorted(tally.items())
    ]


@given(batches)
@derandomized
def test_joint_counts_are_those_of_a_loop_whatever_the_batches(parts: list[list[Row]]) -> None:
    one_by_one, added = JointCounts(), JointCounts()
    for part in parts:
        one_by_one = one_by_one + counted(part)
        added = counted(part) + added
    every = [row for part in parts for row in part]
    table = one_by_one.to_arrow("s")
    assert table.to_pylist() == plain(every)
    assert table.schema == TEXT_JOINT.schema
    assert added.to_arrow("s") == counted(every).to_arrow("s") == table


@given(batches)
@derandomized
def test_joint_counts_survive_their_bytes(parts: list[list[Row]]) -> None:
    counts = counted([row for part in parts for row in part])
    restored = JointCounts.from_bytes(counts.to_bytes())
    assert restored.to_arrow("s") == counts.to_arrow("s")
    assert (restored + counts).to_arrow("s")["rows"].to_pylist() == [
        2 * n for n in counts.to_arrow("s")["rows"].to_pylist()
    ]


def test_adding_batches_to_one_counter_is_adding_counters() -> None:
    some = [Row(n % 30, n % 3, None, n % 5 or None, n % 2 == 0) for n in range(500)]
    counts = JointCounts()
    for begin in range(0, 500, 77):
        counts += counted(some[begin : begin + 77])
    assert counts.to_arrow("s").to_pylist() == plain(some)
    assert JointCounts().to_arrow("s").num_rows == 0


def test_more_combinations_than_first_have_room_are_counted_too() -> None:
    some = [
        Row(words, rarest, None, per_image, has_identity=True)
        for words in range(250)
        for rarest in range(0, 250, 10)
        for per_image in (None, 5, 6)
    ]
    assert counted([*some, *some]).to_arrow("s").to_pylist() == plain([*some, *some])
