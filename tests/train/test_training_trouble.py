"""Trouble around a training run: settings at odd values, and run folders that were changed by hand."""

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from altalign import cli
from tests.support.run_folders import pairs, write_run
from tests.train.test_training_run import WATCHDOG_S, reached, settings, started, written

STEPS = 4
SHORT: dict[str, Any] = {
    "schedule": {"steps": STEPS, "warmup_steps": 1},
    "loop": {"global_batch": 8, "chunk": 8, "checkpoint_every": 2},
}


def short(folder: Path, **changed: Any) -> str:
    """The settings of the shortest run that has two checkpoints."""
    base = settings(folder)
    merged = {
        section: {**base.get(section, {}), **SHORT.get(section, {}), **changed.get(section, {})}
        for section in {**base, **SHORT, **changed}
    }
    return written(folder, **merged)


@pytest.fixture
def curated(tmp_path: Path) -> Path:
    write_run(tmp_path / "curated", pairs(60, images=30))
    return tmp_path


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    write_run(folder / "curated", pairs(60, images=30))
    assert cli.main(["train", short(folder)]) == 0
    return folder


@pytest.fixture
def stopped(trained_once: Path, tmp_path: Path) -> Path:
    """A run whose last checkpoint is not there yet."""
    shutil.copytree(trained_once / "trained", tmp_path / "trained")
    shutil.rmtree(tmp_path / "trained" / "checkpoints" / f"step-{STEPS:07}")
    return tmp_path / "trained"


def command(trained_once: Path, stopped: Path, verb: str = "train") -> list[str]:
    return [verb, str(trained_once / "train.toml"), "--set", f"run.folder={stopped}"]


def weights(run: Path) -> str:
    return hashlib.sha256((run / "checkpoints" / f"step-{STEPS:07}" / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("tokenizer", "vocabulary_size", 10**9, "too large; give 10000000 or less"),
        ("text_tower", "layers", 10**8, "too large; give 1000 or less"),
        ("image_tower", "depth", 1e9, "too large; give 100.0 or less"),
        ("loss", "temperature", 1e-300, "too small; give 1e-06 or more"),
        ("optimizer", "epsilon", 1e-300, "too small; give 1e-30 or more"),
        ("schedule", "peak", 1e300, "too large; give 1e+30 or less"),
        ("loop", "global_batch", 2**62, "too large; give 1073741824 or less"),
        ("run", "folder", "a\0b", "a path with a zero byte"),
        ("data", "held_out", 1e-9, "[data] held_out = 1e-09 keeps no image of these runs; give a larger share"),
    ],
)
def test_a_setting_at_an_odd_value_is_refused_in_a_line_before_any_step(
    curated: Path, section: str, key: str, value: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", short(curated, **{section: {key: value}})]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("altalign: ") == 1
    assert not (curated / "trained" / "metrics.jsonl").exists()


@pytest.mark.parametrize(("section", "key"), [("image_tower", "embedding_width"), ("tokenizer", "tokens_at_most")])
def test_too_little_memory_is_said(curated: Path, section: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", short(curated, **{section: {key: 10**15}})]) == 1
    said = capsys.readouterr().err
    assert "altalign: out of memory (can't allocate memory: you tried to allocate" in said
    assert "lower [loop] chunk" in said


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": {"runs": ["nowhere"]}},
        {"data": {"pairs": 1000}, "tokenizer": {"vocabulary_size": 40}},
        {"image_tower": {"weights": "nowhere"}},
    ],
)
def test_a_mistake_in_the_settings_does_not_bind_the_folder(
    trained_once: Path, curated: Path, wrong: dict[str, Any]
) -> None:
    assert cli.main(["train", short(curated, **wrong)]) == 2
    assert cli.main(["train", short(curated)]) == 0
    assert weights(curated / "trained") == weights(trained_once / "trained")


def test_settings_may_change_until_a_run_has_begun_and_its_tokenizer_is_theirs(curated: Path) -> None:
    save_file({"a": torch.zeros(1)}, curated / "of_another.safetensors")  # what is missing is refused earlier
    weights_of_another = {"weights": str(curated / "of_another.safetensors")}
    assert cli.main(["train", short(curated, image_tower=weights_of_another, tokenizer={"vocabulary_size": 16})]) == 2
    before = (curated / "trained" / "tokenizer.json").read_bytes()
    assert cli.main(["train", short(curated)]) == 0
    assert (curated / "trained" / "tokenizer.json").read_bytes() != before


def _garbage_checkpoint(run: Path) -> None:
    shutil.copytree(run / "checkpoints" / "step-0000002", run / "checkpoints" / "step-garbage")


def _copied_checkpoint(run: Path) -> None:
    shutil.copytree(run / "checkpoints" / "step-0000002", run / "checkpoints" / "step-0000002.bak")


def _empty_checkpoint(run: Path) -> None:
    (run / "checkpoints" / "step-0000003").mkdir()
    (run / "checkpoints" / "step-0000003" / "manifest.json").write_text("{}")


def _broken_manifest(run: Path) -> None:
    shutil.copytree(run / "checkpoints" / "step-0000002", run / "checkpoints" / "step-0000003")
    (run / "checkpoints" / "step-0000003" / "manifest.json").write_text("{")


def _file_of_a_partial_checkpoint(run: Path) -> None:
    (run / "checkpoints" / "step-0000003.partial").write_text("")


def _odd_metrics(run: Path) -> None:
    (run / "metrics.jsonl").write_bytes(b'5\n{"a": 1}\n\xff\n' + (run / "metrics.jsonl").read_bytes())


@pytest.mark.parametrize(
    "trouble",
    [
        _garbage_checkpoint,
        _copied_checkpoint,
        _empty_checkpoint,
        _broken_manifest,
        _file_of_a_partial_checkpoint,
        _odd_metrics,
    ],
)
def test_a_run_goes_on_whatever_lies_in_its_folder(
    trained_once: Path, stopped: Path, trouble: Callable[[Path], None]
) -> None:
    trouble(stopped)
    assert cli.main(command(trained_once, stopped)) == 0
    assert weights(stopped) == weights(trained_once / "trained")
    steps = [
        line["step"] for line in map(json.loads, (stopped / "metrics.jsonl").read_text().splitlines()) if "loss" in line
    ]
    assert steps == list(range(1, STEPS + 1))


def test_an_evaluation_leaves_a_checkpoint_that_is_being_written(trained_once: Path, stopped: Path) -> None:
    partial = stopped / "checkpoints" / "step-0000003.partial"
    partial.mkdir()
    assert cli.main(command(trained_once, stopped, "eval")) == 0
    assert partial.is_dir()
    assert cli.main(command(trained_once, stopped)) == 0
    assert not partial.exists()


def _swap_pieces(path: Path) -> None:
    value = json.loads(path.read_text())
    pieces = value["model"]["vocab"]
    first, second = list(pieces)[10:12]
    pieces[first], pieces[second] = pieces[second], pieces[first]
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("with_facts", [True, False])
def test_another_tokenizer_than_the_run_began_with_is_noticed(
    trained_once: Path, stopped: Path, *, with_facts: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """By what trains; what evaluates takes the checkpoint's own."""
    _swap_pieces(stopped / "tokenizer.json")
    if not with_facts:
        (stopped / "run.json").unlink()
    assert cli.main(command(trained_once, stopped)) == 2
    assert "tokenizer_sha256 of the data is not as this run began with" in capsys.readouterr().err


def test_a_checkpoint_of_other_settings_is_refused(
    trained_once: Path, stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    assert cli.main([*command(trained_once, other), "--set", "optimizer.name=sgd"]) == 0
    shutil.rmtree(stopped / "checkpoints")
    shutil.copytree(other / "checkpoints", stopped / "checkpoints")
    for verb in ("train", "eval"):
        capsys.readouterr()
        assert cli.main(command(trained_once, stopped, verb)) == 2
        assert "a checkpoint of other settings than this run's (optimizer.name differs)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"), [("{", "run.json: not JSON"), ('{"attempts": 5}', "run.json: attempts are no list")]
)
def test_a_broken_run_json_is_named(
    trained_once: Path, stopped: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (stopped / "run.json").write_text(text)
    assert cli.main(command(trained_once, stopped)) == 1
    assert message in capsys.readouterr().err
    (stopped / "run.json").unlink()
    assert cli.main(command(trained_once, stopped)) == 0
    assert weights(stopped) == weights(trained_once / "trained")


def test_the_folder_of_a_curation_is_no_place_for_a_training(curated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (curated / "curated" / "config.toml").write_text("[fetch]\ntimeout_s = 3\n")
    assert cli.main(["train", short(curated, run={"folder": str(curated / "curated")})]) == 2
    assert "not the settings of a training run (it has [" in capsys.readouterr().err


@pytest.mark.trained
def test_a_rank_that_is_killed_ends_the_others_in_a_line(curated: Path) -> None:
    config = short(curated, schedule={"steps": 10_000}, loop={"log_every": 1, "checkpoint_every": 1000})
    process = started(
        ["torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "altalign", "train", config],
        is_warm=False,
    )
    reached(curated, 2, process)
    tasks = Path(f"/proc/{process.pid}/task")
    children = [int(number) for task in tasks.iterdir() for number in (task / "children").read_text().split()]
    ranks = {
        dict(entry.split("=", 1) for entry in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in entry).get(
            "RANK"
        ): pid
        for pid in children
    }
    os.kill(ranks["1"], signal.SIGKILL)
    _, said = process.communicate(timeout=WATCHDOG_S)
    assert process.returncode == 1
    assert "defect of altalign" not in said
    assert "altalign: another process of this training has ended" in said or "altalign: interrupted (SIGTERM)" in said
