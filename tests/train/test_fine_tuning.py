"""Fine-tuning on classes: towers of other runs, frozen or not, and what is learned on top."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from altalign import cli
from altalign.errors import UsageError
from altalign.settings.common import dump
from altalign.train.data.batches import Batch
from altalign.train.exchange import encoders
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import TrainConfig
from altalign.train.step.learner import ClassLearner
from tests.support.run_folders import pairs, write_run
from tests.train.test_training_run import TORCHRUN, WATCHDOG_S, started, written

pytestmark = pytest.mark.trained

COLOURS = {"blue_kite": (40, 60, 200), "green_kite": (40, 190, 60), "red_kite": (200, 50, 40)}
TOWER = {"architecture": "b0", "width": 0.25, "depth": 0.25, "ghost_group": 4, "batch_norm_momentum": 0.5}
STEPS = 24


def write_folders(folder: Path, number: int, *, seed: int = 0) -> str:
    """So many images of each of three classes, told apart by their colour."""
    generator = torch.Generator().manual_seed(seed)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for place in range(number):
            noise = torch.randint(-30, 30, (36, 36, 3), generator=generator)
            pixels = (torch.tensor(colour) + noise).clamp(0, 255).to(torch.uint8)
            file = io.BytesIO()
            Image.fromarray(pixels.numpy()).save(file, "PNG")
            (folder / name / f"{place}.png").write_bytes(file.getvalue())
    return str(folder)


def write_config(folder: Path, name: str, **changed: dict[str, Any]) -> str:
    """Settings of a small classifier of these images."""
    values: dict[str, dict[str, Any]] = {
        "run": {"folder": str(folder / name)},
        "data": {"resize_px": 36, "crop_px": 32, "workers": 0},
        "image_tower": TOWER,
        "optimizer": {"name": "sgd", "weight_decay": 0.0},
        "schedule": {"steps": STEPS, "warmup_steps": 2, "peak": 0.05, "decay": "cosine"},
        "loop": {"global_batch": 12, "chunk": 8, "precision": "float32", "device": "cpu", "log_every": 1},
        "classification": {"train": str(folder / "train"), "test": str(folder / "test")},
    }
    values = {section: {**values.get(section, {}), **changed.get(section, {})} for section in {**values, **changed}}
    path = folder / f"{name}.toml"
    path.write_text(dump(values), encoding="utf-8")
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folders(tmp_path / "train", 8)
    write_folders(tmp_path / "test", 4, seed=1)
    return tmp_path


def model(run: Path, step: int = STEPS) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"step-{step:07}" / "model.safetensors")


def accuracy(run: Path, step: int = STEPS) -> float:
    found = json.loads((run / "eval" / f"step-{step:07}" / "metrics.json").read_text())["classification/test"]
    assert (found["images"], found["classes"], found["undecodable"]) == (12, 3, 0)
    return found["top1"]


@pytest.mark.everyday
def test_classes_are_learned_and_measured_and_measured_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(folder, "tuned", optimizer={"name": "adamw"}, schedule={"peak": 0.01})
    assert cli.main(["train", config]) == 0
    top1 = accuracy(folder / "tuned")
    assert top1 >= 75  # of 33 by chance; the last images depend on how a CPU rounds
    lines = [json.loads(line) for line in (folder / "tuned" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert {"train_top1", "rate", "gradient_norm"} <= steps[0].keys()
    before = (folder / "tuned" / "eval" / "step-0000024" / "metrics.json").read_text()
    assert cli.main(["eval", config]) == 0
    assert (folder / "tuned" / "eval" / "step-0000024" / "metrics.json").read_text() == before
    assert f"top-1 {top1:.2f} %" in capsys.readouterr().out


def test_a_run_that_goes_on_has_the_weights_of_one_that_never_stopped(folder: Path) -> None:
    assert cli.main(["train", write_config(folder, "whole")]) == 0
    config = write_config(folder, "parts", loop={"checkpoint_every": 10})
    assert cli.main(["train", config]) == 0
    for step in (20, STEPS):
        for place in (folder / "parts" / "checkpoints").glob(f"step-{step:07}/*"):
            place.unlink()
        (folder / "parts" / "checkpoints" / f"step-{step:07}").rmdir()
    assert cli.main(["train", config]) == 0
    whole, parts = model(folder / "whole"), model(folder / "parts")
    assert all(torch.equal(values, parts[name]) for name, values in whole.items())


def test_a_frozen_tower_stays_and_its_linear_layer_learns_by_lars(folder: Path) -> None:
    """ZeroVL's linear probe: the tower of a dual encoder, frozen, and LARS."""
    write_run(folder / "curated", pairs(60, images=30))
    assert cli.main(["train", written(folder, image_tower={"embedding_width": 0, "batch_norm_momentum": 0.5})]) == 0
    trained = folder / "trained"
    tower = {**TOWER, "weights": f"run:{trained}", "frozen": True}  # momentum is no part of the weights
    optimizer = {"name": "lars", "trust_excludes": ["norm", "bias"]}
    schedule = {"peak": 20.0, "steps": 60, "warmup_steps": 6}
    config = write_config(folder, "probe", image_tower=tower, optimizer=optimizer, schedule=schedule)
    assert cli.main(["train", config]) == 0
    before, after = model(trained, step=8), model(folder / "probe", step=60)
    names = [name for name in after if name.startswith("image_tower.")]
    assert names
    assert all(torch.equal(before[name], after[name]) for name in names)
    assert accuracy(folder / "probe", step=60) > 60


def test_all_layers_go_on_from_the_trained_layer_at_rates_of_their_own(folder: Path) -> None:
    assert cli.main(["train", write_config(folder, "head", image_tower={**TOWER, "frozen": True})]) == 0
    tower = {**TOWER, "batch_norm": "frozen", "weights": f"run:{folder / 'head'}"}
    config = write_config(
        folder,
        "all",
        run={"folder": str(folder / "all"), "seed": 1},
        image_tower=tower,
        optimizer={"name": "sgd", "weight_decay": 0.0, "rate_factors": {"image_tower": 0.1}},
        schedule={"steps": 1, "warmup_steps": 1, "peak": 0.1},
    )
    assert cli.main(["train", config]) == 0
    before, after = model(folder / "head"), model(folder / "all", step=1)
    statistics = [name for name in before if name.endswith(("running_mean", "running_var"))]
    assert all(torch.equal(before[name], after[name]) for name in statistics)
    assert not torch.equal(before["head.weight"], after["head.weight"])
    tower = [name for name in before if name.startswith("image_tower.")]
    assert not all(torch.equal(before[name], after[name]) for name in tower)
    torch.testing.assert_close(after["head.weight"], before["head.weight"], rtol=0, atol=5e-3)  # 0.01 is a first weight


def test_a_classifier_is_no_dual_encoder(folder: Path) -> None:
    assert cli.main(["train", write_config(folder, "tuned")]) == 0
    with pytest.raises(UsageError, match="a classifier, which has no captions"):
        encoders.opened(str(folder / "tuned"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"classification": {"train": "a", "test": ""}}, "train or test, and not both"),
        ({"evaluation": {"retrieval": [{"name": "a", "path": "b"}]}}, "are of captions"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig.model_validate({"classification": {"train": "a", "test": "b"}, **changed})


def batch_of(number: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (number, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.randint(3, (number, 1), generator=generator)
    keys = [f"{place:032x}" for place in range(number)]
    return Batch(keys, ["web"] * number, [0] * number, images, labels, torch.ones(number, 1, dtype=torch.bool))


def learner(ranks: Ranks, *, chunk: int, batch_norm: str = "ghost") -> ClassLearner:
    config = TrainConfig.model_validate(
        {
            "image_tower": {**TOWER, "batch_norm": batch_norm},
            "optimizer": {"name": "sgd"},
            "schedule": {"steps": 5, "warmup_steps": 0, "peak": 0.1},
            "loop": {"global_batch": 16, "chunk": chunk, "precision": "float32", "device": "cpu"},
            "classification": {"train": "a", "test": "b", "label_smoothing": 0.1},
        }
    )
    return ClassLearner(config, classes=3, ranks=ranks)


def test_two_ranks_learn_what_one_does(folder: Path) -> None:
    values = {"loop": {"global_batch": 16}, "schedule": {"steps": 4, "warmup_steps": 1}}
    assert cli.main(["train", write_config(folder, "one", **values)]) == 0
    config = write_config(folder, "two", **values)
    process = started(["torch.distributed.run", "--nproc-per-node", "2", *TORCHRUN, config])
    out, said = process.communicate(timeout=WATCHDOG_S)
    assert process.returncode == 0, (out, said)
    one, two = model(folder / "one", step=4), model(folder / "two", step=4)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=0, atol=1e-4, msg=name)
    assert accuracy(folder / "two", step=4) == pytest.approx(accuracy(folder / "one", step=4), abs=9)


def test_the_loss_is_that_of_a_plain_loop_and_chunks_do_not_change_the_step() -> None:
    alone = Ranks(0, 1, torch.device("cpu"))
    batch, whole, chunks = batch_of(16), learner(alone, chunk=16), learner(alone, chunk=4)
    whole.model.train()
    with torch.no_grad():
        logits = whole.model(batch.images).double()
    expected = 0.0
    for row, label in zip(logits.tolist(), batch.tokens[:, 0].tolist(), strict=True):
        normaliser = torch.tensor(row, dtype=torch.float64).logsumexp(0).item()
        targets = [0.1 / 3 + (0.9 if place == label else 0.0) for place in range(3)]
        expected -= sum(target * (value - normaliser) for target, value in zip(targets, row, strict=True)) / 16
    found = whole.step(1, batch)
    assert found["loss"] == pytest.approx(expected, abs=1e-5)
    assert chunks.step(1, batch)["loss"] == pytest.approx(found["loss"], abs=1e-5)
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(chunks.model.state_dict()[name], value, rtol=0, atol=1e-5, msg=name)
