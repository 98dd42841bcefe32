"""The server that programs are timed on, and the rows that they are given."""

import io
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from benchmarks import web, web_server
from tests.support.tars import tar

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="its hosts are addresses of 127.0.0.0/8, which only Linux has"
)
WATCHDOG_S = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[web.Server]:
    path = tmp_path_factory.mktemp("web") / "images.tar"
    path.write_bytes(tar((f"{number}.jpg", b"image %d..." % number) for number in range(3)))
    argv = [sys.executable, "-m", "benchmarks.web_server", str(path), "--hosts", "3", "--hanging", "1"]
    process = subprocess.Popen(argv, cwd=web.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield web.Server(process)
    finally:
        process.communicate()
    assert process.returncode == 0  # it ends with its standard input


def ask(server: web.Server, target: str, host: int = 0, *, more: str = "") -> socket.socket:
    connection = socket.create_connection((server.hosts[host], server.port), timeout=WATCHDOG_S)
    connection.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode())
    return connection


def received(connection: socket.socket) -> bytes:
    with connection:
        return b"".join(iter(lambda: connection.recv(1 << 20), b""))


def test_every_host_has_every_image_and_images_repeat(server: web.Server) -> None:
    server.report()
    bodies = [
        received(ask(server, f"/{number}.jpg", number % 2, more="Connection: close\r\n")).partition(b"\r\n\r\n")[2]
        for number in range(4)
    ]
    assert bodies == [b"image 0...", b"image 1...", b"image 2...", b"image 0..."]
    report = server.report()
    assert (report["requests"], report["images"], report["hung"]) == (4, 4, 0)
    assert server.report()["requests"] == 0


def test_a_connection_stays_for_further_requests(server: web.Server) -> None:
    with ask(server, "/robots.txt") as connection, connection.makefile("rb") as file:
        assert file.readline() == b"HTTP/1.1 404 Not Found\r\n"
        connection.sendall(b"GET /1.jpg HTTP/1.1\r\nHost: x\r\n\r\n")
        assert next(line for line in iter(file.readline, b"") if line.startswith(b"HTTP")) == b"HTTP/1.1 200 OK\r\n"


def test_the_last_hosts_take_requests_and_never_answer(server: web.Server) -> None:
    server.report()
    with ask(server, "/0.jpg", 2) as connection:
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        assert server.report()["hung"] == 1


def test_large_images_are_images_of_20_mb(server: web.Server) -> None:
    head, _, body = received(ask(server, "/large/7.bmp", more="Connection: close\r\n")).partition(b"\r\n\r\n")
    assert 19_900_000 < len(body) < 20_000_000
    assert f"Content-Length: {len(body)}".encode() in head
    image = Image.open(io.BytesIO(body))
    image.load()
    assert image.size == (web_server.LARGE_SIDE_PX, web_server.LARGE_SIDE_PX)


def test_who_leaves_in_the_middle_is_sent_no_more(server: web.Server) -> None:
    server.report()
    with ask(server, "/large/7.bmp") as connection:
        connection.recv(1 << 16)
    assert received(ask(server, "/0.jpg", more="Connection: close\r\n")).endswith(b"image 0...")
    report = server.report()
    assert (report["requests"], report["images"]) == (2, 1)
    assert report["bytes"] < 20_000_000


def test_rows_take_hosts_in_turn_and_no_url_twice(tmp_path: Path) -> None:
    rows = pq.read_table(
        web.write_rows(tmp_path / "rows.parquet", 80, ["127.0.1.1", "127.0.1.2"], 5, "/{}.jpg")
    ).to_pylist()
    assert [row["url"] for row in rows[:3]] == [
        "http://127.0.1.1:80/0.jpg",
        "http://127.0.1.2:80/1.jpg",
        "http://127.0.1.1:80/2.jpg",
    ]
    assert len({row["caption"] for row in rows}) == 5
