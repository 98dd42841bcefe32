"""Runs from the web that are cut off, interrupted or tried again: they continue to the same bytes, and nothing in hand
is asked for again. test_faults.py kills them.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from altalign.cli import main
from altalign.pipelines.web.client import Client
from altalign.settings.curate import FetchSettings
from tests.end_to_end.web_inputs import (
    Asked,
    answers,
    asked_for,
    dropped,
    in_journals,
    pictures,
    requests,
    sockets,
    tries,
    write_web_input,
)
from tests.support.curations import altalign, command, environ, somebodys_prism, summary, tree
from tests.web_server.running import WebServer

pytestmark = pytest.mark.faults

PATIENCE_S = 800  # a test that waits longer has failed
# Eight units are under way together, also where little memory is free.
AT_ONCE = ("--set", "engine.workers=4")
HANGING = ("--set", "fetch.timeout_s=3600", *AT_ONCE)


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


def waits_until(holds: Callable[[], Any], process: "subprocess.Popen[str] | None" = None) -> None:
    """Look again and again; it fails where the process has ended, or after long."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it does not come to that"
        assert process is None or process.poll() is None, "it ended before"
        time.sleep(0.01)


@contextmanager
def curating(folder: Path, *args: str) -> Iterator["subprocess.Popen[str]"]:
    """A run, ended with the block."""
    wanted = command("curate", "config.toml", *args)
    run = subprocess.Popen(wanted, cwd=folder, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield run
    finally:
        run.kill()
        run.communicate()


def last_line(said: str) -> str:
    """What was said last."""
    return said.rstrip("\n").rpartition("\n")[2]


def ended(process: "subprocess.Popen[str]") -> str:
    """What a run said that ends well."""
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    return said


def test_a_request_that_a_connection_has_lost_is_one_of_its_tries(server: WebServer) -> None:
    """Whether the server has read it is unknown, so no request is made that the settings do not allow."""
    urls = [server.url(f"/png/{number}?wait=0.02&lost") for number in range(4)]
    urls = [*urls[:2], server.url("/reset?lost"), *urls[2:]]
    settings = {
        "source": "web",
        "ports": [server.port],
        "allow_addresses": ["127.0.0.0/8"],
        "connections_per_host": 1,
        "retries": 0,
    }
    with Client(FetchSettings.model_validate(settings)) as client:
        failed = [response for response in client.fetch(urls) if response.reason is not None]
    assert [(response.number, len(response.tries)) for response in failed] == [(2, 1)]
    assert len(server.requests("/reset?lost")) == 1
    assert {url: times for url, times in requests(server.log).items() if "lost" in url} == dict.fromkeys(urls, 1)


# Trying again ---------------------------------------------------------------------------------------------------------


def test_what_failed_is_asked_for_again_and_the_run_is_as_if_it_had_come_at_once(
    server: WebServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*pictures(server, 20), *answers(server)]
    flaky = [
        Asked(server.url(f"/flaky/{number}?codes={codes}")) for number, codes in enumerate(("503", "429", "500", "599"))
    ]
    write_web_input(folder, server, [*asked, *flaky])
    assert main(["curate", "config.toml"]) == 0
    before, requests, first = dropped(folder / "run"), len(server.requests()), tries(folder / "run")
    assert [before[each.url] for each in flaky] == [("http_status", code) for code in (503, 429, 500, 599)]
    capsys.readouterr()
    assert main(["retry", "run"]) == 0
    said = capsys.readouterr()
    assert "8 images of " in said.err
    reasons = "http_status 429 and 5xx, http_not_asked, http_timeout, http_unreachable, http_broken"
    assert f"to ask for again: {reasons}" in said.err
    came, *failed = last_line(said.err).removeprefix("8 asked again: ").split(", ")
    assert (came, sorted(failed)) == ("4 came", ["1 http_status 503", "1 http_unreachable", "2 http_broken"])
    assert "pairs of" in said.out
    again = {"/status/503?n=1", "/raw/cut?n=1", "/reset?n=1", *(each.url.split(str(server.port))[1] for each in flaky)}
    assert {url.split(str(server.port))[1] for url in asked_for(server, since=requests)} == again
    assert dropped(folder / "run") == {
        url: found for url, found in before.items() if url not in {each.url for each in flaky}
    }
    after = tries(folder / "run")
    assert [each for each in after if each in first] == first  # the history stays
    assert len(after) == len(first) + 8

    at_once = folder / "at-once"
    write_web_input(at_once, server, [])
    shutil.copytree(folder / "input", at_once / "input", dirs_exist_ok=True)
    assert altalign(at_once, "curate", "config.toml").returncode == 0
    assert tree(folder / "run") == tree(at_once / "run")


def test_what_was_never_asked_for_is_asked_first(
    server: WebServer, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = [Asked(server.url(f"/png/slow-{number}")) for number in range(8)]  # all of one host
    flaky = [Asked(server.url(f"/flaky/again-{number}?codes=503", f"127.0.0.{2 + number}")) for number in range(3)]
    write_web_input(folder, server, [*flaky, *slow])
    in_haste = ["requests_per_host_s=0.1", "connections_per_host=1", "honour_robots=false"]
    settings = [word for each in in_haste for word in ("--set", f"fetch.{each}")]
    with monkeypatch.context() as in_a_hurry:
        in_a_hurry.setattr("altalign.pipelines.web.client.UNIT_DEADLINE_S", 5.0)
        assert main(["curate", "config.toml", "--until", "fetch", *settings]) == 0
    found = dropped(folder / "run")
    never = {url for url, (reason, _) in found.items() if reason == "http_not_asked"}
    failed = {url for url, (reason, _) in found.items() if reason == "http_status"}
    assert len(never) >= 6
    assert failed == {each.url for each in flaky}
    requests = len(server.requests())
    calm = ["--set", "fetch.requests_per_host_s=1000"]
    assert main(["retry", "run", *calm]) == 0
    assert last_line(capsys.readouterr().err) == f"{len(found)} asked again: {len(found)} came"
    asked = asked_for(server, since=requests)
    assert (set(asked[: len(never)]), set(asked[len(never) :])) == (never, failed)
    assert dropped(folder / "run") == {}


def test_what_is_final_is_asked_for_again_only_by_name(
    server: WebServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_web_input(
        folder,
        server,
        [
            *pictures(server, 8),
            *[each for each in answers(server) if each.reason in ("opt_out_iptc", "http_too_large")],
        ],
    )
    assert main(["curate", "config.toml"]) == 0
    before, requests = tree(folder / "run"), len(server.requests())
    capsys.readouterr()
    assert main(["retry", "run"]) == 0
    assert (
        "nothing to retry: no image of the run failed for http_status 429 and 5xx, http_not_asked, http_timeout"
        in capsys.readouterr().err
    )
    assert len(server.requests()) == requests
    (folder / "run").rename(folder / "a rün")  # a run may be moved
    assert main(["retry", "a rün", "--reason", "opt_out_iptc"]) == 0
    (folder / "a rün").rename(folder / "run")
    assert {url.partition("?")[2].partition("=")[0] for url in asked_for(server, since=requests)} == {"mining"}
    assert tree(folder / "run") == before


def test_what_a_block_list_names_by_now_is_not_asked_for_again(
    server: WebServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = [Asked(server.url(f"/status/503?n={number}")) for number in range(3)]
    write_web_input(folder, server, [*pictures(server, 8), *failed])
    lists = ["--set", 'fetch.blocked_urls=["urls.txt"]']
    (folder / "urls.txt").write_text("0" * 64 + "\n")
    assert main(["curate", "config.toml", *lists]) == 0
    with (folder / "urls.txt").open("a") as file:
        file.write(hashlib.sha256(failed[0].url.encode()).hexdigest() + "\n")
    requests = len(server.requests())
    capsys.readouterr()
    assert main(["retry", "run"]) == 2
    assert "its stage fetch was made with" in capsys.readouterr().err
    assert main(["curate", "config.toml", *lists, "--rerun"]) == 0
    assert len(server.requests()) == requests
    assert dropped(folder / "run")[failed[0].url] == ("url_blocked", None)
    assert main(["retry", "run"]) == 0
    err = capsys.readouterr().err
    assert "\nat most 3 images of " in err
    assert last_line(err) == "2 asked again: 0 came, 2 http_status 503"
    assert set(asked_for(server, since=requests)) == {each.url for each in failed[1:]}


def test_a_retry_may_have_more_patience_and_finishes_a_run_that_is_not(
    server: WebServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = server.url("/slow-head?seconds=3")
    write_web_input(folder, server, [*pictures(server, 8), Asked(late)])
    assert main(["curate", "config.toml", "--until", "fetch", "--set", "fetch.timeout_s=1"]) == 0
    again = dropped(folder / "run")  # with those for which a busy machine had no second
    assert again[late] == ("http_timeout", None)
    capsys.readouterr()
    assert main(["retry", "run", "--set", "fetch.timeout_s=60", "--set", "run.keep_work=false"]) == 0
    assert last_line(capsys.readouterr().err) == f"{len(again)} asked again: {len(again)} came"
    assert not (folder / "run" / "work").exists()
    assert dropped(folder / "run") == {}
    assert summary(folder / "run")["images"] == 9
    assert "timeout_s = 60" in (folder / "run" / "config.toml").read_text(encoding="utf-8")


@pytest.mark.engine
def test_flags_of_beam_name_the_server_where_a_run_is_retried(
    server: WebServer, folder: Path, prism: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_web_input(folder, server, [*pictures(server, 8), Asked(server.url("/flaky/of-flags?codes=503"))])
    assert main(["curate", "config.toml"]) == 0
    before = tree(folder / "run")
    again = ["retry", "run", "--set", 'engine.runner="prism"', "--"]
    with somebodys_prism(prism, folder / "prism.log", monkeypatch) as endpoint:
        assert main([*again, "--job_endpoints=x"]) == 2
        assert "altalign: -- --job_endpoints: Beam has no such flag" in capsys.readouterr().err
        assert tree(folder / "run") == before
        assert main([*again, f"--job_endpoint={endpoint}"]) == 0
    assert last_line(capsys.readouterr().err) == "1 asked again: 1 came"
    assert summary(folder / "run")["images"] == 9


# A network that is gone -----------------------------------------------------------------------------------------------


def test_a_network_that_is_gone_stops_the_command_which_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with WebServer(tmp_path / "server") as server:
        asked = [Asked(server.url(f"/{'png' if number < 20 else 'gated'}/{number}?file=gate")) for number in range(60)]
        gate = server.folder / "gate"
        gate.touch()
        for name in ("whole", "cut"):
            write_web_input(tmp_path / name, server, asked)
        os.utime(tmp_path / "cut" / "input" / "pairs.parquet", ns=(1, 1))
        assert altalign(tmp_path / "whole", "curate", "config.toml").returncode == 0
        before = len(asked_for(server))
        gate.unlink()  # or all would have come before the server is gone
        with curating(tmp_path / "cut", "--set", "fetch.connections_per_host=4", "--set", "fetch.timeout_s=5") as run:
            waits_until(lambda: len(asked_for(server)) > before + 10, run)
            server.stop()
            gate.touch()
            _, message = run.communicate(timeout=PATIENCE_S)
        assert run.returncode not in (0, None)
        assert "the network is gone: " in last_line(message), message
        server.start()
        done = altalign(tmp_path / "cut", "curate", "config.toml")
        assert done.returncode == 0, done.stderr
        if dropped(tmp_path / "cut" / "run"):  # by what the server broke off as it ended
            done = altalign(tmp_path / "cut", "retry", "run")
            assert done.returncode == 0, done.stderr
        assert tree(tmp_path / "cut" / "run") == tree(tmp_path / "whole" / "run")


def test_a_network_that_was_never_there_is_told_and_a_retry_finishes_the_run(tmp_path: Path) -> None:
    with WebServer(tmp_path / "server") as server:
        asked = [Asked(server.url(f"/png/{number}")) for number in range(8)]
        write_web_input(tmp_path, server, asked)
        server.stop()
        done = altalign(tmp_path, "curate", "config.toml", "--set", "fetch.timeout_s=5")
        assert done.returncode == 1, done.stderr  # nothing is kept
        assert "no host has answered: look whether this machine has a network" in done.stdout
        assert set(dropped(tmp_path / "run").values()) == {("http_unreachable", None)}
        server.start()
        done = altalign(tmp_path, "retry", "run")
        assert (done.returncode, last_line(done.stderr)) == (0, "8 asked again: 8 came")
        assert "no host has answered" not in done.stdout
        assert dropped(tmp_path / "run") == {}


def test_settings_that_refuse_all_are_named_and_not_the_network(tmp_path: Path) -> None:
    with WebServer(tmp_path / "server") as server:
        write_web_input(tmp_path, server, [Asked(server.url(f"/png/{number}")) for number in range(8)])
        done = altalign(tmp_path, "curate", "config.toml", "--set", "fetch.allow_addresses=[]")
    assert done.returncode == 1, done.stderr
    assert "this run's own settings refused 11 pairs" in done.stdout
    assert "no host has answered" not in done.stdout


def test_what_may_come_another_time_is_what_a_retry_asks_for(tmp_path: Path) -> None:
    with WebServer(tmp_path / "server") as server:
        write_web_input(tmp_path, server, [Asked(server.url(f"/status/{code}")) for code in (429, 503, 404, 500)])
        done = altalign(tmp_path, "curate", "config.toml", "--set", "fetch.retries=0")
        assert "3 images may come another time" in done.stdout
        assert "3 images of " in altalign(tmp_path, "retry", "run").stderr


# Interrupted, and failing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_what_hangs_in_one_line_and_the_run_continues(
    server: WebServer, folder: Path, number: signal.Signals
) -> None:
    pics = pictures(server, 16, hosts=3)
    hanging = [Asked(server.url(f"/slow-head?n={number.name}{n}&seconds=3600", "127.0.0.4")) for n in range(8)]
    write_web_input(folder, server, [*pics, *hanging])
    before = len(server.requests())
    with curating(folder, *HANGING) as run:
        waits_until(lambda: {each.url for each in hanging} <= set(asked_for(server, since=before)), run)
        waits_until(lambda: len(in_journals(folder / "run")) == len(pics), run)
        run.send_signal(number)
        out, said = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 128 + number, said
    name = "" if number == signal.SIGINT else f" ({number.name})"
    assert [line for line in said.splitlines() if line.startswith("altalign")] == [
        f"altalign: interrupted{name}; run the same command again, it continues"
    ]
    assert "Traceback" not in out + said
    assert "Exception ignored" not in said
    before = len(server.requests())
    assert main(["curate", "config.toml", "--set", "fetch.timeout_s=5", *AT_ONCE]) == 0
    assert set(asked_for(server, since=before)) == {each.url for each in hanging}
    assert summary(folder / "run")["images"] == len(pics)


def test_trouble_in_one_unit_ends_those_that_wait_for_hours(
    server: WebServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failing unit waits until all others hang."""
    script = """
import sys
from altalign.cli import main
from altalign.errors import AltalignError
from altalign.pipelines.images import measuring
real = measuring.measure
def measure(data, *, url, **rest):
    if "trouble" in url:
        raise AltalignError("no memory to speak of")
    return real(data, url=url, **rest)
measuring.measure = measure
sys.exit(main(["curate", "config.toml", *sys.argv[1:]]))
"""
    hanging = [
        Asked(server.url(f"/slow-head?trouble-elsewhere={n}&seconds=3600", f"127.0.0.{1 + n % 4}")) for n in range(20)
    ]
    write_web_input(folder, server, [*hanging, Asked(server.url("/png/trouble?wait=1"))])
    done = subprocess.run(
        [sys.executable, "-c", script, *HANGING],
        cwd=folder,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if line.startswith("altalign")] == [
        "altalign: no memory to speak of"
    ]


def test_nothing_is_left_open_after_a_failure(server: WebServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from altalign.errors import AltalignError
    from altalign.pipelines.images import measuring

    write_web_input(
        folder, server, [*pictures(server, 20), *[Asked(server.url(f"/slow-head?leak={n}")) for n in range(8)]]
    )
    threads, before = set(threading.enumerate()), sockets()
    real = measuring.measure

    def failing(data: bytes, *, url: str, **rest: Any) -> Any:
        if url.endswith("/png/7"):
            raise AltalignError("no memory to speak of")
        return real(data, url=url, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(measuring, "measure", failing)
        assert main(["curate", "config.toml", "--set", "fetch.timeout_s=3600"]) == 1
    assert set(threading.enumerate()) <= threads
    assert sockets() == before
