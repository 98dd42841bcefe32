import errno
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign import storage
from altalign.errors import FullDiskError, UnreadableError, UsageError
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


def test_a_file_is_there_whole_when_its_block_ended(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "x.bin"
    with storage.write(str(path)) as file:
        file.write(b"one")
        file.flush()
        assert not path.exists()
        assert not storage.exists(str(path))
        assert storage.names(str(path.parent)) == []
        file.write(b"two")
    assert everything(tmp_path) == ["a", "a/b", "a/b/x.bin"]
    assert storage.read_bytes(str(path)) == b"onetwo"


@pytest.mark.parametrize(
    "trouble", [ValueError("ours"), KeyboardInterrupt(), SystemExit(3), OSError(errno.EIO, "the disk is bad")]
)
def test_a_block_that_fails_leaves_nothing(trouble: BaseException, tmp_path: Path) -> None:
    with pytest.raises(type(trouble)) as caught:
        write_half(str(tmp_path / "x.bin"), trouble)
    assert caught.value is trouble
    assert everything(tmp_path) == []


def test_a_block_that_fails_leaves_the_file_of_before(tmp_path: Path) -> None:
    path = str(tmp_path / "x.bin")
    storage.write_bytes(path, b"before")
    with pytest.raises(ValueError, match="ours"):
        write_half(path, ValueError("ours"))
    assert storage.read_bytes(path) == b"before"
    storage.write_bytes(path, b"after")
    assert storage.read_bytes(path) == b"after"
    assert everything(tmp_path) == ["x.bin"]


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
        cwd=Path(__file__).parents[2],
    )
    assert ended.returncode == -signal.SIGKILL
    assert storage.names(str(tmp_path / "deep")) == []
    assert len(everything(tmp_path)) == 2
    (tmp_path / "deep" / "whole.bin").write_bytes(b"1")
    storage.sweep(str(tmp_path))
    assert everything(tmp_path) == ["deep", "deep/whole.bin"]


def test_sweeping_where_there_is_nothing_is_no_error(tmp_path: Path) -> None:
    storage.sweep(str(tmp_path / "absent"))


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
        [sys.executable, "-c", KILLED_WHILE_IT_GROWS, str(path)], check=False, cwd=Path(__file__).parents[2]
    )
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"one" + b"two" * 100_000


def test_of_a_growing_file_the_first_bytes_stay_or_all(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"0123456789")
    with storage.growing(str(path)) as file:
        assert file.bytes == 10
        file.write(b"abc")
    with storage.growing(str(path), keep=4) as file:
        file.write(b"def")
        assert file.bytes == 7
    assert path.read_bytes() == b"0123def"


@needs_full
def test_a_growing_file_on_a_full_disk_is_said_to_be_full(tmp_path: Path) -> None:
    (tmp_path / "x.bin").symlink_to(FULL)
    with (
        pytest.raises(FullDiskError, match=r"no space left on the device while writing x\.bin"),
        storage.growing(str(tmp_path / "x.bin")) as file,
    ):
        file.write(b"x")


def test_of_folders_of_units_the_files_that_are_to_stay_stay(tmp_path: Path) -> None:
    for name in ("done.json", "units/1.json", "units/1.journal", "units/1.images", "units/1.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    storage.delete_units([str(tmp_path), str(tmp_path / "absent")], but=(".journal", ".images"))
    assert everything(tmp_path / "units") == ["1.images", "1.journal"]
    storage.delete_units([str(tmp_path / "units")])
    assert everything(tmp_path) == []


def test_names_are_sorted_whole_files_of_the_suffix(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "c.parquet", "a.json.partial-12345678", "d.partial-12345678.json"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder.json").mkdir()
    assert storage.names(str(tmp_path), ".json") == ["a.json", "b.json"]
    assert storage.names(str(tmp_path)) == ["a.json", "b.json", "c.parquet"]
    assert storage.names(str(tmp_path / "absent")) == []
    assert storage.names(str(tmp_path / "a.json")) == []


def test_json_is_read_as_it_was_written_and_is_empty_where_there_is_none(tmp_path: Path) -> None:
    path = str(tmp_path / "x.json")
    assert storage.read_json(path) == {}
    value: dict[str, Any] = {"b": 1, "a": [None, 0.5, "東京 \u2028"], "c": {}}
    storage.write_json(path, value)
    assert storage.read_json(path) == value
    text = Path(path).read_text(encoding="utf-8")
    assert text.endswith("}\n")
    assert "東京" in text
    assert list(json.loads(text)) == ["b", "a", "c"]


@pytest.mark.parametrize("data", [b"", b'{"a": 1', b"\0" * 10, b"\xff\xff"])
def test_json_that_is_damaged_is_named(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(UnreadableError, match=r"x\.json: not JSON"):
        storage.read_json(str(path))


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(0, 400))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_a_range_is_that_of_the_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, offset: int, length: int
) -> None:
    path = str(tmp_path_factory.getbasetemp() / "range.bin")
    storage.write_bytes(path, data)
    assert storage.read_range(path, offset, length) == data[offset : offset + length]
    with storage.open_read(path) as file:
        file.seek(offset)
        assert file.read(length) == data[offset : offset + length]


def test_a_stamp_tells_that_a_file_changed(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"1")
    os.utime(path, ns=(5, 1_000_000_007))
    before = storage.stamp(str(path))
    assert before == storage.Stamp(1, path.stat().st_mtime_ns)
    path.write_bytes(b"12")
    os.utime(path, ns=(5, 1_000_000_007))
    longer = storage.stamp(str(path))
    os.utime(path, ns=(5, 2_000_000_007))
    assert len({before, longer, storage.stamp(str(path))}) == 3


def test_files_and_folders_are_deleted_and_what_is_absent_is_no_error(tmp_path: Path) -> None:
    storage.write_bytes(str(tmp_path / "a" / "b" / "x.bin"), b"1")
    storage.write_bytes(str(tmp_path / "y.bin"), b"1")
    for name in ("y.bin", "a", "absent", "absent/x"):
        storage.delete(str(tmp_path / name))
    assert everything(tmp_path) == []


def test_only_whole_files_exist(tmp_path: Path) -> None:
    storage.write_bytes(str(tmp_path / "x.bin"), b"")
    assert storage.exists(str(tmp_path / "x.bin"))
    assert not storage.exists(str(tmp_path))
    assert not storage.exists(str(tmp_path / "absent"))


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


def test_what_libraries_think_temporary_is_in_the_folder_and_gone_after_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    folder = tmp_path / "run" / "temporary"
    (folder / "of a killed one").mkdir(parents=True)
    with storage.temporary(str(folder)):
        assert not list(folder.iterdir())
        assert Path(tempfile.mkdtemp()).parent == folder
        asked = subprocess.run(
            [sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert asked.stdout == f"{folder}\n"
    assert not folder.exists()
    assert (os.environ["TMPDIR"], tempfile.tempdir) == (str(tmp_path), None)


def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_more: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "run/log")  # whom root is, no mode keeps out

    monkeypatch.setattr(Path, "mkdir", refuse)
    with (
        pytest.raises(UsageError, match=r"run: cannot be written to \(Permission denied: run/log\); make it writable"),
        storage.locked("run"),
    ):
        raise AssertionError
