"""Every answer of a web server ends as its case says: in hand, or with its reason, status and number of tries.

One call of the client asks for all of them at once, from one server in a process of its own.
"""

import asyncio
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from altalign.pipelines.web.calls import Response
from altalign.pipelines.web.client import Client
from altalign.settings.curate import FetchSettings
from tests.web_server import cases
from tests.web_server.cases import Case
from tests.web_server.running import Event, WebServer, certificate

ROOT = Path(__file__).parents[3]
RETRIES, TIMEOUT_S, BYTES_AT_MOST = 1, 4.0, 1_000_000
CASES = cases.every()


class Resolver:
    """All names lead to this machine, but those of cases with an address of their own, and `nowhere.test`."""

    def __init__(self, own: Sequence[Case]):
        self._addresses = {f"{case.name}.test": case.address for case in own}

    async def addresses(self, host: str) -> list[str]:
        if host == "nowhere.test":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        address = self._addresses.get(host, "127.0.0.1")
        if not address:
            await asyncio.Event().wait()
        if host == "rebound.test":
            self._addresses[host] = "127.0.0.2"
        return [address]


@dataclass
class Finished:
    """What came of all cases, and what the server saw."""

    responses: dict[str, Response]
    events: list[Event]
    threads_left: set[str]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("reasons")
    (folder / "robots-elsewhere.txt").write_text("User-agent: *\nAllow: /\n")
    (folder / "blocked.txt").write_text("blocked.test\n")
    before = set(threading.enumerate())
    with WebServer(folder, certificate=certificate(folder)) as server:
        ports = {
            "port": server.port,
            "tls_port": server.tls_port or 0,
            "refused_port": server.refused_port,
            "full_port": server.full_port,
            "handshake_port": server.handshake_port,
        }
        settings = FetchSettings(
            source="web",
            timeout_s=TIMEOUT_S,
            retries=RETRIES,
            bytes_at_most=BYTES_AT_MOST,
            threads=128,
            requests_per_host_s=1000.0,
            allow_addresses=[f"127.0.0.1:{port}" for port in ports.values() if port],
            blocked_domains=[str(folder / "blocked.txt")],
        )
        with Client(settings, resolve=Resolver(CASES).addresses) as client:
            responses = list(client.fetch([case.url(ports) for case in CASES]))
        events = server.events()
    assert sorted(response.number for response in responses) == list(range(len(CASES)))  # each once
    return Finished(
        {CASES[response.number].name: response for response in responses},
        events,
        {t.name for t in set(threading.enumerate()) - before},
    )


def named(case: Case) -> str:
    return case.name


def test_names_of_cases_are_hosts_and_no_two_are_alike() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert [
        name for name in names if not name.replace("-", "").isalnum() or len(name) > 63 or name.startswith("hang")
    ] == []


@pytest.mark.faults
@pytest.mark.parametrize("case", CASES, ids=named)
def test_an_answer_ends_as_its_case_says(finished: Finished, case: Case) -> None:
    if "{tls_port}" in case.target and not any(event.facts.get("tls_port") for event in finished.events):
        pytest.skip("no openssl, which makes the certificate")
    response = finished.responses[case.name]
    assert (response.reason, response.http_code) == (case.reason, case.code), response.detail
    assert response.body == (case.body if case.reason is None else None)
    expected = case.tries if case.tries is not None else 1 + RETRIES if case.is_tried_again else 1
    tries = [
        each
        for each in response.tries
        if each.reason is not cases.TIMEOUT or case.reason is cases.TIMEOUT or "silence" in case.name
    ]
    assert len(tries) == expected  # a machine with other work lets a try run out now and then
    assert (response.detail == "") == (case.reason is None)
    assert response.detail.isprintable()
    assert len(response.detail) <= 400


@pytest.mark.faults
@pytest.mark.parametrize("case", [case for case in CASES if case.tries != 0], ids=named)
def test_the_last_try_says_what_its_response_says(finished: Finished, case: Case) -> None:
    response = finished.responses[case.name]
    last = response.tries[-1]
    assert (last.reason, last.status) == (response.reason, response.http_code)
    assert last.bytes > 0 or response.reason is not None
    assert all(each.reason is not None and each.detail for each in response.tries[:-1])
    assert all(0 <= each.seconds < 10 * TIMEOUT_S for each in response.tries)


@pytest.mark.faults
def test_nobody_sees_a_cookie_a_password_or_another_name(finished: Finished) -> None:
    requests = [event for event in finished.events if event.event == "request"]
    assert not {name for event in requests for name in event.facts["headers"]} & {
        "cookie",
        "authorization",
        "referer",
        "proxy-authorization",
    }
    assert {event.facts["headers"]["user-agent"].partition("/")[0] for event in requests} == {"altalign"}
    assert {event.facts["method"] for event in requests} == {"GET"}


@pytest.mark.faults
def test_of_a_large_body_little_more_is_taken_than_the_limit(finished: Finished) -> None:
    host = {event.facts["number"]: event.host for event in finished.events if event.event == "request"}
    sent = {host[event.facts["number"]]: event.facts["bytes"] for event in finished.events if event.event == "end"}
    large = [f"{case.name}.test" for case in CASES if case.reason is cases.TOO_LARGE]
    assert len(large) >= 8
    # What lies in buffers of the system beside what was read: sockets of loopback take up to 6 MB.
    assert {name: sent[name] for name in large if sent[name] > BYTES_AT_MOST + 12_000_000} == {}


@pytest.mark.faults
def test_robots_txt_is_asked_for_once_a_host(finished: Finished) -> None:
    hosts = [event.host for event in finished.events if event.event == "request" and event.target == "/robots.txt"]
    again = sorted({host for host in hosts if hosts.count(host) > 1 and not host.startswith("hang-")})
    # so they are tried again
    kinds = ("error", "unavailable", "too-many", "hang", "drip", "stall", "head-without-end", "reset", "flaky")
    fails = {f"{kind}.robots.test" for kind in kinds}
    # a redirect leads to the first, and to the second from itself
    assert sorted(set(again) - fails) == ["deny.robots.test", "loop.robots.test"]
    assert hosts.count("deny-folder.robots.test") == 1  # of two images


@pytest.mark.faults
def test_nothing_is_left_when_the_client_is_closed(finished: Finished) -> None:
    assert finished.threads_left == set()
