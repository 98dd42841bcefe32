"""The log of a unit: one line a try, its history kept, and statistics as img2dataset has them."""

import json
from pathlib import Path

from altalign import storage
from altalign.data.reasons import DropReason
from altalign.pipelines.images.measuring import Measured, Outcome
from altalign.pipelines.run.units import Run
from altalign.pipelines.web.client import Response, Try
from altalign.pipelines.web.journal import log
from altalign.settings.curate import CurateConfig

URLS = [f"https://{host}.example/{number}.png" for number, host in enumerate("aabbc")]
IDS = [f"{number:032x}" for number in range(len(URLS))]
FAILED = Try(
    "https://b.example/x", "192.0.2.1", 1_700_000_000.1234, 0.25, 503, DropReason.HTTP_STATUS, "Service Unavailable", 12
)
WHOLE = Measured(format="png", width=300, height=300, found_sha256="00")
OUTCOMES = {
    0: Outcome(None, None, 0, 100, WHOLE),
    1: Outcome(None, None, 100, 20, WHOLE._replace(damage="cut")),
    2: Outcome(DropReason.HTTP_STATUS, 503),
    3: Outcome(DropReason.HTTP_TIMEOUT),
    4: Outcome(None, None, 120, 3, Measured(found_sha256="01")),
}


def run_of(folder: Path) -> Run:
    return Run(str(folder), CurateConfig.from_values({"input": {"paths": ["none"]}}, where="test"), ())


def lines(run: Run) -> list[dict]:
    return [
        json.loads(line)
        for line in Path(run.path("log", "fetch", "00000-00000.jsonl")).read_text(encoding="utf-8").splitlines()
    ]


def test_each_try_is_a_line_and_what_was_not_asked_for_is_one_with_its_reason(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    brought = Try("https://b.example/2.png", "192.0.2.1", 1_700_000_003.0, 0.5, 200, None, "", 100)
    with log.opened(run, "00000-00000", IDS, URLS) as told:
        told.tries(2, Response(2, b"...", None, 200, "", (FAILED, brought)))
        told.tries(3, Response(3, None, DropReason.HTTP_REFUSED, None, "a blocked domain", ()))
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
    with log.opened(run, "00000-00000", IDS, URLS) as told:
        told.tries(0, failed)
        told.tries(1, failed)
    path = Path(run.path("log", "fetch", "00000-00000.jsonl"))
    path.write_bytes(path.read_bytes()[:-20])
    with log.opened(run, "00000-00000", IDS, URLS) as told:
        told.tries(2, failed)
    first, cut, second = path.read_bytes().splitlines()
    assert [json.loads(line)["image_id"] for line in (first, second)] == [IDS[0], IDS[2]]
    assert cut.startswith(b'{"image_id":')


def test_statistics_have_the_form_of_img2dataset_and_add_up(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    with log.opened(run, "00000-00000", IDS, URLS) as told:
        told.stats(OUTCOMES, is_last=True)
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
    with log.opened(run, "00000-00000", IDS, URLS) as told:
        told.stats(OUTCOMES, is_last=True)
    stats = storage.read_json(path)
    assert stats["start_time"] == 12.5
    assert 100.0 <= stats["duration"] < 200.0
    log.restate(run, "00000-00000", {0: OUTCOMES[0]}, URLS)
    assert storage.read_json(path) == {**stats, **log.statistics({0: OUTCOMES[0]}, URLS)}
    Path(path).write_bytes(b"no JSON")
    with log.opened(run, "00000-00000", IDS, URLS) as told:
        told.stats(OUTCOMES, is_last=True)
    assert storage.read_json(path)["duration"] < 100.0


def test_statistics_are_said_at_most_once_a_second(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    path = Path(run.path("log", "fetch", "00000-00000_stats.json"))
    with log.opened(run, "00000-00000", IDS, URLS) as told:
        told.stats({0: OUTCOMES[0]})  # the first at once
        assert storage.read_json(str(path))["count"] == 1
        path.unlink()
        for _ in range(10):
            told.stats(OUTCOMES)
        was_said_again = path.exists()
        told.stats(OUTCOMES, is_last=True)
        elapsed = storage.read_json(str(path))["duration"]
    assert elapsed >= log.SECONDS_BETWEEN_STATS or not was_said_again


def test_the_host_of_what_is_no_url_is_nothing() -> None:
    assert [log.host_of(url) for url in ("https://A.example:8443/x", "http://[::1]/x", None, "no url")] == [
        "a.example",
        "[::1]",
        "",
        "",
    ]
