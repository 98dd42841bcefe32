"""Rounds, medians and ratios."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import harness, report
from benchmarks.harness import Program, disturbed, interleave, last_json, ratio, summary


def writer(name: str, folder: Path) -> Program:
    """A program that notes in a common file that it ran."""
    code = f"open('order', 'a').write('{name}')\nprint('a line')\nprint('{{\"rows\": 7}}')"
    return Program(name, [sys.executable, "-S", "-c", code], folder, says=last_json)


def test_programs_are_interleaved_and_the_first_round_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rounds = interleave([writer("a", tmp_path), writer("b", tmp_path)], 2)
    assert (tmp_path / "order").read_text() == "ababab"
    assert [list(done) for done in rounds] == [["a", "b"], ["a", "b"]]
    assert rounds[0]["a"]["rows"] == 7
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["warm-up", "warm-up", *["round"] * 4]


def test_without_a_warm_up_every_round_counts(tmp_path: Path):
    assert len(interleave([writer("a", tmp_path)], 1, warm_up=False)) == 1
    assert (tmp_path / "order").read_text() == "a"


ROUNDS = [
    {
        "ours": {"cpu_s": 2.0, "peak_bytes": 5, "others_cores": 0.0},
        "peer": {"cpu_s": 4.0, "peak_bytes": None, "others_cores": None},
    },
    {
        "ours": {"cpu_s": 3.0, "peak_bytes": 7, "others_cores": 0.0},
        "peer": {"cpu_s": 12.0, "peak_bytes": None, "others_cores": None},
    },
    {
        "ours": {"cpu_s": 8.0, "peak_bytes": 6, "others_cores": 99.0},
        "peer": {"cpu_s": 8.0, "peak_bytes": None, "others_cores": None},
    },
]


def test_a_summary_has_the_median_and_the_range_of_what_was_always_measured():
    found = summary(ROUNDS)
    assert found["ours"]["cpu_s"] == {"median": 3.0, "least": 2.0, "most": 8.0}
    assert found["ours"]["peak_bytes"] == {"median": 6, "least": 5, "most": 7}
    assert set(found["peer"]) == {"cpu_s"}


def test_a_summary_takes_rounds_of_different_programs():
    assert summary([{"a": {"cpu_s": 1.0}}, {"b": {"cpu_s": 2.0}}])["b"]["cpu_s"]["median"] == 2.0


def test_ratios_are_taken_inside_a_round():
    assert ratio(ROUNDS, "cpu_s", "ours", "peer") == {"median": 0.5, "least": 0.25, "most": 1.0}


def test_a_run_that_others_disturbed_is_named():
    assert [line.partition(":")[0] for line in disturbed(ROUNDS)] == ["round 3, ours"]


def test_a_target_is_met_on_its_boundary():
    assert report.target("x", 0.6, at_most=0.6)["met"]
    assert not report.target("x", 0.61, at_most=0.6)["met"]
    assert report.target("x", 2.0, at_least=2.0)["met"]
    assert not report.target("x", 1.99, at_least=2.0)["met"]


@pytest.mark.parametrize("folder", ["results", "cache"])
def test_only_a_full_run_is_published(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {
        "RESULTS": tmp_path / "results",
        "CACHE": tmp_path / "cache",
    }.items():
        monkeypatch.setattr(report, name, value)
    here = {"packages": ("numpy",), "environments": [Path(sys.executable)]}
    path = report.write("text", ROUNDS, [], is_full=folder == "results", rows=5, **here)
    assert path == tmp_path / folder / "text.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["rows"] == 5
    assert found["figures"]["ours"]["cpu_s"]["median"] == 3.0
    assert found["rounds"][0]["ours"]["cpu_s"] == 2.0
    assert set(found["versions"]) == {"python", "altalign", "numpy"}
    assert found["machine"]["cores"] >= 1


def test_figures_keep_four_digits():
    assert report.rounded({"a": [1.23456, 123456.0, 7, "x", None]}) == {"a": [1.235, 123500.0, 7, "x", None]}


def test_a_place_for_what_runs_leave_is_deleted(tmp_path: Path):
    with harness.scratch(tmp_path / "new") as place:
        (place / "file").write_text("x")
    assert list((tmp_path / "new").iterdir()) == []
