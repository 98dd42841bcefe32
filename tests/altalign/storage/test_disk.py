import errno
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign import storage
from altalign.errors import FullDiskError, UsageError
from altalign.storage import local

FULL = Path("/dev/full")  # Linux: every write fails with ENOSPC
KILLED_WHILE_IT_WRITES = """
import os, signal, sys
from altalign import storage
with storage.write(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
KILLED_WHILE_IT_GROWS = """
import os, signal, sys
from altalign import storage
with storage.growing(sys.argv[1]) as file:
    file.write(b"one")
    file.write(b"two" * 100_000)
    os.kill(os.getpid(), signal.SIGKILL)
"""
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def write_half(path: str, trouble: BaseException) -> None:
    with storage.write(path) as file:
        file.write(b"half")
        raise trouble


def test_two_who_write_the_same_file_do_not_mix(tmp_path: Path) -> None:
    path = str(tmp_path / "x.bin")
    with storage.write(path) as one, storage.write(path) as two:
        one.write(b"1" * 10)
        two.write(b"2" * 5)
    assert storage.read_bytes(path) == b"1" * 10  # the outer block ends last
    assert everything(tmp_path) == ["x.bin"]


def test_a_killed_write_leaves_no_file_but_what_sweep_deletes(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_IT_WRITES, str(tmp_path / "deep" / "x.bin")],
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert ended.returncode == -signal.SIGKILL
    assert storage.names(str(tmp_path / "deep")) == []
    assert len(everything(tmp_path)) == 2
    (tmp_path / "deep" / "whole.bin").write_bytes(b"1")
    storage.sweep(str(tmp_path))
    assert everything(tmp_path) == ["deep", "deep/whole.bin"]


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where the file x.bin is written to a device that is full."""
    monkeypatch.setattr(local, "uuid4", lambda: SimpleNamespace(hex="0" * 32))
    (tmp_path / "x.bin.partial-00000000").symlink_to(FULL)
    return tmp_path


@needs_full
@pytest.mark.parametrize("size", [1, 10_000_000])
def test_a_full_disk_is_said_to_be_full_and_leaves_nothing(size: int, full_disk: Path) -> None:
    with pytest.raises(FullDiskError) as caught:
        storage.write_bytes(str(full_disk / "x.bin"), b"x" * size)
    message = (
        r": no space left on the device while writing x\.bin \([\d,]+ bytes free\); make room and run the same command "
        r"again, it continues"
    )
    assert re.fullmatch(re.escape(str(full_disk)) + message, str(caught.value))
    assert everything(full_disk) == []


@needs_full
def test_a_full_disk_under_a_library_is_said_to_be_full(full_disk: Path) -> None:
    table = pa.table({"x": pa.array(range(1_000_000))})
    with pytest.raises(FullDiskError), storage.write(str(full_disk / "x.bin")) as file:
        pq.write_table(table, file)
    assert everything(full_disk) == []


@needs_full
def test_a_real_full_device_is_a_full_disk() -> None:
    with pytest.raises(OSError, match="No space left") as caught, FULL.open("wb", buffering=0) as file:
        file.write(b"x")
    assert storage.is_full_disk(caught.value)


def test_a_quota_that_is_used_up_is_a_full_disk_and_other_trouble_is_not() -> None:
    assert storage.is_full_disk(OSError(errno.EDQUOT, "quota"))
    assert not storage.is_full_disk(OSError(errno.EACCES, "denied"))
    assert not storage.is_full_disk(ValueError("No space left on device"))


def test_a_growing_file_has_what_was_added_at_once_and_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.bin"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_IT_GROWS, str(path)], check=False, cwd=Path(__file__).parents[3]
    )
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"one" + b"two" * 100_000


@needs_full
def test_a_growing_file_on_a_full_disk_is_said_to_be_full(tmp_path: Path) -> None:
    (tmp_path / "x.bin").symlink_to(FULL)
    with (
        pytest.raises(FullDiskError, match=r"no space left on the device while writing x\.bin"),
        storage.growing(str(tmp_path / "x.bin")) as file,
    ):
        file.write(b"x")


def test_names_are_sorted_whole_files_of_the_suffix(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "c.parquet", "a.json.partial-12345678", "d.partial-12345678.json"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder.json").mkdir()
    assert storage.names(str(tmp_path), ".json") == ["a.json", "b.json"]
    assert storage.names(str(tmp_path)) == ["a.json", "b.json", "c.parquet"]
    assert storage.names(str(tmp_path / "absent")) == []
    assert storage.names(str(tmp_path / "a.json")) == []


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        (["a"], "a"),
        (["a", "b", "c.json"], "a/b/c.json"),
        (["a/", "b/", "c"], "a/b/c"),
        (["/", "a"], "/a"),
        (["", "a"], "a"),
        (["s3://bucket/run", "work", "x"], "s3://bucket/run/work/x"),
    ],
)
def test_paths_are_joined(parts: list[str], path: str) -> None:
    assert storage.join(*parts) == path


@pytest.mark.parametrize("path", ["ftp://example.org/run", "S3://bucket/run", "hdfs://host/run", "://x"])
def test_other_kinds_of_storage_are_refused_by_name(path: str) -> None:
    with pytest.raises(
        UsageError,
        match=f"^{path}: no kind of storage that is known; give a local path, s3://BUCKET/… or gs://BUCKET/…$",
    ):
        storage.check(path)


@pytest.mark.parametrize("path", ["s3://", "gs:///run"])
def test_a_path_of_a_store_names_a_bucket(path: str) -> None:
    with pytest.raises(UsageError, match="no bucket is named"):
        storage.check(path)


@pytest.mark.parametrize("path", ["runs/demo", "/C:/x"])
def test_local_paths_are_accepted(path: str) -> None:
    storage.check(path)


@pytest.mark.parametrize(
    ("path", "folder", "inside"),
    [
        ("/a/b/c", "/a/b", "c"),
        ("/a/b", "/a/b", "."),
        ("/a/bc", "/a/b", None),
        ("/a", "/", "a"),
        ("s3://a/b/c/d", "s3://a/b/", "c/d"),
        ("s3://a/bc", "s3://a/b", None),
        ("s3://a/b", "gs://a", None),
        ("a/b", "s3://a", None),
    ],
)
def test_a_path_is_seen_from_a_folder_that_it_is_in(path: str, folder: str, inside: str | None) -> None:
    assert storage.relative(path, folder) == inside
    assert storage.is_inside(path, folder) == (inside is not None)


def test_the_free_bytes_of_a_folder_to_be_are_those_of_where_it_will_be(tmp_path: Path) -> None:
    assert storage.free_bytes(str(tmp_path / "absent" / "deeper")) > 0


def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_more: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "run/log")  # whom root is, no mode keeps out

    monkeypatch.setattr(Path, "mkdir", refuse)
    with (
        pytest.raises(UsageError, match=r"run: cannot be written to \(Permission denied: run/log\); make it writable"),
        storage.locked("run"),
    ):
        raise AssertionError


def test_a_folder_on_a_disk_of_its_own_is_deleted_where_it_is(tmp_path: Path) -> None:
    others = [Path("/dev/shm"), Path.home(), Path(__file__).parent]
    elsewhere = next((place for place in others if place.stat().st_dev != tmp_path.stat().st_dev), None)
    if elsewhere is None:
        pytest.skip("this machine has one disk")
    with tempfile.TemporaryDirectory(dir=elsewhere) as place:
        storage.write_bytes(f"{place}/u/0.json", b"{}")
        storage.discard([f"{place}/u"], str(tmp_path / "discarded"))
        assert everything(Path(place)) == []
        assert everything(tmp_path / "discarded") == []


def test_a_file_that_cannot_go_is_told_once_and_behind_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    untold = list[object]()
    monkeypatch.setattr(threading, "excepthook", untold.append)
    (tmp_path / "discarded").mkdir()
    (tmp_path / "discarded" / "kept").write_bytes(b"")
    change_flag = ["chattr", "+i", str(tmp_path / "discarded" / "kept")]  # whom root is, no mode keeps out
    if not shutil.which("chattr") or subprocess.run(change_flag, capture_output=True, check=False).returncode:
        pytest.skip("this disk, or this user, makes no file immutable")
    done = False
    try:
        with pytest.raises(PermissionError, match=r"kept|discarded"), storage.emptied(str(tmp_path / "discarded")):
            done = True
    finally:
        subprocess.run(["chattr", "-i", change_flag[-1]], check=True)
    assert done
    assert untold == []
