"""What `altalign status --lineage` says of a training: its runs, as they are now, and the steps that saw a pair."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign import storage
from altalign.cli import main
from altalign.data.schema import REMOVED
from altalign.train.data.training_data import samples_of
from altalign.train.run import checkpoints
from altalign.train.settings.training import TrainConfig
from tests.support.run_folders import pairs, write_run
from tests.support.trained_folders import write_trained

STEPS, BATCH = 5, 4  # of `write_trained`


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A training run on 30 pairs, which are beside it."""
    monkeypatch.chdir(tmp_path)
    there = pairs(30)
    write_run(Path("run"), there)
    manifest = json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))
    lineage = {"operation": "subset", "settings": {}, "parents": ["c" * 64], "before": [None]}
    storage.write_sealed("run/manifest.json", {**manifest, "files": {"sha256": "d" * 64}, "lineage": lineage})
    config = {"data": {"runs": ["run"], "held_out": 0.2}, "loop": {"global_batch": BATCH}}
    folder = write_trained(Path("model"), **config)
    samples_of(TrainConfig.load("model/config.toml", ["run.folder=model"]))
    assert checkpoints.finished(folder) == [STEPS]
    return folder


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["status", "--lineage", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_checkpoint_names_its_runs_and_what_these_were_made_of(
    trained: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (trained, f"{trained}/checkpoints/step-0000005"):
        capsys.readouterr()
        assert main(["status", "--lineage", path]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "model step 5, trained on",
            f"  run {'d' * 12} subset",
            f"  └─ {'c' * 12} curate",
        ]
    Path("run/manifest.json").write_bytes(Path("run/manifest.json").read_bytes().replace(b'"d', b'"e'))
    assert main(["status", "--lineage", trained]) == 1  # its seal is of other bytes
    Path("run/manifest.json").unlink()
    capsys.readouterr()
    assert main(["status", "--lineage", trained]) == 0
    assert "which is not there now" in capsys.readouterr().out


def test_every_draw_of_the_training_is_told_once(trained: str, capsys: pytest.CaptureFixture[str]) -> None:
    draws, held_out = 0, 0
    for pair in pairs(30):
        seen = told(capsys, trained, "--key", pair.key)["seen"]
        draws += len(seen["steps"])
        held_out += seen["held_out"]
        assert not (seen["steps"] and seen["held_out"])
    assert draws == STEPS * BATCH
    assert held_out


def test_checkpoints_that_saw_what_was_removed_are_named(trained: str, capsys: pytest.CaptureFixture[str]) -> None:
    there = pairs(30)
    rows = [{"kind": "pair", "hash": pair.key} for pair in there]
    pq.write_table(pa.Table.from_pylist(rows, REMOVED), "run/removed.parquet")
    found = told(capsys, trained, "--removed", "run")["removed"]
    seen = sum(bool(told(capsys, trained, "--key", pair.key)["seen"]["steps"]) for pair in there)
    assert found["pairs"] == len(there)
    assert found["seen_by_step"] == {str(STEPS): seen}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere: no finished run, no training run and no checkpoint; give the folder of one"),
        (["model", "--key", "cat"], "--key cat: not 32 hex digits; `altalign explain` finds the key of a pair"),
        (
            ["run", "--key", "0" * 32],
            "run: a run of pairs, not of training; --key and --removed ask of what was trained",
        ),
        (["model", "--removed", "run"], "--removed run: nothing was removed there (it has no removed.parquet)"),
    ],
)
def test_what_cannot_be_told_is_one_line(
    words: list[str], said: str, trained: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trained
    capsys.readouterr()
    assert main(["status", "--lineage", *words]) == 2
    assert capsys.readouterr().err == f"altalign: {said}\n"
