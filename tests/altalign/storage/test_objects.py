"""The face of storage over a real S3 server, and over an emulator of GCS."""

import fcntl
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from altalign import storage
from altalign.errors import FullDiskError, StoreError, UsageError
from altalign.storage import clients, local, objects, parquet, tickets
from altalign.storage.paths import Place
from tests.object_stores import faults
from tests.object_stores.servers import Server

pytestmark = pytest.mark.stores

Failing = Callable[[faults.Fault], AbstractContextManager[None]]
ROOT = Path(__file__).parents[3]
LARGE = 12 << 20  # two parts, at least
KILLED_WHILE_IT_WRITES = """
import os, signal, sys
from altalign import storage
from altalign.storage import objects
put = objects._put
def killed(place, data):
    stream = objects.client(place).open_output_stream(place.name)
    stream.write(data.slice(0, data.size // 2))  # parts are under way
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "while uploading":
    objects._put = killed
with storage.write(sys.argv[1]) as file:
    file.write(b"x" * (24 << 20))
    if sys.argv[2] == "while writing":
        os.kill(os.getpid(), signal.SIGKILL)
"""
KILLED_WHILE_IT_GROWS = """
import os, signal, sys
from altalign import storage
with storage.growing(sys.argv[1]) as file:
    for number in range(250):
        file._due_s = 0.0
        file.write(b"%03d\\n" % number)
        file._sending.result()
    file._due_s = float("inf")
    file.write(b"lost")
    os.kill(os.getpid(), signal.SIGKILL)
"""

KILLED_WHILE_IT_HOLDS = """
import os, signal, sys
from altalign import storage
with storage.locked(sys.argv[1]):
    os.kill(os.getpid(), signal.SIGKILL)
"""
FORKED_AFTER_IT_ASKED = """
import os, signal, sys
from altalign import storage
storage.write_bytes(sys.argv[1], b"before")
list(storage.read_ranges(sys.argv[1], [(0, 1)]))
child = os.fork()
if child == 0:
    signal.alarm(60)  # one that waits for threads it has not would wait for ever
    list(storage.read_ranges(sys.argv[1], [(0, 1)]))
    storage.write_bytes(sys.argv[1], b"by the child")
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.fixture(params=["s3", "gcs"])
def store(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(request.param)


def all_names(store: Server) -> list[str]:
    return sorted(path.removeprefix(f"{store.url}/") for path in storage.files_below(store.url))


@pytest.fixture
def failing(s3: Server, monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Has the store fail requests in a block."""

    @contextmanager
    def before(fault: faults.Fault) -> Iterator[None]:
        with faults.before(s3, fault) as url, monkeypatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", url)
            clients.forget_clients()
            yield
        clients.forget_clients()

    return before


def refuse_reading(method: str, _: str) -> int | None:
    return 403 if method == "GET" else None


def run_python(code: str, *arguments: str) -> int:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
    ).returncode


# Writing -------------------------------------------------------------------------------------------------------------


def test_arrow_makes_an_object_of_half_of_it_which_is_why_nothing_is_streamed(store: Server) -> None:
    place = Place.parse(f"{store.url}/half")

    def write_half() -> None:
        with clients.client(place).open_output_stream(place.name) as stream:
            stream.write(b"x" * LARGE)
            raise ValueError("midway")

    with pytest.raises(ValueError, match="midway"):
        write_half()
    assert all_names(store) == ["half"]


@pytest.mark.parametrize("moment", ["while writing", "while uploading"])
def test_a_kill_leaves_nothing(moment: str, s3: Server) -> None:
    assert run_python(KILLED_WHILE_IT_WRITES, f"{s3.url}/x.bin", moment) == -signal.SIGKILL
    assert all_names(s3) == []
    storage.write_bytes(f"{s3.url}/x.bin", b"again")
    assert storage.read_bytes(f"{s3.url}/x.bin") == b"again"


@pytest.mark.parametrize("status", [403, 0])
@pytest.mark.parametrize("what", ["partNumber=1", "partNumber=2", "uploadId", "uploads"])
@pytest.mark.parametrize("copied", [10 << 20, 40 << 20])  # a part at a time, and all at once
def test_an_upload_that_fails_in_any_part_leaves_nothing(
    copied: int, what: str, status: int, s3: Server, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_COPIED_BYTES", copied)
    failed = []

    def fault(method: str, path: str) -> int | None:
        is_meant = what in path and method in ("PUT", "POST") and not (what == "uploadId" and "partNumber" in path)
        if is_meant:
            failed.append(path)
        return status if is_meant else None

    storage.write_bytes(f"{s3.url}/there.bin", b"before")
    data, said = random.Random(1).randbytes(LARGE + (15 << 20)), []
    with failing(fault):
        monkeypatch.setattr(clients, "ATTEMPTS", 2)
        for name in ("new", "there"):
            with pytest.raises(StoreError) as caught:
                storage.write_bytes(f"{s3.url}/{name}.bin", data)
            said.append(str(caught.value).partition(": ")[0])
    assert failed
    assert said == [f"{s3.url}/new.bin", f"{s3.url}/there.bin"]
    assert all_names(s3) == ["there.bin"]
    assert storage.read_bytes(f"{s3.url}/there.bin") == b"before"


def test_an_upload_whose_bytes_end_midway_leaves_nothing(store: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ending:
        """A buffer of which a second piece cannot be had."""

        size = LARGE + (10 << 20)

        def slice(self, begin: int, length: int) -> bytes:
            if begin:
                raise MemoryError
            return b"x" * length

    with monkeypatch.context() as own:
        own.setattr(objects, "_COPIED_BYTES", 10 << 20)
        own.setattr(objects.pa, "py_buffer", lambda buffer: buffer)
        with pytest.raises(MemoryError):
            objects.upload(f"{store.url}/new", Ending())
    assert all_names(store) == []


def test_what_a_store_does_not_copy_for_its_size_comes_through_this_machine(
    s3: Server, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, refused = random.Random(1).randbytes(LARGE + 1), list[str]()
    storage.write_bytes(f"{s3.url}/old.bin", data)

    def fault(method: str, path: str) -> int | None:
        is_copy = method == "PUT" and path.endswith("/new.bin")  # what is uploaded in parts has a query
        refused.extend([path] * is_copy)
        return 400 if is_copy else None

    with failing(fault):
        with pytest.raises(StoreError):
            storage.move(f"{s3.url}/old.bin", f"{s3.url}/new.bin")
        assert all_names(s3) == ["old.bin"]
        monkeypatch.setattr(objects, "_COPIED_BYTES_AT_MOST", LARGE)
        storage.move(f"{s3.url}/old.bin", f"{s3.url}/new.bin")
    assert len(refused) == 2
    assert all_names(s3) == ["new.bin"]
    assert storage.read_bytes(f"{s3.url}/new.bin") == data


def test_a_request_that_fails_now_and_then_is_made_again(s3: Server, failing: Failing) -> None:
    asked: dict[str, int] = {}

    def fault(method: str, path: str) -> int | None:
        asked[method + path] = asked.get(method + path, 0) + 1
        return 503 if asked[method + path] == 1 else None

    data = random.Random(1).randbytes(LARGE)
    with failing(fault):
        storage.write_bytes(f"{s3.url}/x.bin", data)
        assert storage.read_bytes(f"{s3.url}/x.bin") == data
    assert min(count for name, count in asked.items() if "partNumber" in name) > 1


def test_a_full_disk_for_temporary_files_is_said(s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    monkeypatch.setattr(objects, "ONE_REQUEST_BYTES", 1)
    full = Path("/dev/full").open("r+b", buffering=0)  # noqa: SIM115 - closed by what writes
    monkeypatch.setattr("tempfile.TemporaryFile", lambda *_, **__: full)
    with pytest.raises(FullDiskError, match=r"no space left on the device while writing x\.bin"):
        storage.write_bytes(f"{s3.url}/x.bin", b"xx")


# Clients -------------------------------------------------------------------------------------------------------------


def test_a_forked_process_asks_as_its_parent_did(store: Server) -> None:
    assert run_python(FORKED_AFTER_IT_ASKED, f"{store.url}/x") == 0
    assert storage.read_bytes(f"{store.url}/x") == b"by the child"


def test_credentials_of_a_profile_are_taken(s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"aws_access_key_id": "AWS_ACCESS_KEY_ID", "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY"}
    lines = [f"{name} = {s3.environment[variable]}" for name, variable in names.items()]
    (tmp_path / "credentials").write_text("\n".join(["[mine]", *lines]), encoding="ascii")
    for variable in names.values():
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    clients.forget_clients()
    storage.write_bytes(f"{s3.url}/x", b"x")
    clients.forget_clients()


# Reading -------------------------------------------------------------------------------------------------------------


def test_reading_on_takes_few_requests(s3: Server) -> None:
    data = random.Random(4).randbytes(40 << 20)
    storage.write_bytes(f"{s3.url}/x", data)
    before = len(s3.requests())
    with storage.open_read(f"{s3.url}/x") as file, storage.open_again(f"{s3.url}/x", file) as again:
        for begin in range(0, len(data), 1 << 16):
            assert file.read(1 << 16) == data[begin : begin + (1 << 16)]
            again.seek(begin)
            assert again.read(100) == data[begin : begin + 100]
    assert len(s3.requests()) - before <= 42  # each block once


def test_a_store_that_fails_is_not_taken_for_a_broken_file(s3: Server, failing: Failing) -> None:
    rows = pa.table({"x": [str(n) * 1000 for n in range(5000)]})
    parquet.write(f"{s3.url}/t.parquet", rows, rows.schema)
    with failing(refuse_reading), pytest.raises(StoreError, match="access denied"):
        parquet.read_table(f"{s3.url}/t.parquet")


# What grows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [b"", b"before\n"])
def test_whoever_is_killed_loses_what_came_since_the_last_upload(before: bytes, s3: Server) -> None:
    path, whole = f"{s3.url}/x.log", before + b"".join(b"%03d\n" % number for number in range(250))
    if before:
        storage.write_bytes(path, before)
    assert run_python(KILLED_WHILE_IT_GROWS, path) == -signal.SIGKILL
    assert all_names(s3) == ["x.log"]
    assert storage.read_bytes(path) == whole
    with storage.growing(path, keep=len(before) + 4) as file:
        file.write(b"more")
    assert storage.read_bytes(path) == whole[: len(before) + 4] + b"more"


# Copies --------------------------------------------------------------------------------------------------------------


def test_a_copy_is_made_once_and_anew_when_the_object_changes(s3: Server) -> None:
    path = f"{s3.url}/x.npy"
    storage.write_bytes(path, b"one" * LARGE)
    before = len(s3.requests())
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(storage.mappable(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert Path(found[0]).read_bytes() == b"one" * LARGE
    asked = s3.requests()[before:]
    assert asked.count("GetObject") == -(-3 * LARGE // (8 << 20))
    storage.write_bytes(path, b"two" * LARGE)
    assert storage.mappable(path) != found[0]
    assert Path(storage.mappable(path)).read_bytes() == b"two" * LARGE


def test_a_copy_that_fails_leaves_nothing(s3: Server, failing: Failing) -> None:
    storage.write_bytes(f"{s3.url}/x.npy", b"x" * LARGE)
    with failing(refuse_reading), pytest.raises(StoreError):
        storage.mappable(f"{s3.url}/x.npy")
    assert [
        path.name for path in (local.cache_folder() / "copies").rglob("*") if path.is_file() and path.suffix != ".lock"
    ] == []


def test_copies_that_nobody_has_asked_for_within_a_day_go(s3: Server) -> None:
    copies = []
    for number in range(4):
        storage.write_bytes(f"{s3.url}/{number}.npy", b"%d" % number * 100)
        copies.append(Path(storage.mappable(f"{s3.url}/{number}.npy")))
        if number < 2:
            os.utime(copies[-1], (number, number))  # long ago
    assert [copy.exists() for copy in copies] == [False, False, True, True]


# Locks ---------------------------------------------------------------------------------------------------------------


def test_a_run_is_held_by_one_command_of_all_machines(
    store: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = f"{store.url}/run"
    with storage.locked(run):
        monkeypatch.setenv("ALTALIGN_CACHE", str(tmp_path / "another machine"))
        assert str(storage.holder(run)).startswith(f"{os.getpid()} on ")
        with (
            pytest.raises(
                UsageError, match=rf"at work on this run \(process {os.getpid()} on .*, seen \d+ s ago\); wait for it"
            ),
            storage.locked(run),
        ):
            pass
        assert len(all_names(store)) == 1
        monkeypatch.setenv("ALTALIGN_CACHE", str(tmp_path / "cache"))
    with storage.locked(run):
        pass


def test_a_killed_command_of_this_machine_holds_nothing(s3: Server) -> None:
    run = f"{s3.url}/run"
    assert run_python(KILLED_WHILE_IT_HOLDS, run) == -signal.SIGKILL
    assert len(all_names(s3)) == 1
    assert storage.holder(run) is None
    with storage.locked(run):
        assert len(all_names(s3)) == 1
    assert all_names(s3) == []


def test_a_killed_command_of_another_machine_holds_until_its_lease_ends(
    s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = f"{s3.url}/run"
    assert run_python(KILLED_WHILE_IT_HOLDS, run) == -signal.SIGKILL
    monkeypatch.setenv("ALTALIGN_CACHE", str(tmp_path / "another machine"))
    with pytest.raises(UsageError, match="another command is at work"), storage.locked(run):
        pass
    monkeypatch.setattr(objects, "LEASE_S", -1.0)  # it has ended
    with storage.locked(run):
        assert len(all_names(s3)) == 1


def test_tickets_are_written_anew_and_whoever_cannot_writes_nothing_more(
    s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = f"{s3.url}/run"
    monkeypatch.setattr(tickets, "REFRESH_EVERY_S", 0.01)
    with storage.locked(run):
        end, begun, times = time.monotonic() + 60, objects.HELD[run], set[float]()
        while len(times) < 4 and time.monotonic() < end:
            times.add(objects.HELD[run])
        assert max(times) > begun
        storage.write_bytes(f"{run}/x", b"1")
        monkeypatch.setattr(objects, "LEASE_S", -1.0)  # as if the machine had slept
        with pytest.raises(StoreError, match="held no longer"):
            storage.write_bytes(f"{run}/x", b"2")
        storage.write_bytes(f"{s3.url}/elsewhere", b"2")
    assert storage.read_bytes(f"{run}/x") == b"1"


def test_the_lock_of_this_machine_is_free_after_the_block(s3: Server) -> None:
    with storage.locked(f"{s3.url}/run"):
        pass
    for place in (local.cache_folder() / "locks").iterdir():
        with place.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


# Trouble -------------------------------------------------------------------------------------------------------------


WRONG_CREDENTIALS = (
    "access denied at ENDPOINT (…); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, of one who may "
    "list, read, write and delete there"
)
TROUBLE: dict[str, tuple[dict[str, str | None], str]] = {
    "no bucket": ({}, "there is no bucket absent at ENDPOINT; make it, or give another"),
    "a wrong secret": ({"AWS_SECRET_ACCESS_KEY": "wrong"}, WRONG_CREDENTIALS),
    "a wrong key": ({"AWS_ACCESS_KEY_ID": "wrong"}, WRONG_CREDENTIALS),
    "no credentials": ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, WRONG_CREDENTIALS),
    "another region": (
        {"AWS_REGION": "eu-west-1"},
        "the store at ENDPOINT refuses the region (…); set AWS_REGION to that of s3://BUCKET",
    ),
    "an endpoint that does not answer": (
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
        (
            "the store at ENDPOINT does not answer (…); look at the network and AWS_ENDPOINT_URL, and run the same "
            "command again"
        ),
    ),
}


@pytest.mark.parametrize("when", TROUBLE)
def test_trouble_is_one_line_that_says_what_to_do(
    when: str, s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, said = TROUBLE[when]
    monkeypatch.setattr(clients, "ATTEMPTS", 2)
    path = "s3://absent/run" if when == "no bucket" else f"{s3.url}/run"
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name)
    clients.forget_clients()
    for ask, kind in (
        (lambda: storage.check(path), UsageError),
        (lambda: storage.write_bytes(f"{path}/x", b"x"), StoreError),
    ):
        with pytest.raises(kind) as caught:
            ask()
        line = str(caught.value)
        assert "\n" not in line
        line = re.sub(
            r" \(.*\)", " (…)", line.replace(os.environ["AWS_ENDPOINT_URL"], "ENDPOINT").replace(s3.bucket, "BUCKET")
        )
        assert line.partition(": ")[2] == said
        assert str(caught.value).startswith(path)
    clients.forget_clients()


def test_a_bucket_of_gcs_that_is_not_there_is_said(gcs: Server) -> None:
    with pytest.raises(UsageError, match="there is no bucket absent"):
        storage.check("gs://absent/run")
    storage.check(f"{gcs.url}/run")


@pytest.mark.parametrize(
    ("said", "kind", "line"),
    [
        (
            "AWS Error UNKNOWN (HTTP status 507) during PutObject operation: XMinioStorageFull",
            FullDiskError,
            "no space left in the store",
        ),
        (
            "AWS Error SLOW_DOWN during PutObject operation: reduce your request rate (Request ID: 1)",
            StoreError,
            "refuses (reduce your request rate)",
        ),
        ("google::cloud::Status(PERMISSION_DENIED: 403 forbidden)", StoreError, "access denied"),
        ("google::cloud::Status(UNAVAILABLE: curl: could not connect)", StoreError, "does not answer"),
    ],
)
def test_what_clients_say_is_sorted(
    said: str, kind: type[Exception], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    found: Any = clients.trouble(OSError(said), "gs://bucket/x" if "google" in said else "s3://bucket/x")
    assert type(found) is kind
    assert line in str(found)
    assert "Request ID" not in str(found)


def test_the_store_is_not_asked_by_the_names_of_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pafs, "S3FileSystem", None)
    assert storage.join("s3://bucket/run", "work", "x") == "s3://bucket/run/work/x"
    assert storage.absolute("s3://bucket/run/") == "s3://bucket/run"
    assert storage.folder_of("s3://bucket/run/x") == "s3://bucket/run"
    assert json.dumps(storage.Stamp(1, 2, "abc").to_json()) == '[1, "abc"]'


@pytest.mark.parametrize(
    "path", ["s3://bucket/a/../b", "s3://bucket/./a", "s3://bucket/a//b", "gs://bucket/..", "gs://bucket/a/."]
)
def test_a_path_that_means_another_one_on_a_disk_is_refused_before_the_store_is_asked(path: str) -> None:
    with pytest.raises(
        UsageError, match=r"a store has no folders named '', '\.' or '\.\.'; give the path without them"
    ):
        storage.check(path)


def test_machines_that_share_a_cache_are_not_taken_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where home folders are on NFS: its locks may hold on each machine alone."""
    monkeypatch.setenv("ALTALIGN_CACHE", str(tmp_path))
    name = local.machine_name()
    assert local.machine_name() == name
    monkeypatch.setattr(local, "_BOOT_ID", tmp_path / "boot_id")
    (tmp_path / "boot_id").write_text("another kernel\n", encoding="ascii")
    assert local.machine_name() not in ("", name)
    monkeypatch.setattr(local, "_BOOT_ID", tmp_path / "none")  # of systems that have none
    assert local.machine_name() not in ("", name)
