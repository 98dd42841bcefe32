"""Names that change, that hang, and that a proxy would look up: against real servers and the system's resolver."""

import socket
import time
from collections.abc import Sequence
from typing import Any

import pytest

from altalign.data.reasons import DropReason
from altalign.pipelines.web import transport
from altalign.pipelines.web.calls import Fetch
from altalign.pipelines.web.client import Client
from tests.pipelines.web.clock import Clock
from tests.pipelines.web.servers import Pointing, Server, Steps, script
from tests.pipelines.web.test_client import IMAGE, fetch, settings_of


def test_a_name_that_changes_between_check_and_connection_lets_nobody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that answers every second time with the address of a neighbour, which listens."""
    monkeypatch.setattr(transport, "NAME_KEPT_S", 0)

    class Rebinding(Pointing):
        async def addresses(self, host: str) -> Sequence[str]:
            await super().addresses(host)
            return ["127.0.0.1" if self.lookups.count(host) % 2 else "127.0.0.2"]

    resolver = Rebinding()
    answers: dict[str, Steps] = {
        "/robots.txt": script(404, Connection="close"),
        "/image": script(200, IMAGE, Connection="close"),
    }
    with Server(answers) as server, socket.socket() as neighbour:
        neighbour.bind(("127.0.0.2", server.port))
        neighbour.listen()
        neighbour.settimeout(0)
        urls = [server.url("/image", f"{n}.test") for n in range(20) for _ in range(2)]
        settings = settings_of(server.port, honour_robots=True, retries=0, connections_per_host=1)
        with Client(settings, resolve=resolver.addresses) as client:
            responses = list(client.fetch(urls))
        with pytest.raises(BlockingIOError):
            neighbour.accept()
    assert {(response.body, response.reason) for response in responses} == {
        (IMAGE, None),
        (None, DropReason.HTTP_REFUSED),
    }
    assert all("127.0.0.2 (loopback)" in response.detail for response in responses if response.reason)


def test_a_name_is_looked_up_once_for_all_who_ask_and_a_failure_is_not_kept() -> None:
    resolver = Pointing(others={"lost.test": socket.gaierror(socket.EAI_AGAIN, "again")})
    with (
        Server({f"/{n}": script(200, IMAGE) for n in range(20)}) as server,
        Client(settings_of(server.port, retries=1), resolve=resolver.addresses) as client,
    ):
        urls = [server.url(f"/{n}", "a.test") for n in range(20)]
        assert {response.body for response in client.fetch(urls)} == {IMAGE}
        for lookups, body in ((2, None), (3, IMAGE)):
            (response,) = client.fetch([server.url("/0", "lost.test")])
            assert (response.body, resolver.lookups.count("lost.test")) == (body, lookups)
            resolver.others.clear()
    assert resolver.lookups.count("a.test") == 1


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would connect to any address for us."""
    with Server({}) as proxy, Server({"/image": script(200, IMAGE)}) as server:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url("/"))
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        urls = [server.url("/image", "a.test"), "http://10.0.0.1/image", "http://inside.test/image"]
        resolver = Pointing(others={"inside.test": ["10.0.0.1"]})
        responses = fetch(urls, settings_of(server.port, retries=0, honour_robots=True), resolver)
    assert [responses[url].body for url in urls] == [IMAGE, None, None]
    assert [responses[url].reason for url in urls[1:]] == [DropReason.HTTP_REFUSED] * 2
    assert (proxy.connections, proxy.requests) == (0, [])


@pytest.mark.faults
@pytest.mark.parametrize("images", [1, 3])
def test_names_that_hang_cost_no_other_host_its_images(images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of all names hang for longer than a try, more than there are threads: the others wait their turn.

    That is so for all requests that share a lookup.
    """
    real, lookups_at_once = socket.getaddrinfo, 8

    def getaddrinfo(host: bytes, *arguments: Any, **named: Any) -> Any:
        until_s = clock.passed_s + 25
        while host.startswith(b"hang"):
            time.sleep(0.001)
            if clock.passed_s > until_s:
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return real(b"127.0.0.1", *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(transport, "LOOKUPS_AT_ONCE", lookups_at_once)
    with Server({f"/{n}": script(200, IMAGE) for n in range(images)}) as server:
        hosts = [f"{'hang' if n % 2 else 'good'}{n}.test" for n in range(48)]
        urls = [server.url(f"/{n}", host) for host in hosts for n in range(images)]
        settings = settings_of(server.port, threads=8, retries=0)
        with Client(settings) as client:
            clock = Clock(client)

            def waits(task: Fetch) -> bool:
                return "hang" in task.target.host or (task.request is not None and task.request.is_held_up)

            clock.go_on_while(waits)
            responses = {urls[response.number]: response for response in client.fetch(urls)}
            clock.go_on(30)  # until no name hangs
    assert {responses[url].body for url in urls if "good" in url} == {IMAGE}
    of_others = {responses[url].reason for url in urls if "hang" in url}
    assert of_others <= {DropReason.HTTP_TIMEOUT, DropReason.HTTP_UNREACHABLE, DropReason.HTTP_NOT_ASKED}
