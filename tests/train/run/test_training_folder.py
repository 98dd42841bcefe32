"""The folder of a run: what a command that is run again may change."""

from pathlib import Path
from typing import Any

import pytest

from altalign.errors import UsageError
from altalign.train.run import training_folder
from altalign.train.settings.training import TrainConfig


def config(folder: Path, batch_norm: str, **loop: Any) -> TrainConfig:
    return TrainConfig.model_validate(
        {"run": {"folder": str(folder)}, "image_tower": {"batch_norm": batch_norm}, "loop": {"chunk": 32, **loop}}
    )


@pytest.mark.parametrize("batch_norm", ["ghost", "frozen"])
def test_the_chunk_is_free_where_statistics_are_not_of_it(tmp_path: Path, batch_norm: str) -> None:
    training_folder.open_run(config(tmp_path, batch_norm))
    (tmp_path / "run.json").write_text("{}")  # the run has begun
    training_folder.check_folder(config(tmp_path, batch_norm, chunk=64, speed="compiled"))


@pytest.mark.parametrize("batch_norm", ["local", "sync"])
def test_the_chunk_stays_where_batch_norm_has_its_statistics(tmp_path: Path, batch_norm: str) -> None:
    training_folder.open_run(config(tmp_path, batch_norm))
    (tmp_path / "run.json").write_text("{}")  # the run has begun
    training_folder.check_folder(config(tmp_path, batch_norm, speed="compiled"))
    with pytest.raises(UsageError, match=r"this run has loop\.chunk = 32, not 64"):
        training_folder.check_folder(config(tmp_path, batch_norm, chunk=64))


def test_a_run_that_is_older_than_a_setting_goes_on_with_its_default_alone(tmp_path: Path) -> None:
    begun = config(tmp_path, "ghost")
    training_folder.open_run(begun)
    (tmp_path / "run.json").write_text("{}")  # the run has begun
    settings = tmp_path / "config.toml"
    lines = settings.read_text(encoding="utf-8").splitlines(keepends=True)
    older = [line for line in lines if not line.startswith("normalisation")]
    settings.write_text("".join(older), encoding="utf-8")
    training_folder.check_folder(begun)
    other = {"architecture": "vit_b16", "normalisation": "imagenet"}
    tower = begun.image_tower.model_copy(update=other)
    with pytest.raises(UsageError, match=r"this run has image_tower\."):
        training_folder.check_folder(begun.model_copy(update={"image_tower": tower}))
