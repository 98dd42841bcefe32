"""Training from settings to an evaluated model: interrupted and continued, on other numbers of processes, and told what
is wrong.
"""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from altalign import cli
from altalign.machine.cores import cores
from altalign.settings.common import dump
from altalign.train import loop
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import TrainConfig
from tests.support.run_folders import Pair, pairs, picture, write_run, write_score
from tests.warm.python import warm

ROOT = Path(__file__).parents[2]
STEPS = 8
AT = random.Random(int(os.environ.get("ALTALIGN_KILLS_SEED", "1")))  # when runs are killed
WATCHDOG_S = 800
TORCHRUN = ("--standalone", "-m", "altalign", "train")


def settings(folder: Path, **changed: Mapping[str, Any]) -> dict[str, Any]:
    """A run that a CPU does in seconds."""
    values: dict[str, dict[str, Any]] = {
        "run": {"folder": str(folder / "trained")},
        "data": {"runs": [str(folder / "curated")], "resize_px": 36, "crop_px": 32, "workers": 0, "held_out": 0.2},
        "tokenizer": {"vocabulary_size": 80, "tokens_at_most": 16},
        "image_tower": {"architecture": "b0", "width": 0.25, "depth": 0.25, "embedding_width": 16, "ghost_group": 4},
        "text_tower": {"layers": 1, "width": 16, "heads": 2},
        "schedule": {"steps": STEPS, "warmup_steps": 2, "peak": 5e-3},
        "loop": {
            "global_batch": 16,
            "chunk": 8,
            "precision": "float32",
            "device": "cpu",
            "checkpoint_every": 3,
            "log_every": 1,
        },
        "evaluation": {"retrieval": [{"name": "held", "held_out": True}]},
    }
    return {section: {**values.get(section, {}), **changed.get(section, {})} for section in {**values, **changed}}


def written(folder: Path, **changed: Mapping[str, Any]) -> str:
    path = folder / "train.toml"
    path.write_text(dump(settings(folder, **changed)), encoding="utf-8")
    return str(path)


@pytest.fixture
def curated(tmp_path: Path) -> Path:
    """A folder with a finished run of 60 pairs of 30 images."""
    write_run(tmp_path / "curated", pairs(60, images=30))
    return tmp_path


def weights(folder: Path, step: int = STEPS) -> list[str]:
    """Digests of model and optimiser after so many steps."""
    place = folder / "trained" / "checkpoints" / f"step-{step:07}"
    return [
        hashlib.sha256((place / name).read_bytes()).hexdigest()
        for name in ("model.safetensors", "optimizer.safetensors")
    ]


def lines(folder: Path) -> list[dict[str, Any]]:
    """Metrics of steps."""
    return [line for line in every_line(folder) if "loss" in line]


def every_line(folder: Path) -> list[dict[str, Any]]:
    """Those of evaluations too."""
    path = folder / "trained" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measured(run: Path, step: int = STEPS) -> dict[str, dict[str, float]]:
    """Metrics of a checkpoint."""
    return json.loads((run / "eval" / f"step-{step:07}" / "metrics.json").read_text())


def started(
    argv: list[str], *, folder: Path = ROOT, is_warm: bool = True, **environment: str
) -> "subprocess.Popen[str]":
    """A module as a program; `is_warm`: where its processes may begin with the trainer imported."""
    python = warm() if is_warm else sys.executable
    held = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON_EXEC": python, **environment}  # torchrun's, for its ranks
    return subprocess.Popen(
        [python, "-m", *argv], cwd=folder, env=held, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def reached(folder: Path, step: int, process: "subprocess.Popen[str]") -> None:
    """Wait until a run has written the metrics of a step."""
    until = time.monotonic() + WATCHDOG_S
    while not any(line["step"] >= step for line in lines(folder)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    write_run(folder / "curated", pairs(60, images=30))
    assert cli.main(["train", written(folder)]) == 0
    return folder


@pytest.mark.trained
def test_a_run_leaves_what_the_reference_says(uninterrupted: Path) -> None:
    run = uninterrupted / "trained"
    assert {path.name for path in run.iterdir()} >= {
        "config.toml",
        "tokenizer.json",
        "metrics.jsonl",
        "checkpoints",
        "run.json",
        "report.html",
        "eval",
    }
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "step-0000003",
        "step-0000006",
        "step-0000008",
    ]
    facts = json.loads((run / "run.json").read_text())
    state = json.loads((run / "checkpoints" / "step-0000008" / "state.json").read_text())
    assert facts["finished"]
    assert facts["manifests"] == state["manifests"]
    assert (state["step"], state["samples_seen"]) == (STEPS, STEPS * 16)
    found = measured(run)["retrieval/held"]
    assert found["captions"] + facts["pairs"] == 60
    assert [line["step"] for line in lines(uninterrupted)] == list(range(1, STEPS + 1))
    assert {"loss", "temperature", "rate", "samples_seen"} <= lines(uninterrupted)[0].keys()
    assert lines(uninterrupted)[0]["temperature"] == 1.0
    assert lines(uninterrupted)[-1]["temperature"] != 1.0
    assert list((run / "tensorboard").iterdir())
    assert every_line(uninterrupted)[-1]["retrieval/held/rsum"] == found["rsum"]


@pytest.mark.trained
def test_the_page_of_files_names_what_a_run_leaves_and_nothing_else(uninterrupted: Path) -> None:
    page = (ROOT / "docs" / "reference" / "training-files.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    numbered = ("checkpoints/", "eval/", "log/not", "index-until-")
    patterns = {re.sub(r"N+", "*", name) if name.startswith(numbered) else name for name in named}
    run = uninterrupted / "trained"
    left = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    assert {name for name in left if not any(fnmatch(name, pattern) for pattern in patterns)} == set()
    only_sometimes = {
        "undecodable.jsonl",
        "index-until-*/*",
        "packed/*",
        "log/not-finite-step-*-rank-R.json",
        "sweep.json",
        "checkpoints/step-*/moments/*",
        "checkpoints/step-*/average.safetensors",
    }
    of_other_commands = ("eval/features/", "noise/", "captions/", "index/captions.arrow", "phases/", "TASK/")
    there = {pattern for pattern in patterns if not pattern.startswith(of_other_commands)}
    assert {pattern for pattern in there if not any(fnmatch(name, pattern) for name in left)} == only_sometimes


@pytest.mark.trained
@pytest.mark.parametrize(
    ("at", "workers"),
    [
        pytest.param(AT.randint(1, STEPS - 1), 1, marks=pytest.mark.everyday),
        (AT.randint(1, STEPS - 1), 2),
    ],
)
def test_a_killed_run_that_goes_on_ends_bit_for_bit_as_one_that_was_not(
    uninterrupted: Path, curated: Path, at: int, workers: int
) -> None:
    config = written(curated, data={"workers": workers})
    process = started(["altalign", "train", config])
    reached(curated, at, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=WATCHDOG_S)  # until its workers have ended too, who have the other ends
    assert cli.main(["train", config, "--set", f"data.workers={2 - workers}"]) == 0
    assert weights(curated) == weights(uninterrupted)
    assert [line["step"] for line in lines(curated)] == list(range(1, STEPS + 1))
    assert [line["loss"] for line in lines(curated)] == [line["loss"] for line in lines(uninterrupted)]


@pytest.mark.trained
def test_a_training_by_scores_goes_on_as_it_began_and_not_with_other_scores(
    curated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, of = str(curated / "curated"), pairs(60, images=30)
    clean = {pair.key: {"clean": number % 8 / 8} for number, pair in enumerate(of)}
    write_score(run, "clean", clean, {"clean": pa.float32()})
    config = written(curated, data={"where": "clean <= 0.75", "weight_by": "clean"})
    assert cli.main(["train", config]) == 0
    assert "pairs are left by [data] where" in " ".join(capsys.readouterr().err.split())
    whole = weights(curated)
    for path in (curated / "trained" / "checkpoints").iterdir():
        if path.name != "step-0000003":
            shutil.rmtree(path)
    assert cli.main(["train", config]) == 0
    assert weights(curated) == whole
    lineage = json.loads((curated / "trained" / "run.json").read_bytes())
    assert list(lineage["scores"]) == [f"{run}/scores/clean"]
    shutil.rmtree(curated / "curated" / "scores")
    write_score(run, "clean", {key: {"clean": 0.5} for key in clean}, {"clean": pa.float32()})
    capsys.readouterr()
    assert cli.main(["train", config]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "scores of the data is not as this run began with" in said


@pytest.mark.trained
def test_where_the_device_decodes_a_run_goes_on_bit_for_bit_too(uninterrupted: Path, curated: Path) -> None:
    config = written(curated, data={"decoding": "device"})
    assert cli.main(["train", config]) == 0
    whole = weights(curated)
    for found, by_workers in zip(lines(curated), lines(uninterrupted), strict=True):
        assert found["loss"] == pytest.approx(by_workers["loss"], rel=0.02)  # pixels differ by a level
    for path in (curated / "trained" / "checkpoints").iterdir():
        if path.name != "step-0000003":
            shutil.rmtree(path)
    assert cli.main(["train", config]) == 0
    assert weights(curated) == whole


@pytest.mark.trained
def test_sigterm_saves_and_exits(uninterrupted: Path, curated: Path) -> None:
    config = written(curated, loop={"checkpoint_every": 1000}, schedule={"steps": 4000})
    process = started(["altalign", "train", config])
    reached(curated, 2, process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=WATCHDOG_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert "altalign: interrupted (SIGTERM); run the same command again, it continues" in said
    kept = sorted((curated / "trained" / "checkpoints").iterdir())
    assert len(kept) == 1
    assert (kept[0] / "manifest.json").is_file()
    assert json.loads((kept[0] / "state.json").read_text())["step"] == lines(curated)[-1]["step"]


@pytest.mark.trained
def test_two_ranks_learn_what_one_does_and_are_evaluated_on_the_way(uninterrupted: Path, curated: Path) -> None:
    config = written(curated, loop={"evaluate_every": 4})
    process = started(["torch.distributed.run", "--nproc-per-node", "2", *TORCHRUN, config])
    out, said = process.communicate(timeout=WATCHDOG_S)
    assert process.returncode == 0, (out, said)
    evaluations = [line for line in every_line(curated) if "loss" not in line]
    assert [line["step"] for line in evaluations] == [4, STEPS]
    assert 0 <= evaluations[0]["retrieval/held/rsum"] <= 600
    for one, two in zip(lines(uninterrupted), lines(curated), strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert two["temperature"] == pytest.approx(one["temperature"], rel=1e-5)
    assert json.loads((curated / "trained" / "run.json").read_text())["attempts"][0]["ranks"] == 2
    evaluated, alone = (measured(folder / "trained") for folder in (curated, uninterrupted))
    assert evaluated["retrieval/held"]["captions"] == alone["retrieval/held"]["captions"]


@pytest.mark.trained
def test_two_ranks_drop_out_what_one_does_where_one_has_the_longest_caption(tmp_path: Path) -> None:
    of = pairs(16)
    of[3] = Pair(of[3].image, "caption " + "of a kite " * 5, of[3].url)
    write_run(tmp_path / "curated", of)
    changed = {
        "data": {"held_out": 0.0},
        "text_tower": {"dropout": 0.5},
        "schedule": {"steps": 2, "warmup_steps": 1},
        "evaluation": {"retrieval": []},
    }
    for name, ranks in (("one", 1), ("two", 2)):
        config = written(tmp_path, run={"folder": str(tmp_path / name)}, **changed)
        process = started(["torch.distributed.run", "--nproc-per-node", str(ranks), *TORCHRUN, config])
        out, said = process.communicate(timeout=WATCHDOG_S)
        assert process.returncode == 0, (out, said)
    one, two = (
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert two == pytest.approx(one, rel=1e-5)


@pytest.mark.trained
def test_shares_that_cut_a_group_of_batch_norm_are_refused(curated: Path) -> None:
    config = written(curated, loop={"global_batch": 18})
    process = started(["torch.distributed.run", "--nproc-per-node", "2", *TORCHRUN, config])
    _, said = process.communicate(timeout=WATCHDOG_S)
    assert process.returncode
    assert (
        "[loop] global_batch = 18 gives 2 processes shares of 9 pairs, no multiples of [image_tower] ghost_group (4); "
        "give a multiple of 8" in said
    )


@pytest.mark.parametrize(("workers", "threads"), [(0, cores()), (1, max(1, cores() - 1)), (100, 1)])
def test_a_core_is_left_to_each_worker(
    curated: Path, workers: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS")
    chosen = TrainConfig.load(written(curated, data={"workers": workers}))
    said = loop.take_threads(chosen, Ranks(0, 1, torch.device("cpu")))
    try:
        assert torch.get_num_threads() == threads
        assert said.startswith(f"{threads} thread")
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        assert loop.take_threads(chosen, Ranks(0, 1, torch.device("cpu"))).startswith("1 thread and")
    finally:
        torch.set_num_threads(before)


@pytest.mark.trained
def test_it_overfits_64_pairs(tmp_path: Path) -> None:
    write_run(tmp_path / "curated", distinct_pairs(64))
    config = written(
        tmp_path,
        data={"held_out": 0.0, "flip": False, "resize_px": 32},
        image_tower={
            "architecture": "b0",
            "width": 0.25,
            "depth": 0.25,
            "embedding_width": 64,
            "ghost_group": 32,
            "batch_norm_momentum": 0.9,
        },
        text_tower={"layers": 1, "width": 32, "heads": 2, "dropout": 0.0},
        tokenizer={"vocabulary_size": 300, "tokens_at_most": 16},
        loss={"temperature": 0.1, "label_smoothing": 0.0},
        optimizer={"name": "adamw"},
        schedule={"steps": 200, "warmup_steps": 5, "peak": 5e-3},
        loop={"global_batch": 64, "chunk": 64, "checkpoint_every": 1000, "log_every": 20},
        evaluation={"retrieval": [{"name": "same", "path": str(tmp_path / "curated")}]},
    )
    assert cli.main(["train", config]) == 0
    found = measured(tmp_path / "trained", 200)["retrieval/same"]
    assert (found["image_to_text_r1"], found["text_to_image_r1"]) == (100.0, 100.0)


def distinct_pairs(count: int) -> list[Pair]:
    """Pairs whose captions have a word of their own."""
    return [
        Pair(picture(number, (32, 32)), f"picture of thing {number:03}", f"https://example.org/{number}.jpg")
        for number in range(count)
    ]


@pytest.mark.trained
def test_other_settings_are_refused_where_they_change_what_is_learned(
    uninterrupted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(uninterrupted / "train.toml")
    assert cli.main(["train", config, "--set", "loss.label_smoothing=0.2"]) == 2
    assert (
        "this run has loss.label_smoothing = 0.1, not 0.2; give it as it was, or choose another [run] folder"
        in capsys.readouterr().err
    )
    assert cli.main(["eval", config, "--set", "text_tower.layers=2"]) == 2
    assert "this run has text_tower.layers = 1, not 2" in capsys.readouterr().err


@pytest.mark.trained
def test_a_damaged_checkpoint_is_passed_over_and_named(
    uninterrupted: Path, curated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(curated)
    assert cli.main(["train", config]) == 0
    damaged = curated / "trained" / "checkpoints" / f"step-{STEPS:07}" / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    capsys.readouterr()
    assert cli.main(["eval", config, "--checkpoint", str(STEPS)]) == 1
    assert f"{damaged}: not as it was written" in capsys.readouterr().err
    assert cli.main(["train", config]) == 0
    assert "going on from the one before" in capsys.readouterr().err.replace("\n", " ")
    assert weights(curated) == weights(uninterrupted)


@pytest.mark.trained
def test_eval_measures_a_checkpoint_again(uninterrupted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = measured(uninterrupted / "trained")
    assert cli.main(["eval", str(uninterrupted / "train.toml")]) == 0
    assert cli.main(["eval", str(uninterrupted / "train.toml"), "--checkpoint", "3"]) == 0
    assert measured(uninterrupted / "trained") == before
    assert measured(uninterrupted / "trained", 3)["checkpoint"] == {"step": 3}
    capsys.readouterr()
    assert cli.main(["eval", str(uninterrupted / "train.toml"), "--checkpoint", "5"]) == 2
    assert "no checkpoint of step 5 (there: 3, 6, 8)" in capsys.readouterr().err


@pytest.mark.trained
def test_eval_needs_no_shards_but_those_of_its_sets(uninterrupted: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", pairs(20, images=10, first=100))
    before = measured(uninterrupted / "trained")
    assert "retrieval/held" in before
    values = settings(uninterrupted, evaluation={"retrieval": [{"name": "other", "path": other}]})
    (tmp_path / "eval.toml").write_text(dump(values))
    (uninterrupted / "curated").rename(uninterrupted / "elsewhere")
    try:
        assert cli.main(["eval", str(tmp_path / "eval.toml")]) == 0
    finally:
        (uninterrupted / "elsewhere").rename(uninterrupted / "curated")
    after = measured(uninterrupted / "trained")
    assert after.pop("retrieval/other")["images"] == 10
    assert after == before  # the other set keeps its metrics


@pytest.mark.trained
def test_a_loss_that_is_no_number_stops_the_run_and_names_its_pairs(
    curated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(
        curated, schedule={"steps": 30, "warmup_steps": 0, "peak": 1e30, "decay": "constant"}, optimizer={"name": "sgd"}
    )
    assert cli.main(["train", config]) == 1
    (named,) = (curated / "trained" / "log").glob("not-finite-step-*.json")
    facts = json.loads(named.read_text())
    assert len(facts["keys"]) == 16
    assert f"step {facts['step']}: the loss is" in capsys.readouterr().err


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(
    curated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", written(curated), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "8 steps of 16 pairs" in said
    assert "can be exported to " in said
    assert "image_tower" in said
    assert "MB of weights, gradients and moments" in said
    assert not (curated / "trained").exists()


@pytest.mark.parametrize(
    ("changed", "code", "message"),
    [
        ({"run": {"folder": "ftp://host/run"}}, 2, "no kind of storage that is known"),
        ({"run": {"folder": "https://host/run"}}, 2, "inputs alone can be on the web"),
        ({"data": {"runs": ["nowhere"]}}, 2, "nowhere"),
        ({"loop": {"device": "cuda"}}, 2, "torch sees no GPU here"),
        ({"loop": {"chunk": 6}}, 2, "is no multiple of"),
        ({"data": {"crop_px": 40}}, 2, "crop_px (40) is above resize_px (36)"),
        ({"loop": {"chunk": 6}, "image_tower": {"ghost_group": 8}}, 2, "is no multiple of"),
        ({"data": {"held_out": 0.0}}, 2, "no pair is held out"),
        (
            {"loop": {"global_batch": 64}},
            2,
            "[loop] global_batch = 64, and 42 pairs to train on: one would be its own negative; give fewer",
        ),
        ({"evaluation": {"crop_px": 40}}, 2, "[evaluation] crop_px (40) is above resize_px (36"),
        ({"evaluation": {"resize_px": 30}}, 2, "[evaluation] crop_px (32) is above resize_px (30"),
        ({"schedule": {"floor": 1e-2}}, 2, "floor (0.01) is above peak (0.005)"),
        ({"loss": {"temperature": 0.9, "temperature_range": [0.1, 0.5]}}, 2, "is not in temperature_range [0.1, 0.5]"),
        ({"loss": {"mixup": 0.1, "negatives": 0.5}}, 2, "a partner may be no candidate; give negatives = 1"),
        ({"loss": {"mixup": 0.1, "mixup_group": 3}}, 2, "is no multiple of [loss] mixup_group (3)"),
        ({"data": {"sampling": "one_source"}}, 2, 'is all there is; give more sources, or "random"'),
        ({"image_tower": {"token_drop": 0.25}}, 2, "token_drop = 0.25, and b0 is no ViT"),
        ({"image_tower": {"architecture": "vit_ti16"}, "data": {"crop_px": 30}}, 2, "no multiple of the patches"),
        (
            {"loop": {"speed": "recorded", "recompute": "large"}},
            2,
            'speed = "recorded" with recompute = "large": they do not go together; give one of them',
        ),
        ({"loop": {"speed": "recorded", "sharded": True}}, 2, 'speed = "recorded" with sharded = true'),
        ({"loop": {"speed": "recorded", "chunk": "auto"}}, 2, 'speed = "recorded" with chunk = "auto"'),
        (
            {"loop": {"speed": "recorded"}, "image_tower": {"frozen": True}},
            2,
            'speed = "recorded" with [image_tower] frozen = true',
        ),
        (
            {"loop": {"compile": True}},
            2,
            "[loop] compile: no such setting (there are: ",
        ),
        (
            {"loop": {"speed": "recorded", "chunk": 12}},
            2,
            "needs chunks of one size, and chunk = 12 does not divide the 16 pairs of a process; give one that does",
        ),
    ],
)
def test_a_wrong_setting_is_one_line(
    curated: Path, changed: dict[str, Any], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", written(curated, **changed)]) == code
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert said.startswith("altalign: ")
