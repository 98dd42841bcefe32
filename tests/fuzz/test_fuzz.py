"""Every reader and decoder against a few thousand damaged inputs, always the same ones; `make fuzz` takes others, for
as long as it is let.
"""

from pathlib import Path
from random import Random

import pytest

from tests.fuzz import of_runs
from tests.fuzz.campaign import work
from tests.fuzz.targets import PLANTED, TARGETS

INPUTS = {
    "tables": {
        "csv": 200,
        "csv.gz": 60,
        "csv.zst": 60,
        "tsv": 100,
        "tsv.gz": 40,
        "tsv.zst": 40,
        "jsonl": 150,
        "jsonl.gz": 40,
        "jsonl.zst": 40,
        "parquet": 350,
        "arrow": 250,
    },
    "archives": {
        "warc": 120,
        "warc.gz": 120,
        "warc.zst": 120,
        "warc.whole.gz": 80,
        "warc.whole.zst": 80,
        "wat": 80,
        "tar": 200,
        "tar.gz": 80,
        "tar.zst": 80,
    },
    "pages": {"page": 300, "body": 400},
    "runs": dict.fromkeys(of_runs.TARGETS, 1),
    "images": {"jpeg": 300, "png": 400, "webp": 300, "gif": 300, "avif": 300, "bmp": 200, "tiff": 400},
}


@pytest.mark.hostile
@pytest.mark.parametrize("group", INPUTS)
def test_damage_costs_no_more_than_what_it_damages(tmp_path: Path, group: str) -> None:
    tallies = work(INPUTS[group], "daily", tmp_path)
    assert [finding for tally in tallies.values() for finding in tally.findings] == []
    assert {name: tally.inputs for name, tally in tallies.items()} == INPUTS[group]


def test_every_target_is_run() -> None:
    assert {name for group in INPUTS.values() for name in group} == set(TARGETS)


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("dies", "Segmentation fault"),
        ("hangs", "in _hangs"),
        ("raises", "AssertionError: it is not sound"),
        ("grows", "MB of memory"),
    ],
)
def test_a_planted_defect_is_found_and_its_input_kept(tmp_path: Path, name: str, what: str) -> None:
    tally = work({name: 1}, "daily", tmp_path, cpu_s=0.5)[name]
    assert len(tally.findings) == 1
    command, said = tally.findings[0]
    assert what in said
    assert f"worker {name} --again" in command
    kept = tmp_path / "findings" / f"{name}-daily-0"
    assert (kept / "input.bin").read_bytes() == b"bad"
    assert (kept / "original.bin").read_bytes() == b"sound"
    assert set(PLANTED).isdisjoint(TARGETS)


@pytest.mark.hostile
def test_the_memory_of_all_processes_of_a_run_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = of_runs.TARGETS["run.csv.gz"]
    path = tmp_path / f"input{target.suffix}"
    path.write_bytes(target.make(Random(0))[1])
    monkeypatch.setattr(of_runs, "MEMORY", 100_000_000)  # less than the program takes
    with pytest.raises(AssertionError, match=r"its processes took [0-9,]+ MB"):
        target.check(path, b"")


def test_amplified_inputs_are_small_and_the_same_each_time() -> None:
    for name, target in of_runs.TARGETS.items():
        made = [target.make(Random(f"{name} {number}"))[1] for number in (1, 2, 1)]
        assert made[0] == made[2]
        assert max(map(len, made)) < 200_000_000, name
