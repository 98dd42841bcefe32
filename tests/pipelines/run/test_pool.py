"""How the pool is cut into units, against a plain loop."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign import storage
from altalign.curation import CurateConfig
from altalign.pipelines.run import pool
from altalign.pipelines.run.units import InputFile, Run

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
