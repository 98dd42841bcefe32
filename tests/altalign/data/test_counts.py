import itertools
import json
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.data.counts import Counts, FailedCounts, combinations
from altalign.data.reasons import KEPT, REASONS, Stage, drop_where, reasons_of
from altalign.data.schema import COUNTS, FAILED
from altalign.errors import CountsError

SOURCES = ["north", "south", ""]
CELLS = [(stage, source, reason) for stage in Stage for source in SOURCES for reason in (KEPT, *REASONS[stage])]
STAGES = tuple(Stage)

cells = st.dictionaries(st.sampled_from(CELLS), st.integers(1, 10**12), max_size=20)


def counts_of(rows: dict[tuple[Stage, str, str], int]) -> Counts:
    counts = Counts()
    for (stage, source, reason), n in rows.items():
        counts.add_rows(stage, source, reason, n)
    return counts


@st.composite
def runs(draw: st.DrawFn) -> dict[tuple[Stage, str, str], int]:
    """Cells of a run whose counts add up."""
    rows: dict[tuple[Stage, str, str], int] = {}
    for source in draw(st.lists(st.sampled_from(SOURCES), unique=True)):
        left = draw(st.integers(0, 50))
        for stage in STAGES:
            received = left
            for reason in REASONS[stage]:
                rows[stage, source, reason] = draw(st.integers(0, left))
                left -= rows[stage, source, reason]
            rows[stage, source, KEPT] = left
            assert received >= left
    return rows


@pytest.mark.parametrize(
    ("stage", "reason"),
    [(Stage.JUDGE, "http_status"), (Stage.FETCH, "url_invalid"), (Stage.EXTRACT, "nonsense"), (Stage.IMAGE, "")],
)
def test_a_reason_that_is_none_of_the_stage_is_refused(stage: Stage, reason: str) -> None:
    counts = Counts()
    with pytest.raises(CountsError, match=f"{stage.value} has no drop reason '{reason}'"):
        counts.add_rows(stage, "north", reason, 1)
    with pytest.raises(CountsError):
        Counts.from_json([[stage.value, "north", reason, 1]])


def test_only_what_occurred_is_there() -> None:
    counts = Counts()
    counts.add_rows(Stage.JUDGE, "north", "text_empty", 0)
    assert counts == Counts()
    assert counts.to_json() == []
    assert counts.to_arrow() == COUNTS.empty_table()


@given(cells, cells)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_sums_are_those_of_a_plain_loop_and_change_neither_side(
    one: dict[tuple[Stage, str, str], int], two: dict[tuple[Stage, str, str], int]
) -> None:
    left, right = counts_of(one), counts_of(two)
    expected = counts_of({cell: one.get(cell, 0) + two.get(cell, 0) for cell in {*one, *two}})
    assert Counts.from_json([*left.to_json(), *right.to_json()]) == expected
    assert (left, right) == (counts_of(one), counts_of(two))


@given(cells)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_json_and_arrow_hold_all_of_it(rows: dict[tuple[Stage, str, str], int]) -> None:
    counts = counts_of(rows)
    assert Counts.from_json(json.loads(json.dumps(counts.to_json()))) == counts
    table = counts.to_arrow()
    assert table.schema == COUNTS
    assert Counts.from_json([list(row.values()) for row in table.to_pylist()]) == counts


@given(st.permutations(CELLS))
@settings(derandomize=True, deadline=None, max_examples=10)
def test_foundstand_in_the_order_of_stages_sources_and_rules_whatever_came_first(
    shuffled: Sequence[tuple[Stage, str, str]],
) -> None:
    found = [tuple(row[:3]) for row in counts_of(dict.fromkeys(shuffled, 1)).to_json()]
    assert found == [
        (stage.value, source, str(reason))
        for stage in Stage
        for source in sorted(SOURCES)
        for reason in (KEPT, *REASONS[stage])
    ]


@given(cells)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_received_is_kept_and_dropped(rows: dict[tuple[Stage, str, str], int]) -> None:
    counts = counts_of(rows)
    for stage in Stage:
        assert counts.received(stage) == counts.kept(stage) + sum(counts.dropped(stage).values())
        assert counts.received(stage) == sum(n for (of, _, _), n in rows.items() if of is stage)


@given(runs())
@settings(derandomize=True, deadline=None, max_examples=50)
def test_a_run_that_adds_up_is_accepted(rows: dict[tuple[Stage, str, str], int]) -> None:
    counts = counts_of(rows)
    counts.reconcile(STAGES, pairs=counts.kept(STAGES[-1]))
    counts.reconcile(STAGES[:1])
    counts.reconcile([])


@given(
    runs(),
    st.sampled_from([cell for cell in CELLS if cell[0] is not STAGES[0] or cell[2] == KEPT]),
    st.sampled_from([-1, 1, 1000]),
)
@settings(derandomize=True, deadline=None, max_examples=200)
def test_every_change_of_a_single_cell_is_found(
    rows: dict[tuple[Stage, str, str], int], cell: tuple[Stage, str, str], by: int
) -> None:
    pairs = counts_of(rows).kept(STAGES[-1])
    changed = {**rows, cell: max(0, rows.get(cell, 0) + by)}
    if changed[cell] != rows.get(cell, 0):
        with pytest.raises(CountsError, match="counts do not add up"):
            counts_of(changed).reconcile(STAGES, pairs=pairs)


def test_foundthat_change_their_source_are_found() -> None:
    counts = Counts({("extract", "north", KEPT): 5, ("judge", "south", KEPT): 5})
    with pytest.raises(CountsError, match="extract kept 5 pairs of 'north', judge received 0"):
        counts.reconcile([Stage.EXTRACT, Stage.JUDGE])


def test_shards_that_hold_other_than_was_kept_are_found() -> None:
    counts = Counts({("extract", "north", KEPT): 5})
    for pairs in (0, 4, 6):
        with pytest.raises(CountsError, match=f"extract kept 5 pairs, the shards hold {pairs}"):
            counts.reconcile([Stage.EXTRACT], pairs=pairs)


def test_the_summary_has_each_stage_with_its_reasons_in_the_order_of_the_rules() -> None:
    counts = Counts(
        {
            ("judge", "north", "text_too_long"): 1,
            ("judge", "south", "text_too_short"): 2,
            ("judge", "north", "text_too_short"): 3,
            ("judge", "south", KEPT): 4,
            ("extract", "north", KEPT): 10,
        }
    )
    found = counts.summary([Stage.EXTRACT, Stage.JUDGE, Stage.FETCH])
    assert found == [
        {"stage": "extract", "received": 10, "kept": 10, "dropped": {}},
        {"stage": "judge", "received": 10, "kept": 4, "dropped": {"text_too_short": 5, "text_too_long": 1}},
        {"stage": "fetch", "received": 0, "kept": 0, "dropped": {}},
    ]
    assert (
        json.dumps(found[1])
        == '{"stage": "judge", "received": 10, "kept": 4, "dropped": {"text_too_short": 5, "text_too_long": 1}}'
    )


def test_counts_are_no_keys() -> None:
    with pytest.raises(TypeError):
        hash(Counts())
    assert Counts() != {}
    assert all(one == two for one, two in itertools.product([Counts(), Counts({})], repeat=2))


def failed_foundof(stage: Stage) -> st.SearchStrategy[tuple[Stage, str, list[str]]]:
    """Rows of one stage: the stage, a source, and the reasons that hold, in their order."""
    reasons = st.sets(st.sampled_from(REASONS[stage]), max_size=3).map(
        lambda found: [each for each in REASONS[stage] if each in found]
    )
    return st.tuples(st.just(stage), st.sampled_from(SOURCES), reasons)


failed_rows = st.lists(st.sampled_from(list(Stage)).flatmap(failed_foundof), max_size=40)


def failed_counts_of(some: list[tuple[Stage, str, list[str]]]) -> FailedCounts:
    counts = FailedCounts()
    for stage in Stage:
        of = [(source, failed) for each, source, failed in some if each is stage]
        counts.add(
            stage,
            pa.array([source for source, _ in of], pa.string()),
            pa.array([failed for _, failed in of], pa.list_(pa.string())),
        )
    return counts


@given(failed_rows, st.integers(0, 40))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_columns_are_counted_as_a_loop_does_whatever_the_batches(
    some: list[tuple[Stage, str, list[str]]], cut: int
) -> None:
    plain = Counter((stage.value, source, tuple(failed)) for stage, source, failed in some)
    table = failed_counts_of(some).to_arrow()
    assert table.schema == FAILED
    assert {(row["stage"], row["source"], tuple(row["failed"])): row["rows"] for row in table.to_pylist()} == plain
    assert len(table) == len(plain)
    parts = [failed_counts_of(some[:cut]), failed_counts_of(some[cut:])]
    together = FailedCounts.from_json(entry for part in parts for entry in part.to_json())
    assert (
        together.to_json()
        == failed_counts_of(some).to_json()
        == FailedCounts.from_json(reversed(failed_counts_of(some).to_json())).to_json()
    )


@given(failed_rows)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_their_counts_are_those_of_the_first_reasons(some: list[tuple[Stage, str, list[str]]]) -> None:
    counts = Counts()
    for stage, source, failed in some:
        counts.add_rows(stage, source, failed[0] if failed else KEPT, 1)
    found = failed_counts_of(some)
    assert found.counts() == counts
    assert found.facts() == {"counts": counts.to_json(), "failed": found.to_json()}
    found.check(counts)


def test_failed_foundare_in_the_order_of_stages_sources_and_rules() -> None:
    counts = FailedCounts()
    counts.add_rows(Stage.IMAGE, "b", [], 5)
    counts.add_rows(Stage.JUDGE, "b", ["text_too_long"], 2)
    counts.add_rows(Stage.JUDGE, "b", ["text_too_short", "text_on_too_many_images"], 1)
    counts.add_rows(Stage.JUDGE, "b", ["text_too_short"], 3)
    counts.add_rows(Stage.JUDGE, "a", ["pair_repeated"], 4)
    counts.add_rows(Stage.JUDGE, "b", [], 7)
    counts.add_rows(Stage.EXTRACT, "b", ["record_broken"], 0)
    assert counts.to_json() == [
        ("judge", "a", ["pair_repeated"], 4),
        ("judge", "b", [], 7),
        ("judge", "b", ["text_too_short"], 3),
        ("judge", "b", ["text_too_short", "text_on_too_many_images"], 1),
        ("judge", "b", ["text_too_long"], 2),
        ("image", "b", [], 5),
    ]


def test_a_reason_of_another_stage_and_counts_that_differ_are_refused() -> None:
    counts = FailedCounts()
    counts.add_rows(Stage.FETCH, "a", ["text_too_short"], 1)
    with pytest.raises(CountsError, match="fetch has no drop reason 'text_too_short'"):
        counts.counts()
    counts = FailedCounts()
    counts.add_rows(Stage.FETCH, "a", [], 2)
    with pytest.raises(CountsError, match="rows by every rule that holds are not the rows by reason"):
        counts.check(Counts({("fetch", "a", KEPT): 1}))


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), max_size=30))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_combinations_of_verdicts_are_counted_as_a_loop_does(held: list[list[bool]]) -> None:
    reasons = ["text_too_short", "text_too_long", "text_has_rare_ngram"]
    verdicts = [drop_where(pa.array([row[n] for row in held], pa.bool_()), reason) for n, reason in enumerate(reasons)]
    found = list(combinations(reasons_of(verdicts)[1]))
    plain = Counter(tuple(reason for reason, holds in zip(reasons, row, strict=True) if holds) for row in held)
    assert {tuple(names): rows for names, rows in found if rows} == plain
    assert sum(rows for _, rows in found) == len(held) == int(np.sum([rows for _, rows in found]))
