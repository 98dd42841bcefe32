"""The client against real servers: what each of their answers becomes, and that nothing is left behind."""

import gzip
import itertools
import re
import socket
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import brotli
import pytest

from altalign.data.reasons import DropReason
from altalign.errors import AltalignError, UsageError
from altalign.machine import interrupts
from altalign.pipelines.web import hosts
from altalign.pipelines.web.calls import Fetch, Response
from altalign.pipelines.web.client import BYTES_IN_FLIGHT_AT_MOST, Client, opened
from altalign.pipelines.web.transport import Transport
from altalign.pipelines.web.transport import _tls as tls_of_the_process  # pyright: ignore[reportPrivateUsage]
from altalign.settings.curate import FetchSettings
from tests.pipelines.web.clock import Clock, load_of
from tests.pipelines.web.servers import (
    CLOSE,
    HANG,
    RESET,
    Pointing,
    Server,
    Step,
    Steps,
    greeting,
    refused,
    script,
    silent,
)
from tests.web_server.running import certificate

IMAGE = bytes(range(256)) * 40


def settings_of(*ports: int, **values: Any) -> FetchSettings:
    given = {
        "allow_addresses": [f"127.0.0.1:{port}" for port in ports],
        "requests_per_host_s": 1e6,
        "timeout_s": 20,
        "honour_robots": False,
    }
    return FetchSettings.model_validate({"source": "web", **given, **values})


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "BACKOFF_S", 0.02)
    monkeypatch.setattr(hosts, "PROBED_AFTER_S", 0.02)


def fetch(
    urls: Sequence[str],
    settings: FetchSettings,
    resolver: Pointing | None = None,
    *,
    while_waits: Callable[[Fetch], bool] | None = None,
    bytes_in_flight_at_most: int = BYTES_IN_FLIGHT_AT_MOST,
) -> dict[str, Response]:
    """Time goes on in no time while all tasks under way wait as `while_waits` knows."""
    with Client(
        settings, bytes_in_flight_at_most=bytes_in_flight_at_most, resolve=(resolver or Pointing()).addresses
    ) as client:
        if while_waits is not None:
            Clock(client).go_on_while(while_waits)
        responses = list(client.fetch(urls))
        load = load_of(client)
    assert sorted(response.number for response in responses) == list(range(len(urls)))
    assert (load.unfinished, load.running, load.slots, load.bytes_in_flight) == (0, 0, 0, 0)
    return {urls[response.number]: response for response in responses}


def fetch_path(steps: list[Step], *, hangs: bool = False, **values: Any) -> tuple[Response, Server]:
    with Server({"/image": steps}) as server:
        settings = settings_of(server.port, **{"retries": 0, **values})
        (response,) = fetch([server.url("/image")], settings, while_waits=server.hangs if hangs else None).values()
        return response, server


def test_an_image_comes_as_it_is() -> None:
    response, server = fetch_path(script(200, IMAGE, Content_Type="image/png"))
    assert (response.body, response.reason, response.http_code, response.detail) == (IMAGE, None, 200, "")
    (each,) = response.tries
    assert (each.url, each.address, each.status, each.reason, each.bytes) == (
        server.url("/image"),
        "127.0.0.1",
        200,
        None,
        len(IMAGE),
    )
    assert 0 <= each.seconds < 20
    assert abs(each.started_s - time.time()) < 600
    (request,) = server.requests
    assert request.headers["User-Agent"] == FetchSettings().user_agent_sent
    assert request.headers["Accept-Encoding"] == "identity"
    assert "Cookie" not in request.headers


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDED = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
TWICE = gzip.compress(brotli.compress(IMAGE))
GIVEN: dict[str, list[Step]] = {
    "in many small pieces": [
        script(200, b"", len(IMAGE))[0],
        *(part for at in range(0, len(IMAGE), 512) for part in (IMAGE[at : at + 512], 0.001)),
    ],
    "with bytes beyond its length, later": [*script(200, IMAGE), 0.05, b"more of it"],
    "with a head of many segments": [
        *(script(200, IMAGE)[0][at : at + 1] for at in range(60)),
        script(200, IMAGE)[0][60:],
    ],
    "with a long header": script(200, IMAGE, Content_Security_Policy="x" * 20_000),
    "gzip in two members": script(
        200, gzip.compress(IMAGE[:99]) + gzip.compress(IMAGE[99:]), Content_Encoding="x-gzip"
    ),
    "br in gzip, in two headers": [
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n"
        + script(200, TWICE, Content_Encoding="gzip")[0].partition(b"\r\n")[2]
    ],
}


@pytest.mark.parametrize("size", range(200_000, 600_000, 50_000))
def test_a_body_that_came_while_nobody_read_it_is_whole(size: int) -> None:
    """The library stops its parser when enough is unread, and has to be let go on though nothing more comes."""
    body = bytes(size)
    with Server({f"/{n}": script(200, body) for n in range(3)}) as server:
        settings = settings_of(server.port, retries=0)
        with Client(settings, bytes_in_flight_at_most=size) as client:
            for response in client.fetch([server.url(f"/{n}") for n in range(3)]):
                assert response.body == body, response.detail
                time.sleep(0.1)


@pytest.mark.parametrize("steps", GIVEN.values(), ids=GIVEN.keys())
def test_whatever_a_server_makes_of_it_the_image_comes(steps: list[Step]) -> None:
    response, server = fetch_path(steps)
    assert response.detail == ""
    assert response.body == IMAGE
    assert len(server.requests) == 1


REFUSED = DropReason.HTTP_REFUSED


# Who may be asked -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "https://localhost./",
        "http://0/",
        "http://0x7f000001/",
        "http://[::1]/",
        "http://[::ffff:7f00:1]/",
        "http://169.254.169.254/latest",
    ],
)
def test_nobody_is_let_in(url: str) -> None:
    response = fetch([url], settings_of())[url]
    assert (response.reason, response.http_code, response.tries and response.tries[0].status) == (
        REFUSED,
        None,
        response.tries and None,
    )
    assert "may not be reached" in response.detail


def test_another_port_is_refused_before_its_name_is_looked_up() -> None:
    resolver = Pointing()
    response = fetch(["http://a.test:8080/"], settings_of(), resolver)["http://a.test:8080/"]
    assert (response.reason, response.tries, resolver.lookups) == (REFUSED, (), [])
    assert response.detail == "port 8080 of a.test may not be reached (fetch.ports, fetch.allow_addresses)"


def test_an_address_is_open_at_the_port_that_is_named_alone() -> None:
    with Server({"/image": script(200, IMAGE)}) as server, Server({"/image": script(200, IMAGE)}) as other:
        responses = fetch([server.url("/image"), other.url("/image")], settings_of(server.port))
    assert responses[server.url("/image")].body == IMAGE
    assert responses[other.url("/image")].reason == REFUSED
    assert not other.requests


def test_of_several_addresses_only_those_are_connected_to_that_may_be() -> None:
    resolver = Pointing(
        others={
            "both.test": ["10.0.0.1", "127.0.0.1", "::1"],
            "none.test": ["10.0.0.1", "169.254.169.254"],
            "empty.test": [],
        }
    )
    with Server({"/image": script(200, IMAGE)}) as server:
        urls = [server.url("/image", host) for host in ("both.test", "none.test", "empty.test")]
        responses = fetch(urls, settings_of(server.port), resolver)
    assert (responses[urls[0]].body, responses[urls[0]].tries[0].address) == (IMAGE, "127.0.0.1")
    assert responses[urls[1]].reason == responses[urls[2]].reason == REFUSED
    assert (
        responses[urls[1]].detail
        == "none.test is 10.0.0.1 (private), 169.254.169.254 (link-local), which may not be reached "
        "(fetch.allow_addresses)"
    )
    assert [request.headers["Host"] for request in server.requests] == [f"both.test:{server.port}"]


def test_blocked_domains_cover_what_is_below_them_and_redirects_to_them(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("# ours\nblocked.test\nBÜCHER.test # Punycode\n", encoding="utf-8")
    resolver = Pointing()
    with Server({"/image": script(200, IMAGE)}) as server:
        server.script["/there"] = script(302, Location=server.url("/image", "deep.blocked.test"))
        urls = [
            server.url("/image", host)
            for host in ("blocked.test", "a.blocked.test.", "unblocked.test", "xn--bcher-kva.test", "bücher.test")
        ]
        responses = fetch(
            [*urls, server.url("/there", "a.test")],
            settings_of(server.port, blocked_domains=[str(tmp_path / "list")]),
            resolver,
        )
    assert [responses[url].reason for url in urls] == [REFUSED, REFUSED, None, REFUSED, REFUSED]
    assert responses[server.url("/there", "a.test")].reason == REFUSED
    assert responses[server.url("/there", "a.test")].tries[0].url == server.url("/image", "deep.blocked.test")
    assert sorted(resolver.lookups) == ["a.test", "unblocked.test"]


def test_a_list_of_domains_that_cannot_be_read_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        Client(settings_of(blocked_domains=[str(tmp_path / "lost")]))


# Redirects ------------------------------------------------------------------------------------------------------------


def test_the_time_of_a_try_is_that_of_all_its_redirects() -> None:
    with Server({}) as server, Client(settings_of(server.port, retries=0)) as client:
        clock = Clock(client)

        def redirected(_: int) -> list[Step]:
            clock.go_on(12)
            return script(302, Location="/a")

        server.script["/image"] = redirected
        (response,) = client.fetch([server.url("/image")])
        assert response.reason == DropReason.HTTP_STATUS  # to /a, which is not there
        server.script["/a"] = redirected
        (response,) = client.fetch([server.url("/a")])
        assert (response.reason, server.paths["/a"]) == (DropReason.HTTP_TIMEOUT, 3)


# Tries and tries again ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 599])
def test_what_may_pass_is_tried_again(status: int) -> None:
    with Server({"/image": lambda n: script(200, IMAGE) if n == 3 else script(status)}) as server:
        (response,) = fetch([server.url("/image")], settings_of(server.port, retries=2)).values()
    assert (response.body, response.http_code) == (IMAGE, 200)
    assert [each.status for each in response.tries] == [status, status, 200]


@pytest.mark.parametrize("steps", [[RESET], [CLOSE], [*script(200, IMAGE, length=99_999), CLOSE], script(503)])
def test_tries_are_as_many_as_the_setting_says(steps: list[Step]) -> None:
    response, server = fetch_path(steps, retries=3)
    assert (len(response.tries), len(server.requests)) == (4, 4)
    assert response.reason in (DropReason.HTTP_BROKEN, DropReason.HTTP_STATUS)


def test_what_cannot_be_reached_is_unreachable() -> None:
    resolver = Pointing(
        others={
            "lost.test": socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "ill.test": socket.gaierror(socket.EAI_AGAIN, "again"),
        }
    )
    with refused() as port, silent() as other, greeting(b"HTTP/1.1 400 Bad Request\r\n\r\n") as third:
        urls = [
            f"http://127.0.0.1:{port}/",
            "http://lost.test/",
            "http://ill.test/",
            f"https://127.0.0.1:{other}/",
            f"https://127.0.0.1:{third}/",
        ]
        responses = fetch(
            urls,
            settings_of(port, other, third, retries=1),
            resolver,
            while_waits=lambda task: task.target.port == other,
        )
    assert [responses[url].reason for url in urls] == [
        *[DropReason.HTTP_UNREACHABLE] * 3,
        DropReason.HTTP_TIMEOUT,
        DropReason.HTTP_UNREACHABLE,
    ]
    assert [len(responses[url].tries) for url in urls] == [2] * 5
    assert [responses[url].http_code for url in urls] == [None] * 5
    assert responses[urls[0]].detail == f"127.0.0.1:{port}: Connection refused"
    assert responses[urls[1]].detail == "lost.test: Name or service not known"
    assert "TLS" in responses[urls[4]].detail


def test_tls_holds_to_whoever_signed_the_certificate_and_to_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = certificate(tmp_path)
    if both is None:
        pytest.skip("no openssl, which makes the certificate")
    with Server({f"/{n}": script(200, IMAGE) for n in range(20)}, both) as server:
        urls = [server.url("/0"), server.url("/1", "other.example")]
        unknown = fetch(urls, settings_of(server.port, retries=0))
        monkeypatch.setenv("SSL_CERT_FILE", str(both))
        tls_of_the_process.cache_clear()
        try:
            known = fetch(
                [*urls, *(server.url(f"/{n}") for n in range(2, 20))],
                settings_of(server.port, retries=1, connections_per_host=2),
            )
        finally:
            tls_of_the_process.cache_clear()
    assert [response.reason for response in unknown.values()] == [DropReason.HTTP_UNREACHABLE] * 2
    assert all("certificate: self-signed certificate" in response.detail for response in unknown.values())
    assert [known[url].body for url in [*urls, *(server.url(f"/{n}") for n in range(2, 20))]] == [
        IMAGE,
        None,
        *[IMAGE] * 18,
    ]
    assert "certificate: Hostname mismatch" in known[urls[1]].detail
    assert len({request.connection for request in server.requests}) < 10  # they are kept over TLS too


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_kept_connection_that_died_costs_no_image(retries: int) -> None:
    with Server({f"/{n}": [*script(200, IMAGE), CLOSE] for n in range(8)}) as server:
        responses = fetch(
            [server.url(f"/{n}") for n in range(8)], settings_of(server.port, connections_per_host=1, retries=retries)
        )
    assert [response.body for response in responses.values()] == [IMAGE] * 8
    assert set(server.paths.values()) == {1}


@pytest.mark.parametrize("retries", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "steps", [[RESET], [CLOSE], [b"HTTP/1.1 2", RESET], [b"HTTP/1.1 200 X\r\nContent-Length: 9\r\n\r\nabc", RESET]]
)
def test_no_request_is_made_more_often_than_the_settings_say(steps: list[Step], retries: int) -> None:
    """One that a kept connection loses counts: it may have been read, and its loss may be the answer."""
    images: dict[str, Steps] = {f"/{n}": [0.05, *script(200, IMAGE)] for n in range(40)}
    with (
        Server({**images, "/lost": steps}) as server,
        Client(settings_of(server.port, connections_per_host=8, retries=retries)) as client,
    ):
        assert all(response.body == IMAGE for response in client.fetch([server.url(path) for path in images]))
        (response,) = client.fetch([server.url("/lost")])
    assert (response.reason, len(response.tries)) == (DropReason.HTTP_BROKEN, retries + 1)
    assert server.paths["/lost"] == retries + 1


@pytest.mark.parametrize("rest", [[CLOSE], [0.02, RESET], [HANG]], ids=["cut", "reset", "stalled"])
def test_an_error_is_its_status_whatever_becomes_of_its_page(rest: list[Step]) -> None:
    """The page is read for the sake of the connection alone, where others are to follow on it."""
    unfinished: list[Step] = [b"HTTP/1.1 404 X\r\nContent-Length: 100\r\n\r\nabc", *rest]
    moved: list[Step] = [b"HTTP/1.1 302 X\r\nLocation: /image\r\nContent-Length: 100\r\n\r\nabc", *rest]
    with Server(
        {"/a": unfinished, "/b": moved, "/c": unfinished, "/d": unfinished, "/image": script(200, IMAGE)}
    ) as server:
        urls = [server.url(f"/{name}") for name in "abcd"]
        responses = fetch(urls, settings_of(server.port, connections_per_host=1))
        outcomes = [(responses[url].reason, responses[url].http_code, responses[url].body) for url in urls]
        gone = (DropReason.HTTP_STATUS, 404, None)
        assert outcomes == [gone, (None, 200, IMAGE), gone, gone]
        assert len(server.requests) == 5


def test_connections_are_kept_while_they_are_needed() -> None:
    with Server({f"/{n}": script(200, IMAGE) for n in range(50)}) as server:
        fetch([server.url(f"/{n}") for n in range(50)], settings_of(server.port, connections_per_host=4))
    assert server.connections <= 8
    assert len(server.requests) == 50


# robots.txt -----------------------------------------------------------------------------------------------------------


DISALLOW = b"User-agent: *\nDisallow: /\n"


def test_robots_txt_is_asked_for_once_an_origin_and_for_redirects_too() -> None:
    with (
        Server({f"/{n}": script(200, IMAGE) for n in range(20)}) as server,
        Server({"/robots.txt": script(200, DISALLOW)}) as other,
    ):
        server.script["/there"] = script(302, Location=other.url("/image"))
        settings = settings_of(server.port, other.port, honour_robots=True)
        with Client(settings) as client:
            for _ in range(2):
                assert {response.reason for response in client.fetch([server.url(f"/{n}") for n in range(20)])} == {
                    None
                }
            (moved,) = client.fetch([server.url("/there")])
    assert (server.paths["/robots.txt"], server.paths["/.well-known/tdmrep.json"]) == (1, 1)
    assert other.paths == {"/robots.txt": 1}
    assert (moved.reason, len(moved.tries), moved.http_code) == (DropReason.OPT_OUT_ROBOTS_TXT, 1, 302)


@pytest.mark.parametrize(
    ("purpose", "reason"),
    [
        ("train", DropReason.OPT_OUT_X_ROBOTS_TAG),
        ("train-generative", DropReason.OPT_OUT_CONTENT_USAGE),
        ("train-other", None),
        ("search", DropReason.OPT_OUT_X_ROBOTS_TAG),
        ("keep all", None),
    ],
)
def test_the_purpose_decides_what_opposes_it_and_all_is_recorded(purpose: str, reason: DropReason | None) -> None:
    steps = script(200, IMAGE, X_Robots_Tag="noindex", Content_Usage="train-ai=n")
    response, server = fetch_path(steps, purpose=purpose)
    assert (response.reason, response.body) == (reason, None if reason else IMAGE)
    assert [each[:3] for each in response.said or ()] == [
        ("x-robots-tag", "noindex", "image header"),
        ("content-usage", "train-ai=n", "image header"),
    ]
    assert server.paths == {"/image": 1}


def test_what_files_of_a_site_say_comes_with_its_images() -> None:
    robots = b"User-agent: *\nContent-Usage: /image search=n\n\nUser-agent: *\nDisallow: /secret\n"
    reserved = b'[{"location": "/image", "tdm-reservation": 0}, {"location": "/", "tdm-reservation": 1}]'
    files = {"/robots.txt": script(200, robots), "/.well-known/tdmrep.json": script(200, reserved)}
    images = {path: script(200, IMAGE) for path in ("/image", "/other")}
    with Server(files | images | {"/secret": script(200, IMAGE)}) as server:
        urls = [server.url(path) for path in ("/image", "/other", "/secret")]
        responses = fetch(urls, settings_of(server.port, honour_robots=True))
        image, other, secret = (responses[url] for url in urls)
    assert [each[:3] for each in image.said or ()] == [
        ("content-usage", "/image search=n", "robots.txt"),
        ("tdmrep", "tdm-reservation: 0", "tdmrep.json"),
    ]
    now = datetime.now(UTC)
    assert all(abs((now - datetime.fromisoformat(each.when or "")).total_seconds()) < 600 for each in image.said or ())
    assert (image.reason, other.reason, secret.reason) == (
        None,
        DropReason.OPT_OUT_TDMREP,
        DropReason.OPT_OUT_ROBOTS_TXT,
    )
    assert other.detail == "tdmrep: tdm-reservation: 1 (tdmrep.json)"
    assert server.paths == dict.fromkeys([*files, "/image", "/other"], 1)


def test_statements_of_a_redirect_count_too_and_where_nobody_looked_there_are_none() -> None:
    robots = b"User-agent: *\nContent-Usage: /free train-ai=y\n"
    with (
        Server({"/robots.txt": script(200, robots), "/image": script(200, IMAGE, Content_Usage="search=n")}) as there,
        Server({"/robots.txt": script(200, robots)}) as here,
    ):
        here.script["/free"] = script(301, Location=there.url("/image"))
        settings = settings_of(here.port, there.port, honour_robots=True)
        (moved,) = fetch([here.url("/free")], settings).values()
        (refused,) = fetch(["http://127.0.0.1:22/"], settings).values()
    assert [each[:3] for each in moved.said or ()] == [
        ("content-usage", "/free train-ai=y", "robots.txt"),
        ("content-usage", "search=n", "image header"),
    ]
    assert (refused.reason, refused.said) == (DropReason.HTTP_REFUSED, None)


# Bytes and time -------------------------------------------------------------------------------------------------------


def test_bodies_in_memory_stay_within_the_budget() -> None:
    body = bytes(1_000_000)
    with Server(
        {f"/{n}": script(200, body) if n % 2 else [CHUNKED, b"f4240\r\n" + body + b"\r\n0\r\n\r\n"] for n in range(40)}
    ) as server:
        settings = settings_of(server.port, bytes_at_most=2_000_000, connections_per_host=40)
        with Client(settings, bytes_in_flight_at_most=5_000_000) as client:
            seen = 0
            for response in client.fetch([server.url(f"/{n}") for n in range(40)]):
                assert response.body == body
                seen = max(seen, load_of(client).bytes_in_flight)
                time.sleep(0.005)
    assert 1_000_000 <= seen <= 5_000_000


def test_a_body_larger_than_the_budget_comes_alone() -> None:
    body = bytes(3_000_000)
    with Server({f"/{n}": script(200, body) if n % 2 else [ENDED, body, CLOSE] for n in range(6)}) as server:
        urls = [server.url(f"/{n}") for n in range(6)]
        responses = fetch(urls, settings_of(server.port), bytes_in_flight_at_most=1_000_000)
    assert [response.body for response in responses.values()] == [body] * 6


def test_a_large_body_is_in_memory_once() -> None:
    """The server is of this process too: it sends pieces."""
    with (
        Server({"/image": [*script(200, length=15_000_000), *[bytes(250_000)] * 60]}) as server,
        Client(settings_of(server.port)) as client,
    ):
        tracemalloc.start()
        try:
            (response,) = client.fetch([server.url("/image")])
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(response.body or b"") == 15_000_000
    assert most < 1.3 * 15_000_000


@pytest.mark.faults
def test_bodies_that_are_promised_and_do_not_come_take_no_others_room() -> None:
    promised: list[Step] = [b"HTTP/1.1 200 OK\r\nContent-Length: 20000000\r\n\r\nbegun", HANG]
    with Server(
        {f"/promised-{n}": promised for n in range(8)} | {f"/{n}": script(200, IMAGE) for n in range(40)}
    ) as server:
        urls = [server.url(f"/promised-{n}", f"never{n % 4}.test") for n in range(8)] + [
            server.url(f"/{n}", f"good{n % 4}.test") for n in range(40)
        ]
        with Client(
            settings_of(server.port, retries=0), bytes_in_flight_at_most=100_000_000, resolve=Pointing().addresses
        ) as client:
            first = [response.reason for response in itertools.islice(client.fetch(urls), 40)]
    assert first == [None] * 40  # before those that never come have run out of time


def test_waiting_for_the_budget_is_not_the_servers_fault() -> None:
    body = bytes(1_000_000)
    with Server({f"/{n}": script(200, body) for n in range(4)}) as server:
        settings = settings_of(server.port, retries=0)
        with Client(settings, bytes_in_flight_at_most=1_000_000) as client:
            reasons, clock = [], Clock(client)
            clock.go_on_while(lambda task: task.request is not None and task.request.is_held_up)
            for response in client.fetch([server.url(f"/{n}") for n in range(4)]):
                reasons.append(response.reason)
                while load_of(client).running and clock.passed_s < 25 * len(reasons):
                    time.sleep(0.001)
    assert reasons == [None] * 4
    assert clock.passed_s >= 3 * 25


def test_time_in_which_this_process_stood_still_is_not_the_servers_fault() -> None:
    with Server({}) as server, Client(settings_of(server.port, retries=0)) as client:
        clock = Clock(client)

        def answered(_: int) -> list[Step]:
            clock.jump(60)
            return script(200, IMAGE)

        server.script["/image"] = answered
        (response,) = client.fetch([server.url("/image")])
    assert response.body == IMAGE


def test_two_units_share_a_client_and_neither_starves() -> None:
    body = bytes(1_000_000)
    with Server({f"/{n}": script(200, body) for n in range(40)}) as server:
        settings = settings_of(server.port, bytes_at_most=1_000_000)
        whole: dict[int, int] = {}

        def unit(number: int) -> None:
            with opened(settings, bytes_in_flight_at_most=3_000_000) as client:
                whole[number] = sum(
                    response.body == body
                    for response in client.fetch([server.url(f"/{n}") for n in range(number * 20, number * 20 + 20)])
                )

        threads = [threading.Thread(target=unit, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert whole == {0: 20, 1: 20}
    assert len(server.requests) == 40


def test_what_has_not_come_by_a_units_deadline_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("altalign.pipelines.web.client.UNIT_DEADLINE_S", 10.0)
    with Server({"/slow": [HANG], "/image": script(200, IMAGE)}) as server:
        urls = [server.url("/image"), *[server.url("/slow")] * 20]
        with Client(settings_of(server.port, connections_per_host=2)) as client:
            Clock(client).go_on_while(server.hangs)
            responses = {response.number: response for response in client.fetch(urls)}
            while load_of(client).running:  # the loop is about to end them
                time.sleep(0.001)
    assert responses[0].body == IMAGE
    reasons = Counter((responses[n].reason, len(responses[n].tries)) for n in range(1, 21))
    assert reasons == {(DropReason.HTTP_TIMEOUT, 1): 2, (DropReason.HTTP_NOT_ASKED, 0): 18}
    (detail,) = {responses[n].detail for n in range(1, 21)}
    assert re.fullmatch(r"not come within the unit's [1-9]\d+ s", detail)


# Ends -----------------------------------------------------------------------------------------------------------------


def open_sockets() -> int:
    return sum(
        str(path.readlink()).startswith("socket:") for path in Path("/proc/self/fd").iterdir() if path.is_symlink()
    )


def test_a_call_that_is_left_early_leaves_nothing() -> None:
    with (
        Server({f"/{n}": script(200, IMAGE) if n < 20 else [HANG] for n in range(40)}) as server,
        Client(settings_of(server.port)) as client,
    ):
        responses = client.fetch([server.url(f"/{n}") for n in range(40)])
        for _ in range(5):
            next(responses)
        responses.close()
        (after,) = client.fetch([server.url("/0")])  # the loop has done what was asked before
        load = load_of(client)
    assert after.body == IMAGE
    assert (load.unfinished, load.bytes_in_flight) == (0, 0)


def test_an_interrupt_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server({"/image": [HANG]}) as server, Client(settings_of(server.port)) as client:
        monkeypatch.setattr(interrupts, "_ASKED", [2])
        with pytest.raises(interrupts.Interrupted):
            list(client.fetch([server.url("/image")]))


def test_a_client_that_closes_tells_who_waits() -> None:
    errors = []
    with Server({"/image": [HANG]}) as server:
        client = Client(settings_of(server.port))

        def unit() -> None:
            try:
                list(client.fetch([server.url("/image")]))
            except AltalignError as error:
                errors.append(str(error))

        with client:
            thread = threading.Thread(target=unit)
            thread.start()
            while not server.requests:
                time.sleep(0.01)
        thread.join()
        with pytest.raises(AltalignError, match="is closed"):
            list(client.fetch([server.url("/image")]))
    assert errors == ["the client that fetches from the web was closed"]


def test_no_socket_is_left() -> None:
    before = open_sockets()
    with (
        Server({f"/{n}": [script(200, IMAGE), [HANG], [RESET]][n % 3] for n in range(60)}) as server,
        Client(settings_of(server.port, retries=0)) as client,
    ):
        Clock(client).go_on_while(server.hangs)
        inside = open_sockets()
        responses = list(client.fetch([server.url(f"/{n}") for n in range(60)]))
        assert len(responses) == 60
        assert inside > before
    assert open_sockets() == before


def test_a_defect_of_ours_stops_the_unit_and_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> object:
        raise ZeroDivisionError("never")

    monkeypatch.setattr(Transport, "ask", broken)
    with (
        Client(settings_of()) as client,
        pytest.raises(AltalignError, match="ZeroDivisionError: never; this is a defect"),
    ):
        list(client.fetch(["http://a.test/"]))
