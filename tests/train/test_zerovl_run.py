"""ZeroVL's recipe with all its parts on: continued bit for bit, and the same on two processes."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from altalign import cli
from altalign.settings import dump
from tests.train.run_folders import pairs, write_run
from tests.train.test_training_run import ROOT, TORCHRUN, every_line, lines, settings, weights

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


def test_two_processes_see_what_one_does(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "curated", tmp_path / "curated")
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *TORCHRUN, written(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for ours, theirs in zip(lines(tmp_path), lines(trained), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    assert every_line(tmp_path)[-1]["retrieval/held/rsum"] == pytest.approx(
        every_line(trained)[-1]["retrieval/held/rsum"], abs=15
    )
