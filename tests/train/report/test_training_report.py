"""The report of a training: what it shows is what the run measured, and strange words do no harm."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.train.report import page
from altalign.train.report.page import Chart, Seen
from tests.support.chromium import browser, opened

HOSTILE = '<script>alert(1)</script>\u202e"&'
PICTURE = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="


def report() -> dict[str, Any]:
    return {
        "folder": f"runs/{HOSTILE}",
        "about": "100 steps of 64 pairs",
        "results": {"retrieval/held": {"image_to_text_r1": 12.5, "captions": 1234}},
        "charts": [
            Chart("Loss", {HOSTILE: [(1, 4.0), (50, 2.0), (100, 1.5)], "caption": [(100, 2.0)]}, 100),
            Chart("Mean recall, percent", {"retrieval/held": [(100, 40.0)]}, 100),
        ],
        "trained_on": HOSTILE,
        "captioned": HOSTILE,
        "settings": f"[run]\nfolder = {HOSTILE}",
        "noise": {
            "pairs": 1234,
            "noisy": 234,
            "is_one": False,
            "groups": [(0.8, 1.25, 0.5), (0.2, 4.5, 0.75)],
            "cleanest": [Seen(PICTURE, HOSTILE, "eps 0.000, loss 0.1")],
            "noisiest": [Seen(PICTURE, HOSTILE, "eps 0.999, loss 5.5")],
        },
    }


def test_what_was_measured_is_on_the_page_and_strangers_words_are_text() -> None:
    shown = page.html(**report()).decode()
    assert "<script" not in shown
    assert "\u202e" not in shown
    assert shown.count("alert(1)") > 6
    for words in (
        "image_<wbr>to_<wbr>text_<wbr>r1",
        "12.5",
        "1,234",
        "100 steps of 64 pairs",
        "234 of 1,234 pairs",
        "eps 0.999",
        "results are not zero-shot",
    ):
        assert words in shown, words
    assert shown.count("<polyline") == 3


def test_without_sets_and_noise_the_page_says_so() -> None:
    nothing = {"results": {}, "charts": [], "noise": None, "trained_on": "", "captioned": ""}
    shown = page.html(**{**report(), **nothing}).decode()
    assert "No set was evaluated" in shown
    assert "Noise" not in shown


@pytest.mark.browser
def test_nothing_is_loaded_and_nothing_sticks_out_of_the_window(tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    place.write_bytes(page.html(**report()))
    with browser() as chromium:
        for width in (390, 1280):
            with opened(chromium, place, width=width, ready="html") as tab:
                tab.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
                assert tab.overflow() <= 0
                assert tab.outside() == []
                assert tab.requests == [place.as_uri()]
                assert tab.complaints == []


def lines(count: int) -> list[dict[str, Any]]:
    return [{"step": step, "loss": 10 / step, "temperature": 0.02} for step in range(1, count + 1)] + [
        {"step": count, "retrieval/held/mean_recall": 40.0, "retrieval/held/rsum": 240.0}
    ]


def test_each_chart_has_the_lines_that_have_its_metric() -> None:
    loss, temperature, recall = page.charts(lines(10), 10)
    assert loss.curves == {"loss": [(step, 10 / step) for step in range(1, 11)]}
    assert list(temperature.curves) == ["temperature"]
    assert recall.curves == {"retrieval/held": [(10, 40.0)]}
    assert len(page.charts(lines(10)[:-1], 10)) == 2


def test_of_a_long_run_points_are_means_of_lines() -> None:
    curve = page.charts(lines(1000), 1000)[0].curves["loss"]
    assert curve[0] == pytest.approx((2.5, (10 + 5 + 10 / 3 + 2.5) / 4))
    assert len(curve) == 250


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_ticks_are_around_all_values(values: list[float]) -> None:
    chart = Chart("x", {"x": list(enumerate(values))}, len(values))
    assert chart.ticks[0] == min(values)
    assert chart.ticks[-1] >= max(values)
    assert all(-0.01 <= number <= 100.01 for place in chart.places(chart.curves["x"]) for number in place)
