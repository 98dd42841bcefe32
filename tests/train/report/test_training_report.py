"""The report of a training: what it shows is what the run measured, and strange words and many sources do no harm."""

from pathlib import Path
from typing import Any

import pytest

from altalign.train.report import page
from altalign.train.report.curves import Chart
from altalign.train.report.page import Seen
from tests.support.chromium import browser, opened

HOSTILE = '<script>alert(1)</script>\u202e"&'
PICTURE = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="


def report() -> dict[str, Any]:
    chart = Chart("Loss", {"Loss": [(1, 4.0), (50, 2.0), (100, 1.5)]}, 100)
    sources = [HOSTILE, *(f"runs/of/a/long/folder#{number:03}" for number in range(7))]
    negatives = Chart("Mean log p of negatives", {name: [(1, -6.0), (100, -7.5)] for name in sources}, 100, 2)
    seen = Seen(PICTURE, HOSTILE)
    return {
        "folder": f"runs/{HOSTILE}",
        "about": "100 steps of 64 pairs",
        "results": {"retrieval/held": {"image_to_text_r1": 12.5, "captions": 1234}},
        "charts": [chart],
        "recalls": Chart("Mean recall, percent", {"retrieval/held": [(100, 40.0)]}, 100),
        "negatives": negatives,
        "examples": [(HOSTILE, [seen] * 5)],
        "facts": {"Trained on": HOSTILE},
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
    shown = page.html("training.html", **report()).decode()
    assert "<script" not in shown
    assert "\u202e" not in shown
    assert shown.count("alert(1)") > 10
    for words in (
        "image_<wbr>to_<wbr>text_<wbr>r1",
        "12.5",
        "1,234",
        "100 steps of 64 pairs",
        "the mean of 2 lines",
        "234 of 1,234 pairs",
        "eps 0.999",
    ):
        assert words in shown, words
    assert shown.count("<polyline") == 1 + 1 + 8


def test_without_sets_sources_and_pairs_the_page_says_so() -> None:
    nothing = {
        "results": {},
        "charts": [],
        "recalls": None,
        "negatives": None,
        "noise": None,
        "examples": [],
        "facts": {},
    }
    shown = page.html("training.html", **{**report(), **nothing}).decode()
    assert "No set was evaluated" in shown
    assert "Noise" not in shown


@pytest.mark.browser
def test_nothing_is_loaded_and_nothing_sticks_out_of_the_window(tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    place.write_bytes(page.html("training.html", **report()))
    with browser() as chromium:
        for width in (390, 1280):
            with opened(chromium, place, width=width, ready="html") as tab:
                tab.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
                assert tab.overflow() <= 0
                assert tab.outside() == []
                assert tab.requests == [place.as_uri()]
                assert tab.complaints == []


def test_pairs_of_the_largest_sources_are_shown_in_turn() -> None:
    assert page.in_turn({"a": 2, "b": 30, "none": 0}) == [("a", 0), ("b", 2), ("a", 1), ("b", 3), ("b", 4), ("b", 5)]
    sizes = {f"s{number}": 1000 + number for number in range(10)}
    assert [name for name, _ in page.in_turn(sizes)] == [f"s{number}" for number in range(2, 8)]
