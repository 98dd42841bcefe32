"""ZeroVL's recipe with all its parts on: continued bit for bit, and the same on two processes."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from altalign import cli
from altalign.settings.common import dump
from altalign.train.run import checkpoints
from tests.support.run_folders import pairs, write_run
from tests.train.test_training_run import (
    AT,
    STEPS,
    TORCHRUN,
    WATCHDOG_S,
    every_line,
    lines,
    reached,
    settings,
    started,
    weights,
)

pytestmark = pytest.mark.trained

ZEROVL: dict[str, dict[str, Any]] = {
    "data": {
        "sampling": "one_source",
        "crop_area_at_least": 0.6,
        "auto_augment": True,
        "word_corruption": 0.2,
        "held_out": 0.1,
    },
    "image_tower": {
        "architecture": "vit_ti16",
        "width": 0.34,
        "depth": 0.1,
        "positions_px": 32,
        "token_drop": 0.25,
        "embedding_width": 16,
    },
    "loss": {"mixup": 0.5, "mixup_group": 4, "directions": "mean", "label_smoothing": 0.0, "temperature": 0.02},
    "optimizer": {"name": "adamw", "weight_decay": 1e-3},
    "loop": {"chunk": 4},  # a chunk of another size draws other dropout: of four processes each has one of four pairs
    "evaluation": {"keep_aspect_ratio": True},
}


def written(folder: Path) -> str:
    chosen = settings(folder, **ZEROVL)
    chosen["image_tower"] = ZEROVL["image_tower"]
    (folder / "train.toml").write_text(dump(chosen), encoding="utf-8")
    return str(folder / "train.toml")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zerovl")
    write_run(folder / "curated", pairs(120, sources=("one", "other", "one")))
    assert cli.main(["train", written(folder)]) == 0
    return folder


@pytest.mark.everyday
def test_a_run_that_goes_on_ends_bit_for_bit_as_one_that_was_not_ended(trained: Path) -> None:
    before = weights(trained)
    for step in (6, 8):
        shutil.rmtree(trained / "trained" / "checkpoints" / f"step-{step:07}")
    assert cli.main(["train", str(trained / "train.toml")]) == 0
    assert weights(trained) == before


def test_the_report_has_what_was_measured(trained: Path) -> None:
    shown = (trained / "trained" / "report.html").read_text(encoding="utf-8")
    found = every_line(trained)[-1]["retrieval/held/image_to_text_r5"]
    assert f'<td class="n">{found:,.4g}</td>' in shown
    assert any("negatives_log_p/one" in line for line in lines(trained))


def test_an_auxiliary_tower_learns_beside_a_frozen_one_of_the_run(trained: Path, tmp_path: Path) -> None:
    chosen = settings(tmp_path, **{**ZEROVL, "data": {**ZEROVL["data"], "runs": [str(trained / "curated")]}})
    chosen["image_tower"] = {**ZEROVL["image_tower"], "architecture": "vit_s32"}
    chosen["text_tower"] |= {"weights": f"run:{trained / 'trained'}", "frozen": True}
    (tmp_path / "train.toml").write_text(dump(chosen), encoding="utf-8")
    assert cli.main(["train", str(tmp_path / "train.toml"), "--dry-run"]) == 0
    assert cli.main(["train", str(tmp_path / "train.toml")]) == 0
    runs = [folder / "trained" for folder in (trained, tmp_path)]
    before, after = (load_file(checkpoints.chosen(str(run), None) / "model.safetensors") for run in runs)
    assert all(after[name].equal(values) for name, values in before.items() if name.startswith("text_"))
    assert len({(run / "tokenizer.json").read_bytes() for run in runs}) == 1


def test_a_killed_run_that_goes_on_ends_bit_for_bit_as_one_that_was_not(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "curated", tmp_path / "curated")
    config = written(tmp_path)
    process = started(["altalign", "train", config])
    reached(tmp_path, AT.randint(1, STEPS - 1), process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=WATCHDOG_S)
    assert cli.main(["train", config]) == 0
    assert weights(tmp_path) == weights(trained)
    assert [line["loss"] for line in lines(tmp_path)] == [line["loss"] for line in lines(trained)]


@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_see_what_one_does(trained: Path, tmp_path: Path, processes: int) -> None:
    shutil.copytree(trained / "curated", tmp_path / "curated")
    process = started(["torch.distributed.run", "--nproc-per-node", str(processes), *TORCHRUN, written(tmp_path)])
    _, said = process.communicate(timeout=WATCHDOG_S)
    assert process.returncode == 0, said
    for ours, theirs in zip(lines(tmp_path), lines(trained), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        # the source of each batch is among them; the first step of an attempt is not timed
        assert ours.keys() ^ theirs.keys() <= {"samples_per_s", "data_wait", "tflops_per_s"}
    assert every_line(tmp_path)[-1]["retrieval/held/rsum"] == pytest.approx(
        every_line(trained)[-1]["retrieval/held/rsum"], abs=15
    )
