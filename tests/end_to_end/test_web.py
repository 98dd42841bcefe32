"""Runs whose images come from a web server: each failure has its reason, the order of arrival changes no byte, nothing
is asked for twice.
"""

import io
import json
import socket
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign import storage
from altalign.cli import main
from altalign.pipelines.web.calls import Response
from altalign.pipelines.web.client import Client
from tests.end_to_end.web_inputs import (
    Asked,
    answers,
    asked_for,
    dropped,
    ids,
    kept,
    pictures,
    sockets,
    tries,
    write_web_input,
)
from tests.support import img2dataset
from tests.support.curations import altalign, summary, tree
from tests.support.pictures import encoded
from tests.web_server.running import WebServer

pytestmark = pytest.mark.runs

EMPTY = 1  # the exit code of a run that keeps nothing


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    with WebServer(
        tmp_path_factory.mktemp("server"), addresses=[f"127.0.0.{number}" for number in range(1, 5)]
    ) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def whole(server: WebServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Asked]]:
    """A finished run of pictures and of every kind of answer."""
    folder, asked = tmp_path_factory.mktemp("whole"), [*pictures(server, 60), *answers(server)]
    write_web_input(folder, server, asked)
    done = altalign(folder, "curate", "config.toml")
    assert done.returncode == 0, done.stderr
    return folder, asked


def same_input(whole: tuple[Path, list[Asked]], folder: Path) -> Path:
    """The input of the whole run, the same files of the same times, in another folder."""
    for name in ("input", "config.toml"):
        (folder / name).symlink_to(whole[0] / name)
    return folder


# What becomes of each URL ---------------------------------------------------------------------------------------------


@pytest.mark.everyday
def test_what_comes_is_in_shards_and_what_does_not_has_its_reason_and_status(whole: tuple[Path, list[Asked]]) -> None:
    run, asked = whole[0] / "run", whole[1]
    expected = {each.url: (each.reason, each.http_code) for each in asked if each.reason}
    assert {url: found for url, found in dropped(run).items() if url in expected} == expected
    assert dropped(run).keys() == expected.keys()
    assert kept(run) == {each.url for each in asked if each.reason is None}
    counts = {stage["stage"]: stage for stage in summary(run)["stages"]}
    pairs = [1 + (number % 3 == 0) for number in range(len(asked))]
    assert counts["fetch"]["received"] == sum(pairs)
    assert counts["fetch"]["dropped"]["http_refused"] == sum(
        n for n, each in zip(pairs, asked, strict=True) if each.reason == "http_refused"
    )
    assert (
        counts["image"]["kept"]
        == sum(n for n, each in zip(pairs, asked, strict=True) if each.reason is None)
        == summary(run)["pairs"]
    )


def test_an_image_is_asked_for_once_however_many_captions_it_has(server: WebServer, folder: Path) -> None:
    before = len(server.requests())
    asked = pictures(server, 9)
    write_web_input(folder, server, asked)
    assert main(["curate", "config.toml"]) == 0
    assert sorted(asked_for(server, since=before)) == sorted(each.url for each in asked)
    assert summary(folder / "run")["pairs"] == 12


def test_an_image_that_was_taken_is_in_memory_no_more_when_the_next_is_asked_for(
    server: WebServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client counts its bytes until then."""
    still_there, real = list[bool](), Client.fetch

    class Watched(Response):
        """One that can be watched: it has no slots."""

    def fetch(self: Client, urls: Sequence[str], **rest: Any) -> Iterator[Response]:
        for response in real(self, urls, **rest):
            found = Watched(*(getattr(response, field.name) for field in fields(response)))
            seen = weakref.ref(found)
            yield (found, found := None)[0]
            still_there.append(seen() is not None)

    monkeypatch.setattr(Client, "fetch", fetch)
    write_web_input(folder, server, pictures(server, 9))
    assert main(["curate", "config.toml", "--until", "fetch", "--set", "engine.workers=1"]) == 0
    assert still_there == [False] * 9


@pytest.mark.everyday
def test_each_try_is_in_the_log_with_where_and_when(whole: tuple[Path, list[Asked]]) -> None:
    run, asked = whole[0] / "run", whole[1]
    by_image = {each["image_id"]: each for each in tries(run)}
    assert by_image.keys() == ids([each.url for each in asked])
    reached = [each for each in by_image.values() if each["reason"] not in ("http_refused", "http_unreachable")]
    assert {each["address"] for each in reached} == {f"127.0.0.{number}" for number in range(1, 5)}
    assert all(each["seconds"] >= 0 and each["started"] > 1_700_000_000 for each in reached)
    stats = [storage.read_json(str(path)) for path in (run / "log" / "fetch").glob("*_stats.json")]
    assert sum(each["count"] for each in stats) == len(asked)
    assert sum(each["successes"] for each in stats) == len(kept(run))
    found = storage.read_json(str(run / "log" / "fetch" / "progress.json"))
    assert (found["ended"], found["images"], found["units_finished"]) == (len(asked), len(asked), found["units"])


def test_the_order_of_arrival_and_the_number_of_workers_change_no_byte(
    whole: tuple[Path, list[Asked]], tmp_path: Path
) -> None:
    for name, settings in {
        "one": ["engine.workers=1", "fetch.threads=1"],
        "four": ["engine.workers=4", "fetch.connections_per_host=2"],
    }.items():
        folder = same_input(whole, tmp_path / name) if (tmp_path / name).mkdir() is None else tmp_path
        done = altalign(folder, "curate", "config.toml", *(word for setting in settings for word in ("--set", setting)))
        assert done.returncode == 0, done.stderr
        differing = {"config.toml", "manifest.json"}  # the setting itself, and its digest
        after, before = tree(folder / "run"), tree(whole[0] / "run")
        assert {n: d for n, d in after.items() if n not in differing} == {
            n: d for n, d in before.items() if n not in differing
        }


@pytest.mark.engine
def test_prism_changes_no_byte(whole: tuple[Path, list[Asked]], tmp_path: Path, prism: str) -> None:
    done = altalign(
        same_input(whole, tmp_path),
        "curate",
        "config.toml",
        "--set",
        "engine.runner=prism",
        environment={"ALTALIGN_PRISM": prism},
    )
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "run") == tree(whole[0] / "run")


def test_what_hangs_is_a_timeout(server: WebServer, folder: Path) -> None:
    targets = ("/slow-head", "/drip", "/drip-head", "/stall", "/endless/head", "/endless/continue")
    write_web_input(folder, server, [Asked(server.url(target)) for target in targets])
    limits = ("--set", "fetch.timeout_s=0.5", "--set", "fetch.bytes_at_most=2_000_000")
    assert main(["curate", "config.toml", *limits]) == EMPTY
    found = dropped(folder / "run")
    assert {found[server.url(target)][0] for target in targets[:4]} == {"http_timeout"}
    assert {found[server.url(target)][0] for target in targets[4:]} <= {"http_timeout", "http_broken"}
    assert summary(folder / "run")["pairs"] == 0


def test_what_is_not_there_when_the_time_of_its_unit_is_over_is_a_timeout(
    server: WebServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("altalign.pipelines.web.client.UNIT_DEADLINE_S", 4.0)
    write_web_input(folder, server, [Asked(server.url(f"/stall?n={number}")) for number in range(5)])
    assert main(["curate", "config.toml"]) == EMPTY
    assert {reason for reason, _ in dropped(folder / "run").values()} == {"http_timeout"}


def test_nobody_is_asked_who_may_not_be(server: WebServer, folder: Path) -> None:
    before = len(server.requests())
    write_web_input(folder, server, pictures(server, 8))
    (folder / "domains.txt").write_text("# ours\n127.0.0.1\n127.0.0.2\n", encoding="utf-8")
    assert (
        main(
            [
                "curate",
                "config.toml",
                "--set",
                'fetch.blocked_domains=["domains.txt"]',
                "--set",
                'fetch.allow_addresses=["127.0.0.3"]',
            ]
        )
        == 0
    )
    assert {url.split("/")[2].split(":")[0] for url in asked_for(server, since=before)} == {"127.0.0.3"}
    assert len(kept(folder / "run")) == 2
    assert sorted(dropped(folder / "run").values()) == [("http_refused", None)] * 6


# Images in hand -------------------------------------------------------------------------------------------------------


def test_images_in_hand_are_read_where_they_are_and_the_others_fetched(server: WebServer, folder: Path) -> None:
    mine = encoded(Image.new("RGB", (300, 300), (10, 20, 30)))
    columns: dict[str, Any] = {
        "url": [None, server.url("/png/of-the-web"), server.url("/status/404?in-hand"), None],
        "caption": ["a picture in hand", "a picture of both", "a picture of the web", "once more in hand"],
        "image": [mine, mine, None, mine],
    }
    write_web_input(folder, server, [])
    pq.write_table(pa.table(columns), folder / "input" / "pairs.parquet")
    config = folder / "config.toml"
    config.write_text(
        config.read_text(encoding="utf-8").replace('kind = "table"', 'kind = "table"\nimage_column = "image"'),
        encoding="utf-8",
    )
    before = len(server.requests())
    assert main(["curate", "config.toml"]) == 0
    assert asked_for(server, since=before) == [server.url("/status/404?in-hand")]
    assert kept(folder / "run") == {None, server.url("/png/of-the-web")}
    assert dropped(folder / "run") == {server.url("/status/404?in-hand"): ("http_status", 404)}
    assert summary(folder / "run")["pairs"] == 3


def test_what_img2dataset_failed_to_fetch_is_fetched_again_and_nothing_else(
    server: WebServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = io.BytesIO()
    Image.new("RGB", (300, 300), (10, 20, 30)).save(file, "PNG")
    came = [
        img2dataset.Asked(server.url(f"/png/came-{number}"), f"a picture that came {number}", file.getvalue())
        for number in (0, 1)
    ]
    failed = [
        img2dataset.Asked(server.url("/png/then"), "a picture that comes now"),
        img2dataset.Asked(server.url("/status/404?still"), "a picture that is gone"),
    ]
    img2dataset.write(folder / "laion", 0, [came[0], *failed])
    img2dataset.write(folder / "laion", 1, [came[1]])
    write_web_input(folder, server, [])
    config = folder / "config.toml"
    text = config.read_text(encoding="utf-8").replace('kind = "table"', 'kind = "webdataset"')
    config.write_text(text.replace("input/*.parquet", "laion"), encoding="utf-8")
    before = len(server.requests())
    assert main(["curate", "config.toml"]) == 0
    assert sorted(asked_for(server, since=before)) == [each.url for each in failed]
    assert kept(folder / "run") == {came[0].url, came[1].url, failed[0].url}
    assert dropped(folder / "run") == {failed[1].url: ("http_status", 404)}
    assert "no row" not in capsys.readouterr().err
    assert main(["curate", "config.toml", "--set", "fetch.source=archive", "--rerun"]) == 0
    assert dropped(folder / "run") == {each.url: ("not_in_archive", None) for each in failed}


# Run again ------------------------------------------------------------------------------------------------------------


def test_a_finished_run_asks_for_nothing_whatever_its_patience(
    whole: tuple[Path, list[Asked]], server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(whole[0])
    before, requests = tree(whole[0] / "run"), len(server.requests())
    assert (
        main(
            [
                "curate",
                "config.toml",
                "--set",
                "fetch.timeout_s=5",
                "--set",
                "fetch.retries=7",
            ]
        )
        == 0
    )
    assert tree(whole[0] / "run") == before
    assert len(server.requests()) == requests


def test_other_image_rules_ask_for_nothing_again_and_other_rules_of_fetching_for_all(
    server: WebServer, folder: Path
) -> None:
    asked = [*pictures(server, 12), Asked(server.url("/status/404?again"))]
    write_web_input(folder, server, asked)
    settings = (folder / "config.toml").read_text(encoding="utf-8")
    (folder / "config.toml").write_text(settings.replace("[fetch]", "[fetch]\nkeep_found = true"), encoding="utf-8")
    assert main(["curate", "config.toml"]) == 0
    first, requests = tree(folder / "run"), len(server.requests())
    assert main(["curate", "config.toml", "--set", "image.short_side_above_px=300"]) == 2
    assert main(["curate", "config.toml", "--set", "image.short_side_above_px=300", "--rerun"]) == EMPTY
    assert len(server.requests()) == requests
    assert {reason for reason, _ in dropped(folder / "run").values()} == {"image_too_small", "http_status"}
    assert main(["curate", "config.toml", "--rerun"]) == 0
    assert tree(folder / "run") == first
    assert len(server.requests()) == requests
    assert main(["curate", "config.toml", "--set", "fetch.bytes_at_most=10", "--rerun"]) == EMPTY
    assert {reason for reason, _ in dropped(folder / "run").values()} == {"http_too_large", "http_status"}
    assert sorted(asked_for(server, since=requests)) == sorted(each.url for each in asked)
    assert main(["curate", "config.toml", "--restart"]) == 0
    assert tree(folder / "run") == first


# What people see ------------------------------------------------------------------------------------------------------


def test_explain_shows_each_try_and_status_how_it_went(
    whole: tuple[Path, list[Asked]], capsys: pytest.CaptureFixture[str]
) -> None:
    run, asked = str(whole[0] / "run"), whole[1]
    unavailable = next(each.url for each in asked if each.http_code == 503)
    assert main(["explain", run, "--url", unavailable]) == 0
    said = capsys.readouterr().out
    assert "fetch dropped: http_status" in " ".join(said.split())
    assert "- http_status: the last status was 503" in said
    assert " UTC, " in said.split("tried")[1]
    assert "http_status 503: " in said.split("tried")[1]
    assert main(["explain", run, "--url", asked[0].url]) == 0
    said = capsys.readouterr().out
    assert "written shards/" in " ".join(said.split())
    assert "fetched, " in said.split("tried")[1]
    assert main(["status", run]) == 0
    said = capsys.readouterr().out
    assert f"fetch: {len(asked)} of {len(asked)} images, " in said
    assert "not fetched: http_" in said
    assert "most failures: 127.0.0.1 " in said


def test_a_dry_run_says_what_will_be_asked_of_whom(
    server: WebServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_web_input(folder, server, pictures(server, 3))
    assert main(["curate", "config.toml", "--dry-run", "--set", "fetch.requests_per_host_s=20.5"]) == 0
    said = capsys.readouterr().out
    assert (
        "images: downloaded for the pairs that judge keeps, with 64 requests at a time; 8 of them to one host, and 20.5"
        in said
    )
    assert "GB and the images in run" in said


def test_a_proxy_is_said_to_be_unused_and_sees_nothing(
    server: WebServer, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_web_input(folder, server, pictures(server, 3))
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0)
        for name in ("http_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://user:secret@127.0.0.1:{proxy.getsockname()[1]}")
        assert main(["curate", "config.toml"]) == 0
        said = capsys.readouterr().err
        with pytest.raises(BlockingIOError):
            proxy.accept()
    line = "HTTPS_PROXY, HTTP_PROXY are set, and are not used for images: behind a proxy no address could be checked"
    assert said.count(line) == 1
    assert "secret" not in said


def test_nothing_is_left_open_after_a_run(server: WebServer, folder: Path) -> None:
    write_web_input(folder, server, pictures(server, 20))
    threads, before = set(threading.enumerate()), sockets()
    assert main(["curate", "config.toml"]) == 0
    assert set(threading.enumerate()) <= threads
    assert sockets() == before


# The demo -------------------------------------------------------------------------------------------------------------


def test_the_demo_over_http_gives_the_pairs_of_its_archives(folder: Path) -> None:
    from altalign.demo import serve, web
    from tests.support.curations import ROOT

    web.write(folder / "demo-web", pages_a_site=8)
    running = serve.server(folder / "demo-web")
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    try:
        serve.write_served(folder / "demo-web", running.server_port)
        local = ["--set", f'fetch.allow_addresses=["127.0.0.1:{running.server_port}"]']
        assert main(["curate", str(ROOT / "configs" / "demo.toml"), "--set", "text.vocabulary_size=100_000"]) == 0
        assert (
            main(
                ["curate", str(ROOT / "configs" / "demo-served.toml"), *local, "--set", "text.vocabulary_size=100_000"]
            )
            == 0
        )
    finally:
        running.shutdown()
        running.server_close()
        thread.join()

    def pairs(name: str) -> list[Any]:
        paths = sorted((folder / "runs" / name / "shards").glob("*.parquet"))
        rows = pa.concat_tables(map(pq.read_table, paths)).to_pylist()
        urls = {
            url: serve.local_url(url, running.server_port)
            for row in rows
            if not (url := row["image_url"]).startswith("http://127.0.0.1")
        }
        values = ("caption", "page_url", "width", "height", "format", "found_sha256", "sha256", "words")
        return sorted((urls.get(row["image_url"], row["image_url"]), *(row[value] for value in values)) for row in rows)

    assert len(pairs("demo")) > 300
    assert pairs("demo-served") == pairs("demo")
    over_http, archived = (
        json.loads((folder / "runs" / name / "summary.json").read_text(encoding="utf-8"))
        for name in ("demo-served", "demo")
    )
    (fetched, judged), (found, seen) = (run["stages"][2:4] for run in (over_http, archived))
    # what an archive has of no bytes is an image that cannot be decoded
    empty = fetched["dropped"].pop("http_broken")
    assert fetched["dropped"] == {"http_status": found["dropped"]["not_in_archive"]}
    assert judged["dropped"] | {"image_undecodable": judged["dropped"]["image_undecodable"] + empty} == seen["dropped"]
