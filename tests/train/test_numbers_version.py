"""Ten steps beside golden losses: when they move, so do the numbers of every experiment.

`python -m tests.train.test_numbers_version` prints those of today. They are no truth: the plain loops of other tests
are. A change that moves them raises NUMBERS_VERSION, and stands in the commit's message.
"""

import json
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from altalign.train import NUMBERS_VERSION, loop
from altalign.train.settings.training import TrainConfig
from tests.support.run_folders import pairs, write_run

pytestmark = pytest.mark.trained

CASES = Path(__file__).parents[1] / "cases" / "numbers.toml"
VIT = {"architecture": "vit_ti16", "width": 0.34, "depth": 0.17, "positions_px": 32, "embedding_width": 32}
# of all that draws numbers or decides an update: two recipes that share little
RECIPES: dict[str, dict[str, Any]] = {
    "align": {
        "image_tower": {"architecture": "b0", "width": 0.25, "depth": 0.25, "embedding_width": 16},
        "loss": {"temperature": 0.1},
    },
    "zerovl": {
        "data": {"crop_area_at_least": 0.6, "auto_augment": True, "word_corruption": 0.2},
        "image_tower": {**VIT, "token_drop": 0.25},
        "loss": {"directions": "mean", "label_smoothing": 0.0, "temperature": 0.07, "mixup": 0.5, "mixup_group": 4},
        "optimizer": {"name": "adamw", "weight_decay": 1e-3},
        "schedule": {"decay": "cosine"},
        "loop": {"chunk": 4},
    },
}


def losses(recipe: str, folder: Path) -> list[float]:
    """Of ten steps."""
    write_run(folder / "curated", pairs(60, images=30))
    values: dict[str, dict[str, Any]] = {
        "run": {"folder": str(folder / "trained"), "seed": 3},
        "data": {"runs": [str(folder / "curated")], "resize_px": 40, "crop_px": 32, "workers": 0},
        "tokenizer": {"vocabulary_size": 80, "tokens_at_most": 16},
        "text_tower": {"layers": 2, "width": 32, "heads": 2, "dropout": 0.3},
        "schedule": {"steps": 10, "warmup_steps": 2, "peak": 5e-3},
        "loop": {"global_batch": 8, "chunk": 8, "precision": "float32", "log_every": 1, "device": "cpu"},
        "evaluation": {"retrieval": []},
    }
    for section, changed in RECIPES[recipe].items():
        values[section] = {**values.get(section, {}), **changed}
    loop.train(TrainConfig.from_values(values, where=recipe))
    lines = map(json.loads, (folder / "trained" / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_numbers_of_ten_steps_are_those_of_this_version(recipe: str, tmp_path: Path) -> None:
    golden = tomllib.loads(CASES.read_text())
    found = losses(recipe, tmp_path)
    assert len(found) == 10
    moved = f"numbers moved: raise NUMBERS_VERSION in train/__init__.py, write {CASES.name} anew"
    assert found == pytest.approx(golden[recipe], rel=1e-3), moved  # other processors round otherwise
    assert golden["version"] == NUMBERS_VERSION, moved


def test_another_stream_of_dropout_moves_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So would a change of any draw: the check that this can fail."""
    from altalign.train.step import accumulation, learner

    drawn = accumulation.chunk_seed
    for module in (accumulation, learner):
        monkeypatch.setattr(module, "chunk_seed", lambda *given: drawn(*given) // 2)
    assert losses("align", tmp_path) != pytest.approx(tomllib.loads(CASES.read_text())["align"], rel=1e-3)


if __name__ == "__main__":
    sys.stdout.write(f"version = {NUMBERS_VERSION}\n")
    for name in RECIPES:
        with TemporaryDirectory() as temporary:
            sys.stdout.write(f"{name} = {[round(loss, 6) for loss in losses(name, Path(temporary))]}\n")
