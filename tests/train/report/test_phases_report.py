"""The page of a training in phases: what each phase has left, and what is not there yet."""

from pathlib import Path

import pytest

from altalign.train.nlip import phases
from altalign.train.report import page
from altalign.train.report.page import Seen
from tests.train.nlip.phased import PHASES, config
from tests.train.report.test_training_report import HOSTILE, PICTURE
from tests.train.report.test_training_report import report as of_one


@pytest.mark.trained
def test_the_page_has_a_section_of_each_phase(tmp_path: Path) -> None:
    of = config(tmp_path, "run")
    place = tmp_path / "run" / "report.html"
    phases.train(of, until="warm-up")
    assert place.read_text(encoding="utf-8").count("Not finished yet") == len(PHASES) - 1
    phases.train(of)
    shown = place.read_text(encoding="utf-8")
    assert "Not finished yet" not in shown
    for phase in PHASES:
        assert f'<section id="{phase["name"]}">' in shown
        if phase.get("does", "train") == "train":
            link = f"phases/{phase['name']}/report.html"
            assert f'href="{link}"' in shown
            assert (place.parent / link).is_file()
    assert "reconstruction" in shown  # a curve of its own
    assert shown.count("caption 1") > 0  # the pairs' own
    assert shown.count("<strong>") == 12  # those that were written
    assert "The noisiest pairs come first" in shown or "do not fall into two groups" in shown
    assert "<script" not in shown


def test_strangers_words_are_text() -> None:
    one = of_one()
    bare = {"steps": 3, "is_finished": True, "results": None, "charts": [], "noise": None, "written": []}
    views = [
        {**bare, "name": "warm-up", "does": "train", "results": one["results"], "charts": one["charts"]},
        {**bare, "name": "estimate", "does": "noise", "noise": one["noise"]},
        {**bare, "name": "c", "does": "captions", "written": [Seen(PICTURE, HOSTILE, "eps 0.250", HOSTILE)]},
        {**bare, "name": "last", "does": "train", "is_finished": False},
    ]
    shown = page.html("phases.html", folder=f"runs/{HOSTILE}", phases=views, settings=one["settings"]).decode()
    assert "<script" not in shown
    assert "\u202e" not in shown
    assert "eps 0.250" in shown
    assert shown.count("Not finished yet") == 1
    assert "234 of 1,234 pairs" in shown
    assert "234 of 1,234 pairs" in page.html("training.html", **one).decode()
