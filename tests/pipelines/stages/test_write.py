"""Which rows go to which shard, against a plain loop."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign import storage
from altalign.pipelines.run.units import Run
from altalign.pipelines.stages import write
from altalign.settings.curate import CurateConfig

Sample = tuple[str, int]  # fetch unit, one of its rows that stay


def run_of(folder: Path, kept: list[int], samples_per_shard: int) -> Run:
    """A run whose fetch units have so many rows each that stay."""
    config = CurateConfig.from_values(
        {"input": {"paths": ["none"]}, "shards": {"samples_per_shard": samples_per_shard}}, where="test"
    )
    run = Run(str(folder), config, ())
    for number, rows in enumerate(kept):
        storage.write_sealed(run.mark("decontaminate/units", name_of(number)), {"kept": rows})
    return run


def name_of(number: int) -> str:
    return f"{number // 3:05d}-{number % 3:05d}"


def planned(run: Run) -> list[list[Sample]]:
    return [
        [(name, row) for name, begin, end in unit["parts"] for row in range(begin, end)] for unit in write.plan(run)
    ]


def plain(kept: list[int], samples_per_shard: int) -> list[list[Sample]]:
    shards: list[list[Sample]] = []
    for number, rows in enumerate(kept):
        for row in range(rows):
            if not shards or len(shards[-1]) == samples_per_shard:
                shards.append([])
            shards[-1].append((name_of(number), row))
    return shards


@given(st.lists(st.sampled_from([0, 1, 2, 3, 7, 20]) | st.integers(0, 40), max_size=9), st.integers(1, 25))
@settings(derandomize=True, deadline=None, max_examples=80)
def test_shards_hold_every_sample_once_in_order_and_all_but_the_last_are_full(
    tmp_path_factory: pytest.TempPathFactory, kept: list[int], samples_per_shard: int
) -> None:
    run = run_of(tmp_path_factory.mktemp("run"), kept, samples_per_shard)
    assert planned(run) == plain(kept, samples_per_shard)
    units = write.plan(run)
    assert [unit["rows"] for unit in units] == [len(shard) for shard in planned(run)]
    assert [unit["name"] for unit in units] == [f"{number:05d}" for number in range(len(units))]
    assert all(begin < end for unit in units for _, begin, end in unit["parts"])  # no unit is opened for nothing


def test_a_pool_that_left_nothing_has_no_shards(tmp_path: Path) -> None:
    assert write.plan(run_of(tmp_path / "none", [], 10)) == []
    assert write.plan(run_of(tmp_path / "empty", [0, 0, 0], 10)) == []


def test_shards_beyond_the_fifth_digit_keep_their_order(tmp_path: Path) -> None:
    units = write.plan(run_of(tmp_path, [100_001], 1))
    assert [units[0]["name"], units[99_999]["name"], units[100_000]["name"]] == ["00000", "99999", "100000"]
    assert units[100_000]["parts"] == [("00000-00000", 100_000, 100_001)]
