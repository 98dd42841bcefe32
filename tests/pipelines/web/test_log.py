"""The log of a unit, a line a try, and statistics as img2dataset has them; progress: lines, a bar, and a file."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from altalign import storage
from altalign.data.reasons import DropReason
from altalign.pipelines.images.judging import Outcome
from altalign.pipelines.images.measuring import Measured
from altalign.pipelines.run import progress
from altalign.pipelines.run.units import Run, Unit
from altalign.pipelines.web import log
from altalign.pipelines.web.calls import Response, Try
from altalign.pipelines.web.log import WebWatch
from tests.pipelines.run.test_progress import PATIENCE_S, Written
from tests.support.runs import run_of

URLS = [f"https://{host}.example/{number}.png" for number, host in enumerate("aabbc")]
IDS = [f"{number:032x}" for number in range(len(URLS))]
FAILED = Try(
    "https://b.example/x", "192.0.2.1", 1_700_000_000.1234, 0.25, 503, DropReason.HTTP_STATUS, "Service Unavailable", 12
)
WHOLE = Measured(format="png", width=300, height=300, found_sha256="00")
OUTCOMES = {
    0: Outcome(None, None, 100, WHOLE),
    1: Outcome(None, None, 20, WHOLE._replace(damage="cut")),
    2: Outcome(DropReason.HTTP_STATUS, 503),
    3: Outcome(DropReason.HTTP_TIMEOUT),
    4: Outcome(None, None, 3, Measured(found_sha256="01")),
}


def lines(run: Run) -> list[dict]:
    return [
        json.loads(line)
        for line in Path(run.path("log", "fetch", "00000-00000.jsonl")).read_text(encoding="utf-8").splitlines()
    ]


def test_each_try_is_a_line_and_what_was_not_asked_for_is_one_with_its_reason(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    brought = Try("https://b.example/2.png", "192.0.2.1", 1_700_000_003.0, 0.5, 200, None, "", 100)
    with log.opened(run, "00000-00000", IDS, URLS) as kept:
        kept.tries(2, Response(2, b"...", None, 200, "", (FAILED, brought)))
        kept.tries(3, Response(3, None, DropReason.HTTP_REFUSED, None, "a blocked domain", ()))
    first, second, third = lines(run)
    assert first == {
        "image_id": IDS[2],
        "url": "https://b.example/x",
        "address": "192.0.2.1",
        "started": 1_700_000_000.123,
        "seconds": 0.25,
        "status": 503,
        "reason": "http_status",
        "detail": "Service Unavailable",
        "bytes": 12,
    }
    assert (second["status"], second["reason"], second["bytes"]) == (200, None, 100)
    assert (third["url"], third["address"], third["reason"], third["detail"]) == (
        URLS[3],
        None,
        "http_refused",
        "a blocked domain",
    )


def test_the_history_stays_and_a_line_that_was_cut_is_ended(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    failed = Response(0, None, DropReason.HTTP_STATUS, 503, "", (FAILED,))
    with log.opened(run, "00000-00000", IDS, URLS) as kept:
        kept.tries(0, failed)
        kept.tries(1, failed)
    path = Path(run.path("log", "fetch", "00000-00000.jsonl"))
    path.write_bytes(path.read_bytes()[:-20])
    with log.opened(run, "00000-00000", IDS, URLS) as kept:
        kept.tries(2, failed)
    first, cut, second = path.read_bytes().splitlines()
    assert [json.loads(line)["image_id"] for line in (first, second)] == [IDS[0], IDS[2]]
    assert cut.startswith(b'{"image_id":')


def test_statistics_have_the_form_of_img2dataset_and_add_up(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    with log.opened(run, "00000-00000", IDS, URLS) as kept:
        kept.stats(OUTCOMES, is_last=True)
    stats = storage.read_json(run.path("log", "fetch", "00000-00000_stats.json"))
    assert {name: stats[name] for name in ("count", "successes", "failed_to_download", "failed_to_resize")} == {
        "count": 5,
        "successes": 1,
        "failed_to_download": 2,
        "failed_to_resize": 2,
    }
    assert stats["status_dict"] == {
        "success": 1,
        "image_damaged": 1,
        "http_status 503": 1,
        "http_timeout": 1,
        "image_undecodable": 1,
    }
    assert stats["end_time"] >= stats["start_time"]
    assert stats["duration"] >= 0
    assert (stats["images"], stats["bytes"], stats["hosts"]) == (5, 123, {"b.example": 2})


def test_statistics_go_on_where_an_earlier_try_ended(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    path = run.path("log", "fetch", "00000-00000_stats.json")
    storage.write_json(path, {"start_time": 12.5, "duration": 100.0})
    with log.opened(run, "00000-00000", IDS, URLS) as kept:
        kept.stats(OUTCOMES, is_last=True)
    stats = storage.read_json(path)
    assert stats["start_time"] == 12.5
    assert 100.0 <= stats["duration"] < 200.0
    log.restate(run, "00000-00000", {0: OUTCOMES[0]}, URLS)
    assert storage.read_json(path) == {**stats, **log.statistics({0: OUTCOMES[0]}, URLS)}
    Path(path).write_bytes(b"no JSON")
    with log.opened(run, "00000-00000", IDS, URLS) as kept:
        kept.stats(OUTCOMES, is_last=True)
    assert storage.read_json(path)["duration"] < 100.0


def test_statistics_are_said_at_most_once_a_second(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    path = Path(run.path("log", "fetch", "00000-00000_stats.json"))
    with log.opened(run, "00000-00000", IDS, URLS) as kept:
        kept.stats({0: OUTCOMES[0]})  # the first at once
        assert storage.read_json(str(path))["count"] == 1
        path.unlink()
        for _ in range(10):
            kept.stats(OUTCOMES)
        was_said_again = path.exists()
        kept.stats(OUTCOMES, is_last=True)
        elapsed = storage.read_json(str(path))["duration"]
    assert elapsed >= log.SECONDS_BETWEEN_STATS or not was_said_again


# Progress -------------------------------------------------------------------------------------------------------------

UNITS: list[Unit] = [{"name": f"{number:05d}-00000", "rows": 150, "images": 100} for number in range(3)]


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
    content = progress_file(run)
    expected = {
        "units": 3,
        "units_finished": 2,
        "images": 300,
        "ended": 200,
        "fetched": 185,
        "no_images": 2,
        "bytes": 185_000_000,
    }
    assert {name: content[name] for name in expected} == expected
    assert content["reasons"] == {"http_timeout": 15}
    assert content["hosts"] == {"slow.example": 14, "a.example": 1}
    assert content["images_per_s"] > 0


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
