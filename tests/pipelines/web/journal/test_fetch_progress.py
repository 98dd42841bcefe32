"""Progress of fetching: lines, a bar, and a file, all from what units say of themselves."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from altalign import storage
from altalign.pipelines.run import progress
from altalign.pipelines.run.units import Run, Unit
from altalign.pipelines.web.journal.fetch_progress import Totals, WebWatch
from altalign.settings.curate import CurateConfig
from tests.pipelines.run.test_progress import PATIENCE_S, Written

UNITS: list[Unit] = [{"name": f"{number:05d}-00000", "rows": 150, "images": 100} for number in range(3)]


def run_of(folder: Path) -> Run:
    return Run(str(folder), CurateConfig.from_values({"input": {"paths": ["none"]}}, where="test"), ())


def says(
    run: Run, number: int, *, count: int, failed: int = 0, hosts: dict[str, int] | None = None, broken: int = 0
) -> None:
    """What a unit says of itself."""
    statuses = {"success": count - failed - broken, "http_timeout": failed, "image_damaged": broken}
    stats = {
        "responses": count,
        "count": count,
        "failed_to_download": failed,
        "failed_to_resize": broken,
        "status_dict": statuses,
        "images": 100,
    }
    name = UNITS[number]["name"]
    storage.write_json(
        run.path("log", "fetch", f"{name}_stats.json"),
        {**stats, "bytes": 1_000_000 * (count - failed), "hosts": hosts or {}},
    )
    if count == 100:
        storage.write_json(run.mark("fetch/units", name), {"kept": 1})


def progress_file(run: Run) -> dict:
    return storage.read_json(run.path("log", "fetch", "progress.json"))


def test_the_last_line_and_the_file_have_all_that_units_said(tmp_path: Path) -> None:
    run, file = run_of(tmp_path), io.StringIO()
    says(run, 0, count=100, failed=10, hosts={"slow.example": 9, "a.example": 1})  # of an earlier attempt
    with progress.watched(run, "fetch/units", UNITS, Console(file=file, width=20), WebWatch):
        says(run, 1, count=50, failed=3, hosts={"slow.example": 3})
        says(run, 1, count=100, failed=5, hosts={"slow.example": 5}, broken=2)
    (line,) = file.getvalue().splitlines()
    assert line.startswith("fetch: 2 of 3 units, 200 of 300 images, ")
    assert ", 92.5% fetched, 185.0 MB, http_timeout 15, most failures: slow.example 14, a.example 1, " in line
    assert line.endswith(" s")
    found = progress_file(run)
    expected = {
        "units": 3,
        "units_finished": 2,
        "images": 300,
        "ended": 200,
        "fetched": 185,
        "no_images": 2,
        "bytes": 185_000_000,
    }
    assert {name: found[name] for name in expected} == expected
    assert found["reasons"] == {"http_timeout": 15}
    assert found["hosts"] == {"slow.example": 14, "a.example": 1}
    assert found["images_per_s"] > 0


def test_lines_come_while_units_are_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.001)
    run, file = run_of(tmp_path), Written(2)
    with progress.watched(run, "fetch/units", UNITS, Console(file=file), WebWatch):
        says(run, 2, count=40)
        assert file.is_there.wait(PATIENCE_S)
    first, *_, last = file.getvalue().splitlines()
    assert first.endswith("left") or first.endswith("unknown")
    assert last.startswith("fetch: 0 of 3 units, 40 of 300 images, ")


def test_before_anything_has_come_the_time_left_is_not_known(tmp_path: Path) -> None:
    run, file = run_of(tmp_path), io.StringIO()
    says(run, 0, count=100)  # of an earlier attempt, which says nothing of this one's speed
    with progress.watched(run, "fetch/units", UNITS, Console(file=file), WebWatch):
        pass
    assert ", 0 images/s, 100.0% fetched, " in file.getvalue()
    assert progress_file(run)["seconds_left"] is None


def test_a_terminal_has_a_bar_and_what_goes_wrong_below_it(tmp_path: Path) -> None:
    run, file = run_of(tmp_path), io.StringIO()
    with progress.watched(run, "fetch/units", UNITS, Console(file=file, force_terminal=True, width=120), WebWatch):
        says(run, 0, count=100, failed=7, hosts={"slow.example\x1b[2J": 7})
    text = file.getvalue()
    assert "100/300" in text
    assert "93.0% fetched, 93.0 MB, http_timeout 7, most failures: slow.example\\x1b[2J 7" in text


def test_files_of_others_and_damaged_ones_do_no_harm(tmp_path: Path) -> None:
    run, file = run_of(tmp_path), io.StringIO()
    storage.write_bytes(run.path("log", "fetch", f"{UNITS[0]['name']}_stats.json"), b"no JSON")
    storage.write_json(run.path("log", "fetch", "99999-00000_stats.json"), {"count": 5, "images": 5})
    with progress.watched(run, "fetch/units", UNITS, Console(file=file), WebWatch):
        pass
    assert file.getvalue().startswith("fetch: 0 of 3 units, 0 of 300 images, ")


def test_what_is_taken_away_from_totals_is_not_in_them() -> None:
    totals = Totals()
    totals.add(
        {
            "count": 5,
            "failed_to_download": 2,
            "bytes": 7,
            "status_dict": {"http_timeout": 2, "success": 3},
            "hosts": {"a": 2},
        }
    )
    totals.add(
        {
            "count": 9,
            "failed_to_download": 1,
            "bytes": 8,
            "status_dict": {"http_broken": 1, "success": 8},
            "hosts": {"b": 1},
        }
    )
    totals.add(
        {
            "count": 5,
            "failed_to_download": 2,
            "bytes": 7,
            "status_dict": {"http_timeout": 2, "success": 3},
            "hosts": {"a": 2},
        },
        -1,
    )
    assert (totals.ended, totals.failed, totals.bytes) == (9, 1, 8)
    assert (totals.reasons(), totals.worst_hosts()) == ({"http_broken": 1}, {"b": 1})
