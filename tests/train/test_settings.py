"""The configs that ship are read, and say what has to be said before a run."""

from pathlib import Path

import pytest

from altalign.train.settings import TrainConfig

CONFIGS = sorted(Path(__file__).parents[2].glob("configs/*.toml"))
OF_TRAINING = [path for path in CONFIGS if path.name.startswith(("align-", "train-"))]


@pytest.mark.parametrize("path", OF_TRAINING, ids=lambda path: path.stem)
def test_a_config_is_read_and_its_header_has_its_command(path: Path) -> None:
    config = TrainConfig.load(path)
    assert config.run.folder == f"runs/{path.stem}"
    header = path.read_text(encoding="utf-8").partition("\n[run]")[0]
    assert f"configs/{path.name}" in header or "make train" in header


@pytest.mark.parametrize(
    "path", [path for path in OF_TRAINING if path.name.startswith("align-")], ids=lambda path: path.stem
)
def test_the_papers_configs_have_its_settings(path: Path) -> None:
    config = TrainConfig.load(path)
    assert (config.data.resize_px, config.data.crop_px, config.tokenizer.tokens_at_most) == (346, 289, 64)
    assert (config.loop.global_batch, config.image_tower.batch_norm, config.image_tower.ghost_group) == (
        16_384,
        "ghost",
        16,
    )
    assert (
        config.loss.temperature,
        config.loss.temperature_learned,
        config.loss.label_smoothing,
        config.loss.directions,
    ) == (1.0, True, 0.1, "sum")
    assert (config.optimizer.name, config.optimizer.weight_decay, config.schedule.warmup_steps) == (
        "lamb",
        1e-5,
        10_000,
    )
