"""Inputs on a web server and on the Hub: a real server on loopback, which sends ranges or does not."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from altalign import storage
from altalign.errors import StoreError, UsageError
from tests.object_stores.web import BUCKET, HUB, Web, serving

ROOT = Path(__file__).parents[3]
DATA = random.Random(1).randbytes(3 << 20)  # several blocks
FORKED_AFTER_IT_ASKED = """
import os, signal, sys
from altalign import storage
assert storage.read_range(sys.argv[1], 0, 3)
child = os.fork()
if child == 0:
    signal.alarm(60)  # one that waits for threads it has not would wait for ever
    os._exit(0 if storage.read_range(sys.argv[1], 5, 3) else 1)
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    folder = tmp_path / "web"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "x.bin").write_bytes(DATA)
    (folder / "deep" / "empty.csv").touch()
    (folder / "other.bin").write_bytes(b"other")
    monkeypatch.setenv("ALTALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "")
    with serving(folder) as served:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{served.port}")
        yield served


@pytest.fixture(params=["web server", "Hub", "bucket"])
def base(request: pytest.FixtureRequest, web: Web) -> str:
    return {"Hub": HUB, "bucket": BUCKET}.get(request.param) or web.url("").rstrip("/")


def refused(path: str) -> str:
    with pytest.raises(UsageError) as caught:
        storage.check_input(path)
    return str(caught.value).replace(path, "PATH")


def test_a_file_is_read_in_ranges(web: Web, base: str) -> None:
    path = f"{base}/deep/x.bin"
    storage.check_input(path)
    assert (storage.kind(path), storage.find(path), storage.name(path)) == ("file", [path], "x.bin")
    assert storage.stamp(path).size == len(DATA)
    assert storage.read_range(path, 10, 20) == DATA[10:30]
    assert storage.read_range(path, len(DATA) - 3, 20) == DATA[-3:]
    assert list(storage.read_ranges(path, [(0, 4), (2 << 20, 9)])) == [DATA[:4], DATA[2 << 20 : (2 << 20) + 9]]
    asked = [of for _, name, of in web.asked if name.endswith("x.bin") and of]
    assert asked[:2] == ["bytes=10-29", f"bytes={len(DATA) - 3}-{len(DATA) - 1}"]
    with storage.open_read(path) as file, storage.open_again(path, file) as again:
        again.seek(-5, os.SEEK_END)
        assert (file.read(), again.read()) == (DATA, DATA[-5:])
    assert storage.read_bytes(path) == DATA
    assert Path(storage.mappable(path)).read_bytes() == DATA
    assert storage.read_bytes(f"{base}/deep/empty.csv") == b""


def test_a_file_that_is_not_there_is_missing(base: str) -> None:
    path = f"{base}/deep/y.bin"
    storage.check_input(path)
    assert (storage.kind(path), storage.exists(path), storage.find(path)) == ("missing", False, [])
    with pytest.raises(FileNotFoundError) as caught:
        storage.read_bytes(path)
    assert caught.value.filename == path
    assert storage.read_json(path) == {}


def test_another_file_of_the_same_size_has_another_stamp(web: Web, base: str) -> None:
    path = f"{base}/other.bin"
    stamps = []
    for data in (b"other", b"OTHER"):
        (web.folder / "other.bin").write_bytes(data)
        storage.check_input(path)  # as each command does first
        stamps.append(storage.stamp(path))
        assert storage.read_bytes(path) == data
    assert stamps[0] != stamps[1]


@pytest.mark.parametrize("hub", [HUB, BUCKET])
def test_the_hub_lists_what_it_has(web: Web, hub: str) -> None:
    paths = [f"{hub}/deep/empty.csv", f"{hub}/deep/x.bin", f"{hub}/other.bin"]
    assert storage.kind(f"{hub}/deep") == "folder"
    assert storage.files_below(hub) == paths
    assert (storage.entries(hub), storage.names(hub)) == (["deep", "other.bin"], ["other.bin"])
    assert (storage.find(f"{hub}/**/*.bin"), storage.find(f"{hub}/deep/*")) == (paths[1:], paths[:2])
    assert storage.find(f"{hub}/none/*.bin") == []


def test_a_server_without_ranges_or_sizes_is_refused(web: Web) -> None:
    web.has_ranges, path = False, web.url("deep/x.bin")
    with pytest.raises(StoreError, match=r"the server sends no ranges of it; download it"):
        storage.read_range(path, 1000, 10)
    web.has_size = False
    assert "the server does not tell its size (Content-Length), or compresses it; download it" in refused(
        web.url("other.bin")
    )


def test_a_request_that_fails_for_a_while_is_made_again(web: Web) -> None:
    path = web.url("other.bin")
    storage.check_input(path)
    web.fails = 3
    assert storage.read_bytes(path) == b"other"
    web.fails = 1_000
    with pytest.raises(StoreError, match=r"the server does not answer \(503 Service Unavailable\)"):
        storage.read_bytes(path)


def test_a_query_is_no_part_of_a_name(web: Web) -> None:
    path = web.url("other.bin?download=true")
    assert (storage.name(path), storage.read_bytes(path)) == ("other.bin", b"other")


def test_a_password_comes_from_netrc(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web.password, path = "me:secret", web.url("other.bin")
    assert refused(path).startswith("PATH: the server denies access (401 Unauthorized); set HF_TOKEN for the Hub, or")
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    storage.check_input(path)
    assert storage.read_bytes(path) == b"other"


def test_what_cannot_be_asked_for_is_refused_in_one_line(web: Web) -> None:
    assert refused(web.url("*.csv")) == "PATH: a web server does not list its files; name each of them"
    assert refused("http://127.0.0.1:1/x.csv").startswith("PATH: the server does not answer (Cannot connect to host")
    assert refused(f"https://127.0.0.1:{web.port}/x").startswith("PATH: the server refuses (Cannot connect to host")
    for path in ("hf://pairs", "hf://buckets", "hf://buckets/pairs", "hf://buckets/some/pairs@main/x.csv"):
        assert refused(path).startswith("PATH: no path on the Hub; give hf://datasets/OWNER/NAME/FILE or ")
    for kind in ("datasets", "buckets"):
        assert refused(f"hf://{kind}/nobody/none/x.csv").startswith("PATH: the server denies access (401")
    with pytest.raises(UsageError, match="inputs alone can be on the web"):
        storage.check(web.url("run"))


def test_a_forked_process_asks_too(web: Web, base: str) -> None:
    program = [sys.executable, "-c", FORKED_AFTER_IT_ASKED, f"{base}/deep/x.bin"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(program, cwd=ROOT, env=environment, check=False).returncode == 0
