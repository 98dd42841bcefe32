"""What the face of storage promises, on a disk, over a real S3 server and over an emulator of GCS."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from altalign import storage
from altalign.errors import UnreadableError, UsageError
from altalign.storage import arrays, parquet
from tests.object_stores.servers import Server

LARGE = 12 << 20  # two parts of an upload, at least


@pytest.fixture(
    params=["disk", pytest.param("s3", marks=pytest.mark.stores), pytest.param("gcs", marks=pytest.mark.stores)]
)
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder of its own."""
    if request.param == "disk":
        (tmp_path / "base").mkdir()
        return str(tmp_path / "base")
    store: Server = request.getfixturevalue(request.param)
    return store.url


def all_names(base: str) -> list[str]:
    return sorted(path.removeprefix(f"{base}/") for path in storage.files_below(base))


def write_all(base: str, *names: str) -> None:
    for name in names:
        storage.write_bytes(f"{base}/{name}", b"{}")


# Writing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x.bin", "x.gz"])  # Arrow compresses what is named so, where it may
@pytest.mark.parametrize("size", [0, 1, 5 << 20, LARGE])
def test_what_is_written_is_read_and_is_there_once_the_block_has_ended(size: int, name: str, base: str) -> None:
    data, path = random.Random(size).randbytes(size), f"{base}/deep/er/{name}"
    with storage.write(path) as file:
        file.write(data[: size // 2])
        assert not storage.exists(path)
        assert storage.names(f"{base}/deep/er") == []
        file.write(data[size // 2 :])
    assert storage.exists(path)
    assert storage.read_bytes(path) == b"".join(storage.read_pieces(path)) == data
    assert storage.stamp(path).size == size
    assert all_names(base) == [f"deep/er/{name}"]


@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize(
    "trouble", [ValueError("ours"), KeyboardInterrupt(), SystemExit(3), OSError(5, "the disk is bad")]
)
def test_a_block_that_fails_leaves_nothing_or_what_was_there_before(
    trouble: BaseException, size: int, base: str
) -> None:
    def write_half(name: str) -> None:
        with storage.write(f"{base}/{name}") as file:
            file.write(b"x" * size)
            raise trouble

    storage.write_bytes(f"{base}/there", b"before")
    for name in ("there", "new"):
        with pytest.raises(type(trouble)) as caught:
            write_half(name)
        assert caught.value is trouble
    assert all_names(base) == ["there"]
    assert storage.read_bytes(f"{base}/there") == b"before"
    storage.write_bytes(f"{base}/there", b"after")
    assert storage.read_bytes(f"{base}/there") == b"after"


def test_files_are_put_taken_linked_and_moved(base: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1" * 100)
    put = storage.put_file if storage.is_remote(base) else storage.link
    put(str(tmp_path / "one"), f"{base}/a/one")
    storage.link(f"{base}/a/one", f"{base}/b/two")
    storage.write_bytes(f"{base}/c", b"before")
    storage.move(f"{base}/a/one", f"{base}/c")
    assert all_names(base) == ["b/two", "c"]
    storage.take_file(f"{base}/c", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == storage.read_bytes(f"{base}/b/two") == b"1" * 100


def test_a_folder_takes_the_place_of_another(base: str) -> None:
    write_all(base, "new/units/0.json", "new/x", "old/units/0.json", "old/units/1.json", "old/gone")
    storage.write_bytes(f"{base}/new/x", b"new")
    storage.move_folder(f"{base}/new", f"{base}/old")
    assert [name for name in all_names(base) if name.startswith("old/")] == ["old/units/0.json", "old/x"]
    assert storage.read_bytes(f"{base}/old/x") == b"new"


def test_what_grows_is_whole_when_its_block_ended(base: str) -> None:
    path, data = f"{base}/x.log", bytearray()
    for keep in (None, None, 3000, 0):
        data = data if keep is None else data[:keep]
        with storage.growing(path, keep=keep) as file:
            assert file.bytes == len(data)
            for number in range(60):
                file.write(b"%05d" % number * 20)
                data += b"%05d" % number * 20
            assert file.bytes == len(data)
        assert storage.read_bytes(path) == data
        assert all_names(base) == ["x.log"]


def test_json_is_read_as_it_was_written_and_is_empty_where_there_is_none(base: str) -> None:
    path = f"{base}/x.json"
    assert storage.read_json(path) == storage.read_sealed(path) == {}
    value: dict[str, Any] = {"b": 1, "a": [None, 0.5, "東京 \u2028"], "c": {}}
    storage.write_json(path, value)
    assert list(storage.read_json(path).items()) == list(value.items())
    text = storage.read_bytes(path).decode()
    assert text.endswith("}\n")
    assert "東京" in text
    for data in (b"", b'{"a": 1', b"\0" * 10, b"\xff\xff"):
        storage.write_bytes(path, data)
        with pytest.raises(UnreadableError, match=r"x\.json: not JSON"):
            storage.read_json(path)
    storage.write_sealed(path, value)
    assert storage.read_sealed(path) == value
    storage.write_bytes(path, storage.read_bytes(path).replace(b"0.5", b"0.6"))
    with pytest.raises(UnreadableError, match="not as it was written"):
        storage.read_sealed(path)


# Reading -------------------------------------------------------------------------------------------------------------


def test_a_file_is_read_at_any_place(base: str) -> None:
    data, path = random.Random(2).randbytes(LARGE), f"{base}/x"
    storage.write_bytes(path, data)
    rng, at = random.Random(3), 0
    with storage.open_read(path) as file, storage.open_again(path, file) as again:
        for _ in range(200):
            match rng.randrange(4):
                case 0:
                    at = file.seek(rng.randrange(LARGE + 10))
                case 1:
                    size = rng.choice([1, 100, 70_000, 5_000_000])
                    assert file.read(size) == data[at : at + size]
                    at = max(at, min(at + size, LARGE))
                case 2:
                    line = file.readline()
                    assert line == data[at : at + len(line)]
                    at += len(line)
                case _:
                    offset, size = rng.randrange(LARGE), rng.choice([10, 3_000_000])
                    storage.ask_for(path, file, offset, size)
                    again.seek(offset)
                    assert again.read(size) == data[offset : offset + size]
            assert file.tell() == at


def test_ranges_are_those_that_were_asked_for(base: str) -> None:
    data, path, rng = random.Random(5).randbytes(LARGE), f"{base}/x", random.Random(6)
    storage.write_bytes(path, data)
    ranges = [(rng.randrange(LARGE), rng.choice([0, 5, 100_000])) for _ in range(60)]
    ranges += [(begin, 10) for begin in range(0, 5_000, 20)]
    assert list(storage.read_ranges(path, ranges)) == [data[offset : offset + length] for offset, length in ranges]
    assert storage.read_range(path, LARGE - 5, 100) == data[-5:]
    assert storage.read_range(path, LARGE + 5, 100) == b""
    assert list(storage.read_ranges(path, [])) == []


def test_what_is_not_there_is_named(base: str) -> None:
    path = f"{base}/none"
    asks: list[Callable[[], object]] = [
        lambda: storage.read_bytes(path),
        lambda: storage.open_read(path),
        lambda: list(storage.read_ranges(path, [(0, 1)])),
        lambda: storage.stamp(path),
    ]
    for ask in asks:
        with pytest.raises(FileNotFoundError) as caught:
            ask()
        assert caught.value.filename == path
    assert not storage.exists(path)
    storage.delete(path)
    storage.sweep(path)


def test_tables_and_arrays_go_through(base: str) -> None:
    rows = pa.table({"x": list(range(1000)), "y": [str(n) * 100 for n in range(1000)]})
    parquet.write(f"{base}/t.parquet", rows, rows.schema)
    assert parquet.read_table(f"{base}/t.parquet").equals(rows)
    assert sum(batch.num_rows for batch in parquet.read_whole(f"{base}/t.parquet", ["x"])) == 1000
    numbers = pa.array(range(100)).to_numpy()
    arrays.save(f"{base}/a.npy", numbers)
    assert arrays.mapped(f"{base}/a.npy").tolist() == arrays.read(f"{base}/a.npy").tolist() == numbers.tolist()
    storage.write_bytes(f"{base}/bad.parquet", b"PAR1 and nothing more")
    with pytest.raises(UnreadableError, match="cannot be read as Parquet"):
        parquet.read_table(f"{base}/bad.parquet")


def test_many_are_asked_for_and_given_in_order(base: str) -> None:
    paths = [f"{base}/{number:03}.json" for number in range(70)]
    assert list(storage.each(lambda path: storage.write_json(path, {"path": path}), paths, place=base)) == [None] * 70
    assert [facts["path"] for facts in storage.each(storage.read_json, paths, place=base)] == paths
    assert len(set(storage.each(storage.stamp, paths, place=base))) == 70
    with pytest.raises(FileNotFoundError):
        list(storage.each(storage.read_bytes, [*paths, f"{base}/none"], place=base))


# What is there -------------------------------------------------------------------------------------------------------


def test_what_is_there(base: str) -> None:
    write_all(base, "a/x.json", "a/y.json", "a/b/z.json", "top")
    assert storage.names(f"{base}/a") == storage.names(f"{base}/a", ".json") == ["x.json", "y.json"]
    assert storage.names(f"{base}/none") == storage.entries(f"{base}/none") == []
    assert sorted(storage.entries(base)) == ["a", "top"]
    kinds = {name: storage.kind(f"{base}/{name}") for name in ("a", "a/b", "a/x.json", "none", "a/x")}
    assert kinds == {"a": "folder", "a/b": "folder", "a/x.json": "file", "none": "missing", "a/x": "missing"}
    assert not storage.exists(f"{base}/a")
    assert storage.below(base, "b/z.json") == [f"{base}/a/b/z.json"]
    storage.delete(f"{base}/a/x.json")
    storage.delete(f"{base}/a/b")
    assert all_names(base) == ["a/y.json", "top"]
    storage.delete(f"{base}/a")
    assert (all_names(base), storage.kind(f"{base}/a")) == (["top"], "missing")


GLOBS = {
    "*.csv": ["top.csv"],
    "d/*.csv": ["d/[1].csv", "d/x.csv", "d/y.csv", "d/zz.csv"],
    "d/**/*.csv": ["d/[1].csv", "d/e/f/w.csv", "d/e/x.csv", "d/x.csv", "d/y.csv", "d/zz.csv"],
    "**/*.csv": ["d/[1].csv", "d/e/f/w.csv", "d/e/x.csv", "d/x.csv", "d/y.csv", "d/zz.csv", "top.csv"],
    "d/?.csv": ["d/x.csv", "d/y.csv"],
    "d/[xy].csv": ["d/x.csv", "d/y.csv"],
    "d/x.csv": ["d/x.csv"],
    "d/[x].csv": ["d/x.csv"],
    "d/[1].csv": ["d/[1].csv"],
    "d/*": ["d/[1].csv", "d/e", "d/x.csv", "d/x.txt", "d/y.csv", "d/zz.csv"],
    "*/x.csv": ["d/x.csv"],
    "none/*": [],
    "d/.*": ["d/.h", "d/.hidden.csv"],
    "d/**": [*["d/[1].csv", "d/e", "d/e/f", "d/e/f/w.csv", "d/e/x.csv", "d/x.csv", "d/x.txt", "d/y.csv", "d/zz.csv"]],
}


def test_globs_match_alike(base: str) -> None:
    write_all(base, "top.csv", "d/x.csv", "d/y.csv", "d/zz.csv", "d/e/x.csv", "d/e/f/w.csv", "d/.hidden.csv")
    write_all(base, "d/.h/x.csv", "d/[1].csv", "d/x.txt")
    for pattern, names in GLOBS.items():
        paths = sorted(path.removeprefix(f"{base}/") for path in storage.find(f"{base}/{pattern}"))
        assert [path for path in paths if path != "d/"] == names, pattern  # on a disk `d/**` is also the folder itself


def test_a_file_that_is_written_anew_has_another_stamp(base: str) -> None:
    path = f"{base}/x"
    storage.write_bytes(path, b"one")
    before = storage.stamp(path)
    assert storage.stamp(path) == before
    storage.write_bytes(path, b"two")  # of the same size; in a store within the same second
    if not storage.is_remote(base):
        os.utime(path, ns=(0, before.time_ns + 1))
    assert storage.stamp(path) != before
    assert storage.stamp(path).to_json() != before.to_json()


def test_marks_are_deleted_before_anything_else(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all(base, "u/0.json", "u/done.json", "u/0.images", "u/0.parquet", "v/1.json", "v/1.bin")
    deleted: list[str] = []
    module: Any = storage.at(base)
    real = module.delete_file
    monkeypatch.setattr(module, "delete_file", lambda path: deleted.append(path.removeprefix(f"{base}/")) or real(path))
    storage.delete_units([f"{base}/u", f"{base}/absent"], but=(".images", ".journal"))
    assert deleted == ["u/done.json", "u/0.json", "u/0.parquet"]
    storage.delete_units([f"{base}/v"])
    assert all_names(base) == ["u/0.images"]


def test_what_is_discarded_goes_at_once_and_its_bytes_by_the_end(base: str) -> None:
    for _ in range(2):  # what has the same names later goes too
        write_all(base, "w/u/0.json", "w/u/deep/0.bin", "w/v.json", "w/stays.json")
        storage.discard([f"{base}/w/u", f"{base}/w/absent", f"{base}/w/v.json"], f"{base}/w/discarded")
        assert [name for name in all_names(base) if "discarded" not in name] == ["w/stays.json"]
    with pytest.raises(ZeroDivisionError), storage.emptied(f"{base}/w/discarded"):
        raise ZeroDivisionError
    write_all(base, "w/u/0.json")
    with storage.emptied(f"{base}/w/discarded"):  # the next one deletes what an error has left
        pass
    assert (all_names(base), storage.kind(f"{base}/w/discarded")) == (["w/stays.json", "w/u/0.json"], "missing")


# A run as a whole ----------------------------------------------------------------------------------------------------


def test_a_run_is_held_by_one_command_of_this_machine(base: str) -> None:
    run = f"{base}/run"
    assert storage.holder(run) is None
    with storage.locked(run):
        assert storage.holder(run) == str(os.getpid())
        with (
            pytest.raises(UsageError, match=rf"another command is at work on this run \(process {os.getpid()}\)"),
            storage.locked(run),
        ):
            pass
    assert storage.holder(run) is None
    with storage.locked(run):
        pass


def test_temporary_files_of_a_run_are_on_this_machine(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", None)
    before = tempfile.gettempdir()
    folder = f"{base}/run/work/temporary"
    with storage.temporary(folder):
        inside = Path(tempfile.gettempdir())
        assert inside == Path(storage.local_folder(folder))
        assert os.environ["TMPDIR"] == str(inside)  # of child processes
        Path(tempfile.mkstemp()[1]).write_bytes(b"x")
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert (tempfile.gettempdir(), inside.exists()) == (before, False)
    with storage.temporary(folder):  # what a killed one has left goes
        (inside / "left").touch()
        with storage.temporary(folder):
            assert not list(inside.iterdir())
