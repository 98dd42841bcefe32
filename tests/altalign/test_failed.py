from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.counts import Counts
from altalign.errors import CountsError
from altalign.failed import FailedCounts, combinations
from altalign.reasons import KEPT, REASONS, DropReason, Stage, drop_where, reasons_of
from altalign.schema import FAILED

SOURCES = ["north", "south", ""]
derandomized = settings(derandomize=True, deadline=None, max_examples=60)


def rows_of(stage: Stage) -> st.SearchStrategy[tuple[Stage, str, list[str]]]:
    """A row: its stage, its source, the reasons that hold, in their order."""
    reasons = st.sets(st.sampled_from(REASONS[stage]), max_size=3).map(
        lambda found: [each.value for each in REASONS[stage] if each in found]
    )
    return st.tuples(st.just(stage), st.sampled_from(SOURCES), reasons)


rows = st.lists(st.sampled_from(list(Stage)).flatmap(rows_of), max_size=40)


def counted(some: list[tuple[Stage, str, list[str]]]) -> FailedCounts:
    counts = FailedCounts()
    for stage in Stage:
        of = [(source, failed) for each, source, failed in some if each is stage]
        counts.add(
            stage,
            pa.array([source for source, _ in of], pa.string()),
            pa.array([failed for _, failed in of], pa.list_(pa.string())),
        )
    return counts


@given(rows, st.integers(0, 40))
@derandomized
def test_columns_are_counted_as_a_loop_does_whatever_the_batches(
    some: list[tuple[Stage, str, list[str]]], cut: int
) -> None:
    plain = Counter((stage.value, source, tuple(failed)) for stage, source, failed in some)
    table = counted(some).to_arrow()
    assert table.schema == FAILED
    assert {(row["stage"], row["source"], tuple(row["failed"])): row["rows"] for row in table.to_pylist()} == plain
    assert len(table) == len(plain)
    parts = [counted(some[:cut]), counted(some[cut:])]
    together = FailedCounts.from_json(entry for part in parts for entry in part.to_json())
    assert (
        together.to_json()
        == counted(some).to_json()
        == FailedCounts.from_json(reversed(counted(some).to_json())).to_json()
    )


@given(rows)
@derandomized
def test_their_counts_are_those_of_the_first_reasons(some: list[tuple[Stage, str, list[str]]]) -> None:
    counts = Counts()
    for stage, source, failed in some:
        counts.add_rows(stage, source, failed[0] if failed else KEPT, 1)
    found = counted(some)
    assert found.counts() == counts
    assert found.facts() == {"counts": counts.to_json(), "failed": found.to_json()}
    found.check(counts)


def test_rows_are_in_the_order_of_stages_sources_and_rules() -> None:
    counts = FailedCounts()
    counts.add_rows(Stage.IMAGE, "b", [], 5)
    counts.add_rows(Stage.JUDGE, "b", [DropReason.TEXT_TOO_LONG], 2)
    counts.add_rows(Stage.JUDGE, "b", [DropReason.TEXT_TOO_SHORT, DropReason.TEXT_ON_TOO_MANY_IMAGES], 1)
    counts.add_rows(Stage.JUDGE, "b", [DropReason.TEXT_TOO_SHORT], 3)
    counts.add_rows(Stage.JUDGE, "a", ["pair_repeated"], 4)
    counts.add_rows(Stage.JUDGE, "b", [], 7)
    counts.add_rows(Stage.EXTRACT, "b", ["record_broken"], 0)
    assert counts.to_json() == [
        ["judge", "a", ["pair_repeated"], 4],
        ["judge", "b", [], 7],
        ["judge", "b", ["text_too_short"], 3],
        ["judge", "b", ["text_too_short", "text_on_too_many_images"], 1],
        ["judge", "b", ["text_too_long"], 2],
        ["image", "b", [], 5],
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
@derandomized
def test_combinations_of_verdicts_are_counted_as_a_loop_does(held: list[list[bool]]) -> None:
    reasons = [DropReason.TEXT_TOO_SHORT, DropReason.TEXT_TOO_LONG, DropReason.TEXT_HAS_RARE_NGRAM]
    verdicts = [drop_where(pa.array([row[n] for row in held], pa.bool_()), reason) for n, reason in enumerate(reasons)]
    found = list(combinations(reasons_of(verdicts)[1]))
    plain = Counter(tuple(reason.value for reason, holds in zip(reasons, row, strict=True) if holds) for row in held)
    assert {tuple(names): rows for names, rows in found if rows} == plain
    assert sum(rows for _, rows in found) == len(held) == int(np.sum([rows for _, rows in found]))
