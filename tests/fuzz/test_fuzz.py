"""Every reader and decoder against a few thousand damaged inputs, always the same ones; `make fuzz` takes others, for
as long as it is let.
"""

import pytest

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
    "images": {"jpeg": 300, "png": 400, "webp": 300, "gif": 300, "avif": 300, "bmp": 200, "tiff": 400},
}


@pytest.mark.hostile
@pytest.mark.parametrize("group", INPUTS)
def test_damage_costs_no_more_than_what_it_damages(tmp_path, group):
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
def test_a_planted_defect_is_found_and_its_input_kept(tmp_path, name, what):
    tally = work({name: 1}, "daily", tmp_path, cpu_s=0.5)[name]
    assert len(tally.findings) == 1
    command, said = tally.findings[0]
    assert what in said
    assert f"worker {name} --again" in command
    kept = tmp_path / "findings" / f"{name}-daily-0"
    assert (kept / "input.bin").read_bytes() == b"bad"
    assert (kept / "original.bin").read_bytes() == b"sound"
    assert set(PLANTED).isdisjoint(TARGETS)
