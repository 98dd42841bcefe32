"""VTAB by fine-tuning: what is drawn, which trial is chosen, and what goes on where it was stopped."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from altalign import cli
from altalign.settings.common import dump
from altalign.train.run import checkpoints
from altalign.train.settings.sweep import SweepSettings
from altalign.train.sweep import best

pytestmark = pytest.mark.trained

STEPS = 12
TOWER = {"architecture": "b0", "width": 0.25, "depth": 0.25, "ghost_group": 4, "batch_norm_momentum": 0.5}
COLOURS = ((200, 50, 40), (40, 190, 60), (40, 60, 200))
DRAWS: dict[str, Any] = {"schedule": {"peak": {"log": [1e-5, 0.1]}}, "data": {"flip": {"of": [True, False]}}}


def write_task(folder: Path, *, seed: int) -> None:
    """Images of three colours, and their lists; the third class has none among the first examples."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    for part, labels in {"train800": [0, 1] * 6, "val200": [0, 1, 2] * 2, "test": [0, 1, 2] * 3}.items():
        lines = []
        for place, label in enumerate(labels):
            noise = torch.randint(-40, 40, (32, 32, 3), generator=generator)
            pixels = (torch.tensor(COLOURS[label]) + noise).clamp(0, 255).to(torch.uint8)
            Image.fromarray(pixels.numpy()).save(folder / f"{part} {place}.png")
            lines.append(f"{part} {place}.png {label}\n")
        (folder / f"{part}.txt").write_text("".join(lines))


def write_config(folder: Path, *, trials: int = 3, draws: dict[str, Any] = DRAWS, **sweep: Any) -> str:
    values = {
        "run": {"folder": str(folder / "sweep")},
        "data": {"resize_px": 32, "crop_px": 32, "workers": 0},
        "image_tower": TOWER,
        "optimizer": {"name": "adamw", "weight_decay": 0.0},
        "schedule": {"steps": STEPS, "warmup_steps": 1},
        "loop": {"global_batch": 8, "chunk": 8, "precision": "float32", "device": "cpu"},
        "sweep": {"path": str(folder / "vtab"), "trials": trials, "draws": draws, **sweep},
    }
    path = folder / "sweep.toml"
    path.write_text(dump(values), encoding="utf-8")
    return str(path)


def top1(run: Path) -> float:
    return json.loads((run / "eval" / f"step-{STEPS:07}" / "metrics.json").read_text())["classification/test"]["top1"]


def attempts(folder: Path) -> dict[str, int]:
    """How often each training was begun."""
    return {
        str(path.parent.relative_to(folder)): len(json.loads(path.read_text())["attempts"])
        for path in folder.rglob("run.json")
    }


@pytest.mark.everyday
def test_the_best_trial_of_each_task_is_trained_on_all_examples_and_a_stopped_sweep_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, task in enumerate(("eurosat", "kitti")):
        write_task(tmp_path / "vtab" / task, seed=seed)
    config, out = write_config(tmp_path), tmp_path / "sweep"

    saved, save = list[Path](), checkpoints.save

    def stopped(folder: str, *rest: Any, **named: Any) -> None:  # by the disk, after three trainings
        if len(saved) == 3:
            raise KeyboardInterrupt
        save(folder, *rest, **named)
        saved.append(Path(folder))

    monkeypatch.setattr(checkpoints, "save", stopped)
    assert cli.main(["train", "--sweep", config]) == 130
    monkeypatch.setattr(checkpoints, "save", save)
    assert not (out / "sweep.json").exists()
    assert cli.main(["train", "--sweep", config]) == 0

    assert {run for run, number in attempts(out).items() if number > 1} == {"eurosat/best-" + run_of(out, "eurosat", 0)}
    found = json.loads((out / "sweep.json").read_text())
    tests = []
    for task in ("eurosat", "kitti"):
        validation = [top1(out / task / f"trial-{trial:03}") for trial in range(3)]
        assert len(set(validation)) > 1
        chosen = 0
        for trial in range(1, 3):  # the plain loop
            if validation[trial] > validation[chosen]:
                chosen = trial
        of = found["tasks"][task]
        assert (of["validation"], of["trial"]) == (validation, chosen)
        assert of["test"] == [top1(out / task / f"best-{chosen:03}-seed-{seed}") for seed in range(3)]
        listed = (out / task / "train1000.txt").read_text().splitlines()
        assert len(listed) == 18
        assert (out / task / "classes.txt").read_text() == "0\n1\n2\n"
        tests.append(of["test"])
    means = [(a + b) / 2 for a, b in zip(*tests, strict=True)]
    there = found["means"]["mean_there"]
    assert there == pytest.approx({"mean": sum(means) / 3, "deviation": statistics.stdev(means)})
    assert found["means"].keys() == {"mean_there"}  # no group is whole
    assert not list(out.rglob("*.safetensors"))
    assert not list(out.rglob("*.tar"))
    assert "2 of 19 tasks" in capsys.readouterr().out

    before = attempts(out)
    assert cli.main(["train", "--sweep", config]) == 0
    assert attempts(out) == before
    other = write_config(tmp_path, draws={"schedule": {"peak": {"log": [1e-4, 0.1]}}})
    assert cli.main(["train", "--sweep", other]) == 2
    assert "this run has " in capsys.readouterr().err


def run_of(out: Path, task: str, seed: int) -> str:
    found = json.loads((out / "sweep.json").read_text())
    return f"{found['tasks'][task]['trial']:03}-seed-{seed}"


def test_a_trial_that_diverges_is_not_chosen_and_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_task(tmp_path / "vtab" / "dtd", seed=0)
    draws = {"schedule": {"peak": {"of": [1e30, 0.01]}}, "optimizer": {"name": {"of": ["sgd"]}}}
    settings = SweepSettings(path="vtab", draws=draws)
    peaks = [settings.drawn(trial, seed=0)["schedule"]["peak"] for trial in range(6)]
    assert len(set(peaks)) == 2
    assert cli.main(["train", "--sweep", write_config(tmp_path, trials=6, draws=draws)]) == 0
    of = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["tasks"]["dtd"]
    assert [value is None for value in of["validation"]] == [peak == 1e30 for peak in peaks]
    assert peaks[of["trial"]] == 0.01
    assert capsys.readouterr().err.count("the loss is") == peaks.count(1e30)
    assert cli.main(["train", "--sweep", write_config(tmp_path, trials=6, draws=draws)]) == 0


def test_a_trial_is_the_same_among_few_and_many_and_in_any_order() -> None:
    reversed_draws = {section: dict(reversed(of.items())) for section, of in reversed(DRAWS.items())}
    few, many = SweepSettings(path="a", draws=DRAWS, trials=2), SweepSettings(path="a", draws=reversed_draws)
    assert many.trials == 50
    assert [few.drawn(trial, seed=0) for trial in range(2)] == [many.drawn(trial, seed=0) for trial in range(2)]
    assert few.drawn(0, seed=0) != few.drawn(1, seed=0)


def test_logarithms_of_drawn_rates_are_even() -> None:
    settings = SweepSettings(path="a", draws=DRAWS)
    drawn = [settings.drawn(trial, seed=0)["schedule"]["peak"] for trial in range(2_000)]
    assert all(1e-5 <= float(value) <= 0.1 for value in drawn)
    decades = [math.floor(math.log10(float(value))) for value in drawn]
    assert all(400 < decades.count(decade) < 600 for decade in range(-5, -1))
    flips = [settings.drawn(trial, seed=0)["data"]["flip"] for trial in range(2_000)]
    assert 900 < sum(map(bool, flips)) < 1_100


@pytest.mark.parametrize(
    ("validation", "expected"),
    [([1.0, 3.0, 2.0], 1), ([2.0, 2.0], 0), ([None, 0.0], 1), ([None, None], None)],
)
def test_the_highest_is_the_best_and_the_first_of_equal_ones(
    validation: list[float | None], expected: int | None
) -> None:
    assert best(validation) == expected


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"draws": {}}, "at least 1"),
        ({"draws": {"run": {"seed": {"of": [1, 2]}}}}, "the sweep sets it itself"),
        ({"draws": {"classification": {"test": {"of": ["a"]}}}}, "the sweep sets it itself"),
        ({"draws": {"schedule": {"peak": {"log": [1.0, 0.1]}}}}, "the lower first"),
        ({"draws": {"schedule": {"peak": {}}}}, "one of both"),
    ],
)
def test_draws_that_say_nothing_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SweepSettings.model_validate({"path": "a", "draws": DRAWS, **changed})


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ({"draws": {"schedule": {"summit": {"of": [1]}}}}, "[schedule] summit: no such setting"),
        ({"tasks": ["svhn"]}, "svhn is not in"),
        ({"path": "nowhere"}, "no folder of VTAB"),
    ],
)
def test_what_does_not_fit_is_one_line_before_any_training(
    tmp_path: Path, sweep: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_task(tmp_path / "vtab" / "dtd", seed=0)
    assert cli.main(["train", "--sweep", write_config(tmp_path, **sweep)]) in (1, 2)
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("run.json"))


def test_a_dry_run_prints_what_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_task(tmp_path / "vtab" / "dtd", seed=0)
    assert cli.main(["train", "--sweep", write_config(tmp_path), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "schedule.peak" in out
    assert "6 trainings of 1 tasks: dtd" in out
    assert not (tmp_path / "sweep").exists()
