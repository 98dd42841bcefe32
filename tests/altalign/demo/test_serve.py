"""The server answers as the archived sites did."""

import csv
import gzip
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from altalign.demo import serve, web
from altalign.demo.archive import Archive, chunked, write_index
from altalign.errors import UsageError


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("served")
    archive = Archive(folder / "demo-0.warc.gz")
    headers = ("Content-Encoding: gzip", "Transfer-Encoding: chunked")
    body = chunked(gzip.compress(b"a page " * 400, mtime=0), 7)
    archive.response("http://a.example/page.html", body, "text/html; charset=utf-8", headers=headers)
    archive.response("https://a.example/photo?id=1&size=large", b"\xff\xd8first", "image/jpeg")
    archive.response("https://a.example/photo?id=1&size=large", b"later", "image/jpeg")
    archive.response(
        "http://a.example/old", b"", "text/html", status=301, headers=("Location: http://a.example/page.html",)
    )
    archive.response("http://a.example/gone", b"gone", "text/html", status=404)
    archive.resource("http://a.example/media//gr%C3%B6%C3%9Fe.png", b"\x89PNG", "image/png")
    archive.close()
    write_index(folder / web.INDEX, archive.captures)
    with serve.server(folder) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running.server_port
        running.shutdown()
        thread.join()


def _get(port: int, target: str, method: str = "GET") -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, target)
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response, data


def test_a_page_is_served_under_its_host_with_its_encoding(port: int) -> None:
    response, data = _get(port, "/a.example/page.html")
    assert (response.status, response.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert response.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(data) == b"a page " * 400


def test_an_image_is_served_with_its_query_and_the_first_capture_counts(port: int) -> None:
    response, data = _get(port, "/a.example/photo?id=1&size=large")
    assert (response.status, response.headers["Content-Type"], data) == (200, "image/jpeg", b"\xff\xd8first")


def test_a_resource_is_served_under_an_encoded_path(port: int) -> None:
    response, data = _get(port, "/a.example/media//gr%C3%B6%C3%9Fe.png")
    assert (response.status, response.headers["Content-Type"], data) == (200, "image/png", b"\x89PNG")


def test_a_redirect_stays_on_the_server(port: int) -> None:
    response, _ = _get(port, "/a.example/old")
    assert (response.status, response.headers["Location"]) == (301, f"http://127.0.0.1:{port}/a.example/page.html")
    assert serve.local_url("http://a.example/page.html", port) == response.headers["Location"]


def test_what_was_gone_is_gone_and_what_is_unknown_is_not_found(port: int) -> None:
    assert _get(port, "/a.example/gone")[0].status == 404
    assert _get(port, "/a.example/gone")[1] == b"gone"
    assert _get(port, "/nowhere.example/")[0].status == 404


def test_a_folder_without_a_demo_web_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no demo web there"):
        serve.server(tmp_path)


def test_every_pair_has_an_address_at_which_the_server_has_its_image(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "demo-0.warc.gz")
    images = {"https://a.example/photo?id=1&size=large": b"one", "http://b.example/media//gr%C3%B6%C3%9Fe.png": b"two"}
    for url, data in images.items():
        archive.response(url, data, "image/jpeg")
    archive.close()
    write_index(tmp_path / web.INDEX, archive.captures)
    web.write_pairs(tmp_path / web.PAIRS, [(url, 'a caption,\nin "two" lines', "http://a.example/") for url in images])
    with serve.server(tmp_path) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        serve.write_served(tmp_path, running.server_port)
        with (tmp_path / serve.SERVED).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        bodies = [
            _get(running.server_port, row["url"].removeprefix(f"http://127.0.0.1:{running.server_port}"))[1]
            for row in rows
        ]
        running.shutdown()
        thread.join()
    assert bodies == list(images.values())
    assert {(row["caption"], row["page_url"]) for row in rows} == {('a caption,\nin "two" lines', "http://a.example/")}


def test_a_port_that_is_taken_is_named(port: int, tmp_path: Path) -> None:
    write_index(tmp_path / web.INDEX, [])
    with pytest.raises(
        UsageError, match=f"port {port} of 127\\.0\\.0\\.1: address already in use; choose another with --port"
    ):
        serve.server(tmp_path, port)
