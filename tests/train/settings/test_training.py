"""The configs that ship are read, and say what has to be said before a run."""

from pathlib import Path
from typing import Any

import pytest

from altalign.errors import UsageError
from altalign.train.settings.sweep import SweepConfig
from altalign.train.settings.training import TrainConfig

CONFIGS = sorted(Path(__file__).parents[3].glob("configs/*.toml"))
STARTS = ("align-", "nlip-", "probe-", "train-", "tune-", "zerovl-")
OF_TRAINING = [path for path in CONFIGS if path.name.startswith(STARTS)]


@pytest.mark.parametrize("path", OF_TRAINING, ids=lambda path: path.stem)
def test_a_config_is_read_and_its_header_has_its_command(path: Path) -> None:
    config = (SweepConfig if path.stem.endswith("-vtab") else TrainConfig).load(path)
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


def test_configs_of_fine_tuning_have_the_papers_numbers() -> None:
    vtab, *paths = sorted(OF_TRAINING, key=lambda path: not path.stem.endswith("-vtab"))
    of = {path.stem: TrainConfig.load(path) for path in paths if path.name.startswith(("tune-", "probe-"))}
    sweep = SweepConfig.load(vtab)
    assert (sweep.sweep.trials, sweep.optimizer.beta1) == (50, 0.9)
    retrieval = of["tune-align-flickr30k"]
    assert (retrieval.loop.global_batch, retrieval.schedule.peak, retrieval.schedule.steps) == (2_048, 1e-5, 3_000)
    assert (retrieval.schedule.decay, retrieval.optimizer.name) == ("linear", "lamb")
    head, whole = of["tune-align-imagenet-head"], of["tune-align-imagenet"]
    for config, rate, sides in ((head, 0.1, (289, 360)), (whole, 0.01, (475, 600))):
        assert (config.schedule.peak, config.data.crop_px, config.evaluation.crop_px) == (rate, *sides)
        assert (config.optimizer.name, config.optimizer.beta1, config.optimizer.weight_decay) == ("sgd", 0.9, 0.0)
        assert (config.loop.global_batch, config.schedule.decay) == (1_024, "step")
    assert head.image_tower.frozen
    assert whole.optimizer.rate_factors == {"image_tower": 0.1}
    probe = of["probe-zerovl-imagenet"]
    assert (probe.optimizer.name, probe.schedule.peak, probe.loop.global_batch) == ("lars", 6.4, 16_384)
    images = 1_281_167
    assert probe.schedule.steps * 16_384 == pytest.approx(90 * images, rel=1e-3)
    assert probe.schedule.warmup_steps * 16_384 == pytest.approx(10 * images, rel=1e-3)
    assert head.schedule.every * 1_024 == pytest.approx(30 * images, rel=1e-3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"loss": {"name": "sigmoid", "mixup": 0.1}},
            'here [loss]: name = "sigmoid" with mixup = 0.1, of softmax alone; leave it out',
        ),
        ({"loss": {"name": "sigmoid", "label_smoothing": 0.1}}, "with label_smoothing = 0.1, of softmax alone"),
        (
            {"loss": {"name": "sigmoid"}, "noise": {"estimates": "losses.parquet", "smoothing": 0.5}},
            '[noise] smoothing with [loss] name = "sigmoid", of softmax alone; leave one out',
        ),
        ({"evaluation": {"averaged": True}}, "averaged = true with [optimizer] average = 0: no average is kept"),
        (
            {"loop": {"speed": "recorded"}, "image_tower": {"frozen_groups": 2}},
            'speed = "recorded" with [image_tower] frozen_groups: they do not go together',
        ),
        ({"data": {"soft_cap": 0.15}}, "here [data]: soft_cap without weight_by, whose draws it caps; leave it out"),
        (
            {"data": {"caption_shares": {"a": 1}}},
            'here [data]: caption_shares without captions = "drawn"; leave it out',
        ),
        ({"optimizer": {"layer_decay": {"image_tower": 1.5}}}, "[optimizer] layer_decay, image_tower = 1.5: too large"),
    ],
)
def test_settings_that_do_not_go_together_are_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        TrainConfig.from_values(given, where="here")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sigmoids_begin_as_siglips() -> None:
    loss = TrainConfig.from_values({"loss": {"name": "sigmoid"}}, where="here").loss
    assert (loss.temperature, loss.bias, loss.label_smoothing) == (0.1, -10.0, 0.0)
    assert TrainConfig.from_values({"loss": {"name": "sigmoid", "temperature": 0.5}}, where="x").loss.temperature == 0.5
