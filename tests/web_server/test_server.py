"""The server of the tests does what its paths say, seen through plain sockets and the standard library's client."""

import gzip
import io
import socket
import time
import zlib
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse, RemoteDisconnected
from pathlib import Path

import pytest
from PIL import Image

from altalign.demo import web
from tests.web_server.pictures import SIDE_PX, picture
from tests.web_server.running import WebServer

WATCHDOG_S = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    folder = tmp_path_factory.mktemp("server")
    web.write(folder / "demo", pages_a_site=2)
    (folder / "robots-elsewhere.txt").write_text("User-agent: *\n")
    with WebServer(folder, demo=folder / "demo") as running:
        yield running


def get(server: WebServer, target: str, host: str = "127.0.0.1") -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=WATCHDOG_S)
    connection.request("GET", target, headers={"Host": f"{host}:{server.port}"})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def received(server: WebServer, target: str) -> bytes:
    """All bytes until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=WATCHDOG_S) as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: a.test\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_a_picture_is_of_its_name_and_as_large_as_asked_for(server: WebServer) -> None:
    response, body = get(server, "/png/one%20two?bytes=100000&header=X-Robots-Tag:%20noai")
    assert (response.status, body) == (200, picture("one two", bytes_at_least=100_000))
    assert response.headers["X-Robots-Tag"] == "noai"
    assert len(body) == 100_000
    image = Image.open(io.BytesIO(body))
    image.load()
    assert image.size == (SIDE_PX, SIDE_PX)
    assert picture("one") != picture("two")


def test_a_flaky_target_counts_its_requests(server: WebServer) -> None:
    target = "/flaky/a?codes=429,503&retry-after=7"
    responses = [get(server, target)[0] for _ in range(4)]
    assert [response.status for response in responses] == [429, 503, 200, 200]
    assert [response.headers["Retry-After"] for response in responses] == ["7", "7", None, None]
    assert [event.host for event in server.requests(target)] == ["127.0.0.1"] * 4


def test_what_is_cut_is_cut_and_what_is_reset_is_reset(server: WebServer) -> None:
    head, _, body = received(server, "/raw/cut").partition(b"\r\n\r\n")
    assert len(body) < int(head.rpartition(b": ")[2])
    with pytest.raises(ConnectionResetError):
        received(server, "/reset/body")
    with pytest.raises(RemoteDisconnected):
        get(server, "/raw/nothing")


def test_a_bomb_is_small_until_it_is_opened(server: WebServer) -> None:
    _, body = get(server, "/bomb/gzip?bytes=10000000")
    assert len(body) < 20_000
    assert len(gzip.decompress(body)) == 10_000_000
    assert zlib.decompress(get(server, "/bomb/deflate?bytes=3000000")[1]) == bytes(3_000_000)


def test_a_host_has_the_robots_txt_of_its_name(server: WebServer) -> None:
    assert get(server, "/robots.txt", "deny.robots.test")[1] == b"User-agent: *\nDisallow: /\n"
    assert get(server, "/robots.txt", "unavailable.robots.test")[0].status == 503
    assert get(server, "/robots.txt", "a.test")[0].status == 404


def test_a_demo_web_is_served_by_host(server: WebServer) -> None:
    assert get(server, "/robots.txt", "en-00.example")[1] == b"User-agent: *\nDisallow:\n"
    response, _ = get(server, "/page-0.html", "en-00.example")
    assert (response.status, response.headers["Content-Type"][:9]) == (200, "text/html")
    assert get(server, "/nothing", "en-00.example")[0].status == 404


def test_a_host_that_hangs_never_answers(server: WebServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=0.3) as connection:
        connection.sendall(b"GET /png/a HTTP/1.1\r\nHost: hang-7.test\r\n\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(1)


def test_one_port_refuses_and_one_never_takes_a_connection(server: WebServer) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.refused_port), timeout=WATCHDOG_S)
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", server.full_port), timeout=0.3)


def test_connections_are_counted_until_they_are_closed(tmp_path: Path) -> None:
    with WebServer(tmp_path) as server:
        first = HTTPConnection("127.0.0.1", server.port, timeout=WATCHDOG_S)
        for _ in range(2):
            first.request("GET", "/png/a")
            first.getresponse().read()
        assert server.open_connections() == 1
        first.close()
        until = time.monotonic() + WATCHDOG_S
        while server.open_connections() and time.monotonic() < until:
            time.sleep(0.01)
        assert server.open_connections() == 0


def test_a_server_that_was_stopped_comes_back_at_its_port(tmp_path: Path) -> None:
    with WebServer(tmp_path) as server:
        port = server.port
        get(server, "/png/a")
        server.stop()
        with pytest.raises(ConnectionRefusedError):
            get(server, "/png/a")
        server.start()
        assert (server.port, get(server, "/png/b")[0].status) == (port, 200)
        assert [event.target for event in server.requests()] == ["/png/a", "/png/b"]


def test_a_server_ends_with_whoever_started_it(tmp_path: Path) -> None:
    server = WebServer(tmp_path)
    server.start()
    process = server.process
    assert process is not None
    process.communicate()  # closes its standard input
    assert process.returncode == 0
