"""The configs that ship are read, and say what has to be said before a run."""

from pathlib import Path

import pytest

from altalign.train.settings import TrainConfig

CONFIGS = sorted(Path(__file__).parents[2].glob("configs/*.toml"))
OF_TRAINING = [path for path in CONFIGS if path.name.startswith(("align-", "train-", "zerovl-"))]


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


@pytest.mark.parametrize("name", ["zerovl-14m-b16", "zerovl-baseline"])
def test_zerovls_configs_have_its_settings(name: str) -> None:
    config = TrainConfig.load(next(path for path in OF_TRAINING if path.stem == name))
    tower, data, text = config.image_tower, config.data, config.text_tower
    assert (tower.architecture, tower.embedding_width, text.width, text.layers) == ("vit_b16", 512, 768, 12)
    assert (data.crop_px, data.crop_area_at_least, data.word_corruption) == (224, 0.6, 0.2)
    assert (config.evaluation.resize_px, config.evaluation.keep_aspect_ratio) == (256, True)
    assert (config.optimizer.name, config.optimizer.weight_decay) == ("adamw", 1e-3)
    assert (config.schedule.peak, config.schedule.floor, config.schedule.decay) == (1e-4, 1e-5, "cosine")
    assert (config.loss.temperature, config.loss.directions, config.loss.label_smoothing) == (0.02, "mean", 0.0)
    is_full = name == "zerovl-14m-b16"
    assert (data.auto_augment, data.sampling, config.loss.mixup) == (
        (True, "one_source", 0.1) if is_full else (False, "random", 0.0)
    )
    assert (config.loop.global_batch, config.schedule.steps) == ((16_384, 17_371) if is_full else (1_024, 277_930))


def test_rates_are_in_proportion_to_the_batch_where_a_reference_is_given() -> None:
    given = {"loop": {"global_batch": 4_096, "chunk": 512}}
    assert TrainConfig.from_values(given, where="here").rate_scale == 1
    assert TrainConfig.from_values({**given, "schedule": {"reference_batch": 1_024}}, where="here").rate_scale == 4
