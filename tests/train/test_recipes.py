"""A training with sigmoids, a moving average, frozen layers, rates by layer, and sets of several tasks.

Whole, gone on, and on two ranks.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from altalign import cli
from altalign.train.exchange.encoders import trained
from tests.support.run_folders import pairs, write_run
from tests.train.test_sets_evaluation import SETS, write_pictures
from tests.train.test_training_run import (
    STEPS,
    TORCHRUN,
    WATCHDOG_S,
    every_line,
    lines,
    measured,
    settings,
    started,
    weights,
    written,
)

pytestmark = pytest.mark.trained

DECAY = 0.75


def _write(folder: Path, **loop: object) -> str:
    changed = {
        "loss": {"name": "sigmoid"},
        "image_tower": {**settings(folder)["image_tower"], "frozen_groups": 2},
        "optimizer": {"name": "adamw", "average": DECAY, "layer_decay": {"image_tower": 0.5, "text_tower": 0.5}},
        "evaluation": {
            "retrieval": [{"name": "held", "held_out": True}],
            "sets": str(folder / "sets.toml"),
            "averaged": True,
        },
        "loop": {**settings(folder)["loop"], "checkpoint_every": 1, "keep_checkpoints": STEPS, **loop},
    }
    return written(folder, **changed)


def _tensors(folder: Path, name: str, step: int = STEPS) -> dict[str, torch.Tensor]:
    return load_file(folder / "trained" / "checkpoints" / f"step-{step:07}" / f"{name}.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    write_run(folder / "curated", pairs(60, images=30))
    write_pictures(folder)
    (folder / "sets.toml").write_text(SETS.format(folder=folder))
    assert cli.main(["train", _write(folder)]) == 0
    return folder


def test_an_average_is_that_of_the_weights_of_all_steps(whole: Path) -> None:
    average = _tensors(whole, "average", 1)
    for step in range(2, STEPS + 1):
        for name, weight in _tensors(whole, "model", step).items():
            average[name] = average[name].lerp(weight, 1 - DECAY) if weight.is_floating_point() else weight
        kept = _tensors(whole, "average", step)
        assert all(torch.equal(average[name], value) for name, value in kept.items())
    last = _tensors(whole, "model")
    assert not torch.equal(average["text_projection.weight"], last["text_projection.weight"])
    first = _tensors(whole, "model", 1)
    frozen = [name for name in last if name.startswith(("image_tower.conv_stem", "image_tower.blocks.0."))]
    assert frozen
    assert all(torch.equal(first[name], last[name]) for name in frozen)
    assert lines(whole)[0]["bias"] == -10.0
    assert lines(whole)[-1]["bias"] != -10.0


def test_a_run_that_goes_on_ends_bit_for_bit_as_one_that_was_not_stopped(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    for step in range(4, STEPS + 1):
        shutil.rmtree(tmp_path / "trained" / "checkpoints" / f"step-{step:07}")
    config = (whole / "train.toml").read_text()
    (tmp_path / "train.toml").write_text(config.replace(str(whole / "trained"), str(tmp_path / "trained")))
    assert cli.main(["train", str(tmp_path / "train.toml")]) == 0
    assert weights(tmp_path) == weights(whole)
    again, before = (_tensors(folder, "average") for folder in (tmp_path, whole))
    assert all(torch.equal(again[name], value) for name, value in before.items())


def test_what_is_evaluated_and_exported_is_the_average_where_asked(whole: Path, tmp_path: Path) -> None:
    run = whole / "trained"
    on_the_way = measured(run)["retrieval/held"]
    assert cli.main(["eval", str(whole / "train.toml")]) == 0
    assert measured(run)["retrieval/held"] == pytest.approx(on_the_way)
    ours = [measured(run)[name] for name in ("zero_shot/colours", "knn/colours")]
    assert every_line(whole)[-1]["zero_shot/colours/top1"] == ours[0]["top1"]
    assert cli.main(["eval", str(run), "--sets", str(whole / "sets.toml")]) == 1
    for each, name in zip(ours, ("zero_shot/colours", "knn/colours"), strict=True):
        assert measured(run)[name] == pytest.approx(each)
    averaged, last = trained(str(run)), trained(str(run), evaluation={"averaged": False})
    assert averaged.digest != last.digest
    for of, name in ((averaged, "average"), (last, "model")):
        kept = _tensors(whole, name)
        assert all(torch.equal(value, kept[key]) for key, value in of.model.state_dict().items())
    assert cli.main(["export", str(run), str(tmp_path / "onnx"), "--to", "onnx", "--averaged"]) == 0
    assert json.loads((tmp_path / "onnx" / "lineage.json").read_text())["model_sha256"] == averaged.digest


def test_two_ranks_with_parts_of_the_weights_keep_the_average_of_one(whole: Path, tmp_path: Path) -> None:
    """Evaluated on the way, by the average, after which training goes on as before."""
    for name in ("curated", "test", "train"):
        shutil.copytree(whole / name, tmp_path / name)
    (tmp_path / "sets.toml").write_text(SETS.format(folder=tmp_path))
    config = _write(tmp_path, sharded=True, evaluate_every=3)
    shared = Path(config).read_text().replace("workers = 2", "workers = 0")
    Path(config).write_text(shared)
    process = started(["torch.distributed.run", "--nproc-per-node", "2", *TORCHRUN, config])
    out, said = process.communicate(timeout=WATCHDOG_S)
    assert process.returncode == 0, (out, said)
    assert said.count("knn/nothing: left out: nothing is at") == 3
    evaluations = [line for line in every_line(tmp_path) if "loss" not in line]
    assert [line["step"] for line in evaluations] == [3, 6, STEPS]
    names = {"retrieval/held/rsum", "zero_shot/colours/top1", "knn/colours/r1"}
    assert all(names <= line.keys() for line in evaluations)
    for one, two in zip(lines(whole), lines(tmp_path), strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert two["bias"] == pytest.approx(one["bias"], rel=1e-4)
    average, expected = _tensors(tmp_path, "average"), _tensors(whole, "average")
    for name, value in expected.items():
        torch.testing.assert_close(average[name], value, rtol=2e-2, atol=2e-3, msg=name)


def test_sets_that_are_none_or_have_a_name_twice_are_one_line_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = _write(tmp_path)
    held = '[[set]]\ntask = "retrieval"\nname = "held"\nheld_out = true\n'
    for sets, message in (("", "no such settings file"), (held, "retrieval/held is in [[evaluation.retrieval]] too")):
        if sets:
            (tmp_path / "sets.toml").write_text(sets)
        assert cli.main(["train", config]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
        assert not (tmp_path / "trained").exists()
