"""Curves of the report: means of lines, round ticks around all values, rows that can be read."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.train.report import curves
from altalign.train.report.curves import Chart


def lines(count: int) -> list[dict[str, Any]]:
    return [
        {"step": step, "loss": 10 / step, "temperature": 0.02, f"negatives_log_p/{'ab'[step % 2]}": -step}
        for step in range(1, count + 1)
    ] + [{"step": count, "retrieval/held/mean_recall": 40.0, "retrieval/held/rsum": 240.0}]


def test_each_chart_has_the_lines_that_have_its_metric() -> None:
    found = curves.charts(lines(10), 10)
    assert [chart.title for chart in found] == ["Loss", "Temperature"]
    assert found[0].curves == {"Loss": [(step, 10 / step) for step in range(1, 11)]}
    negatives, recalls = curves.negatives(lines(10), 10), curves.recalls(lines(10), 10)
    assert negatives is not None
    assert recalls is not None
    assert {name: len(points) for name, points in negatives.curves.items()} == {"a": 5, "b": 5}
    assert recalls.curves == {"retrieval/held": [(10, 40.0)]}
    assert curves.recalls(lines(10)[:-1], 10) is None


def test_of_a_long_run_points_are_means_of_lines() -> None:
    (chart, _) = curves.charts(lines(1000), 1000)
    assert chart.lines_a_point == 4
    assert chart.curves["Loss"][0] == pytest.approx((2.5, (10 + 5 + 10 / 3 + 2.5) / 4))
    assert len(chart.curves["Loss"]) == 250


def test_of_many_sources_those_that_were_seen_most_are_drawn() -> None:
    every = [{"step": 1, **{f"negatives_log_p/s{number}": -1.0 for number in range(20)}}]
    more = [{"step": step, "negatives_log_p/s15": -1.0} for step in range(2, 5)]
    found = curves.negatives([*every, *more], 5)
    assert found is not None
    assert len(found.curves) == curves.SOURCES_AT_MOST
    assert "s15" in found.curves


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_ticks_are_even_and_around_all_values(values: list[float]) -> None:
    chart = Chart("x", {"x": list(enumerate(values))}, len(values))
    ticks = chart.ticks
    assert 2 <= len(ticks) <= 6
    slack = 1e-9 * (ticks[-1] - ticks[0])
    assert ticks[0] <= min(values) + slack
    assert ticks[-1] >= max(values) - slack
    steps = [after - before for before, after in pairwise(ticks)]
    assert max(steps) - min(steps) <= 1e-6 * max(steps)
    assert all(-0.01 <= number <= 100.01 for place in chart.places(chart.curves["x"]) for number in place)


def test_rows_go_from_the_first_step_to_the_last() -> None:
    chart = Chart("x", {"a": [(step, float(step)) for step in range(1, 101)], "b": [(50, 7.0)]}, 100)
    rows = chart.rows(5)
    assert [step for step, _ in rows] == [1, 26, 51, 76, 100]
    assert rows[0] == (1, ["1", ""])
    assert rows[2] == (51, ["51", "7"])
