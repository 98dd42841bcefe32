"""How the pool is cut into units, against a plain loop."""

import gzip
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign import storage
from altalign.errors import UnreadableError
from altalign.pipelines import read
from altalign.pipelines.read.tables import table
from altalign.pipelines.run import pool
from altalign.pipelines.run.units import InputFile, Run
from altalign.settings.curate import CurateConfig, InputSettings
from altalign.storage.ranges import Range, Ranges

groups = st.lists(st.lists(st.integers(0, 14), max_size=12), max_size=5)


def run_of(folder: Path, files: list[list[int]], *, row_bytes: int = 100) -> Run:
    """A run whose files were extracted to row groups of these sizes."""
    config = CurateConfig.from_values({"input": {"paths": ["none"]}}, where="test")
    run = Run(str(folder), config, tuple(InputFile(number, f"{number}.parquet", 0) for number in range(len(files))))
    for file, sizes in zip(run.files, files, strict=True):
        facts = {
            "direct": file.number % 2 == 0,
            "row_groups": sizes,
            "rows_at_once": 10,
            "bytes": row_bytes * sum(sizes),
        }
        storage.write_sealed(run.mark("extract", file.name), {"unit": file.name, **facts})
    return run


def plain(files: list[list[int]], at_most: int) -> list[tuple[int, list[int]]]:
    """(file, row groups) of every unit: a row group joins the one before it where both still fit."""
    found: list[tuple[int, list[int]]] = []
    for file, sizes in enumerate(files):
        for number, size in enumerate(sizes):
            if number and sum(sizes[g] for g in found[-1][1]) + size <= at_most:
                found[-1][1].append(number)
            else:
                found.append((file, [number]))
    return found


@given(groups, st.integers(1, 30))
@settings(derandomize=True, deadline=None, max_examples=80)
def test_units_are_cut_as_in_a_plain_loop_and_hold_every_row_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], at_most: int
) -> None:
    run = run_of(tmp_path_factory.mktemp("run"), files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "ROWS_PER_UNIT", at_most)
        units = pool.units(run)
    assert [(unit["file"], list(range(unit["first"], unit["last"] + 1))) for unit in units] == plain(files, at_most)
    assert [unit["order"] for unit in units] == list(range(len(units)))
    assert len({unit["name"] for unit in units}) == len(units)
    rows = [(unit["file"], row) for unit in units for row in range(unit["row"], unit["row"] + unit["rows"])]
    assert rows == [(file, row) for file, sizes in enumerate(files) for row in range(sum(sizes))]
    assert all(unit["direct"] == (unit["file"] % 2 == 0) for unit in units)


def test_a_row_group_that_is_larger_than_a_unit_is_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "ROWS_PER_UNIT", 10)
    units = pool.units(run_of(tmp_path, [[3, 25, 4, 6, 1]]))
    assert [(unit["first"], unit["last"], unit["row"], unit["rows"]) for unit in units] == [
        (0, 0, 0, 3),
        (1, 1, 3, 25),
        (2, 3, 28, 10),
        (4, 4, 38, 1),
    ]


@pytest.mark.parametrize(
    ("rows", "partitions"), [(0, 4), (500, 4), (4_999, 4), (5_000, 8), (8_999, 8), (9_000, 16), (10**9, 64)]
)
def test_partitions_are_a_power_of_two_of_the_size_of_the_pool_alone(
    tmp_path: Path, rows: int, partitions: int
) -> None:
    run = run_of(tmp_path, [[rows]])
    pool.write_size(run)
    assert pool.rows(run) == rows
    assert pool.partitions(run, 1_000, at_least=4, at_most=64) == partitions


@pytest.mark.parametrize(("row_bytes", "partitions"), [(500, 8), (2_048, 8), (20_000, 128), (64_000, 256)])
def test_long_rows_make_more_partitions(tmp_path: Path, row_bytes: int, partitions: int) -> None:
    run = run_of(tmp_path, [[8_000]], row_bytes=row_bytes)
    pool.write_size(run)
    assert pool.partitions(run, 1_000, at_least=4, at_most=4_096) == partitions


@pytest.mark.parametrize(
    ("rows", "times"), [(0, 1), (10**9, 1), (10**9 + 1, 2), (10**10, 16), (10**11, 32), (189_232_647_623, 32)]
)
def test_fetch_units_grow_with_a_very_large_pool_alone(tmp_path: Path, rows: int, times: int) -> None:
    run = run_of(tmp_path, [[rows]])
    pool.write_size(run)
    assert pool.enlarged(run) == times


def _inputs(folder: Path) -> dict[str, Path]:
    """A file of each form, with images where the form has any."""
    rows = pa.table({"image": [bytes(9_000)] * 50, "caption": ["a red kite over the hill"] * 50})
    paths = {name: folder / f"a.{name}" for name in ("parquet", "arrow", "csv", "jsonl.gz", "tar", "warc.gz")}
    pq.write_table(rows, paths["parquet"])
    with pa.ipc.new_file(str(paths["arrow"]), rows.schema) as file:
        file.write_table(rows)
    paths["csv"].write_text("url,caption\n" + "https://example.org/a.jpg,a red kite\n" * 50)
    paths["jsonl.gz"].write_bytes(gzip.compress(b'{"url": "https://example.org/a.jpg", "caption": "a kite"}\n' * 5_000))
    with tarfile.open(paths["tar"], "w") as tar:
        tar.add(paths["parquet"], "a.jpg")
    paths["warc.gz"].write_bytes(next((Path(__file__).parents[3] / "examples/handbook").glob("*.warc.gz")).read_bytes())
    return paths


def _read_a_range(path: str) -> bytes:
    with Ranges([]) as ranges:
        return ranges.read(Range(path, 0, Path(path).stat().st_size + 1))


READS: dict[str, Callable[[str], object]] = {
    "rows": lambda path: list(read.read(path, _settings(path))),
    "images": lambda path: list(table.images(path, _settings(path), range(50))),
    "row groups": lambda path: list(pool.parquet.read_whole(path)),
    "a range": _read_a_range,
    "a raw error of the system": lambda path: pa.memory_map(path, "r").read_at(1 << 40, 1 << 40),
}
CHANGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:700]),
    "noise": lambda path: path.write_bytes(b"\xff\0\x13" * 999),
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
}


def _settings(path: str) -> InputSettings:
    kind = "webdataset" if path.endswith("tar") else "warc" if path.endswith("warc.gz") else "table"
    column = "image" if path.endswith(("parquet", "arrow")) else ""
    of = {"kind": kind, "paths": [path], "image_column": column, "url_column": "" if column else "url"}
    return CurateConfig.from_values({"input": of}, where="test").input[0]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("form", "how"),
    [(form, "rows") for form in ("parquet", "arrow", "csv", "jsonl.gz", "tar", "warc.gz")]
    + [("parquet", "images"), ("arrow", "images"), ("parquet", "row groups"), ("tar", "a range")]
    + [("csv", "a raw error of the system")],
)
def test_of_a_file_that_changes_while_it_is_read_that_is_the_error(
    tmp_path: Path, form: str, how: str, change: str
) -> None:
    path = _inputs(tmp_path)[form]
    run = Run(str(tmp_path / "run"), CurateConfig.from_values({"input": {"paths": ["-"]}}, where="test"), files(path))
    said = "gone since the run began" if change == "gone" else "changed since the run began to read it"
    with pytest.raises(UnreadableError, match=said), pool.reading(run, [0], pool.stamp(run, 0)):  # noqa: PT012
        CHANGES[change](path)
        READS[how](str(path))


def files(path: Path) -> tuple[InputFile, ...]:
    return (InputFile(0, str(path), 0),)


def test_of_a_file_that_stays_as_it_is_the_error_of_its_reader_stands(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"noise" * 99)
    run = Run(str(tmp_path / "run"), CurateConfig.from_values({"input": {"paths": ["-"]}}, where="test"), files(path))
    with pytest.raises(UnreadableError, match="cannot be read as Parquet"), pool.reading(run, [0], pool.stamp(run, 0)):
        READS["rows"](str(path))
