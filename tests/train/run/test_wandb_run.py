"""Metrics of a training at Weights & Biases, offline: what the real package writes, read back."""

import importlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from altalign import cli
from tests.support.run_folders import pairs, write_run
from tests.train.test_training_run import ROOT, STEPS, every_line, lines, weights, written

_BLOCK, _HEAD = 32_768, struct.Struct("<IHB")  # of LevelDB's log format: checksum, length, kind
_WHOLE, _LAST = 1, 4


@pytest.fixture
def curated(tmp_path: Path) -> Path:
    write_run(tmp_path / "curated", pairs(60, images=30))
    return tmp_path


def trained(folder: Path, *overrides: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    config = written(folder, loop=LOOP)
    argv = [sys.executable, "-m", "altalign", "train", config, *(f"--set={value}" for value in overrides)]
    held = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder), **environment}
    return subprocess.run(argv, cwd=folder, env=held, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def records(path: Path) -> Iterator[Any]:
    """What a `.wandb` file holds."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    data, at, held = path.read_bytes(), 7, b""
    while at + _HEAD.size <= len(data):
        if (room := _BLOCK - at % _BLOCK) < _HEAD.size:
            at += room
            continue
        _, size, kind = _HEAD.unpack_from(data, at)
        held += data[at + _HEAD.size : at + _HEAD.size + size]
        at += _HEAD.size + size
        if kind in (_WHOLE, _LAST):
            record: Any = messages.Record()
            record.ParseFromString(held)
            held = b""
            yield record


def rows(path: Path) -> list[dict[str, Any]]:
    """The metrics in it, without wandb's own."""
    found = []
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            found.append({name: value for name, value in items.items() if name not in ("_runtime", "_timestamp")})
    return found


def attempts(folder: Path) -> list[Path]:
    return sorted((folder / "trained" / "wandb").glob("offline-run-*/*.wandb"))


LOOP = {"wandb_project": "kites"}


@pytest.mark.trained
def test_metrics_go_to_weights_and_biases_and_a_run_goes_on_there_under_its_id(
    curated: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("wandb")
    assert trained(curated, "schedule.steps=8", WANDB_MODE="offline").returncode == 0
    own = [{name: value for name, value in line.items() if name != "step"} for line in every_line(curated)]
    (first,) = attempts(curated)
    of_first = rows(first)
    assert [row["_step"] for row in of_first] == list(range(1, STEPS + 1))
    assert [row["loss"] for row in of_first] == [line["loss"] for line in lines(curated)]
    assert {name: of_first[-1][name] for name in own[-1]} == own[-1]  # the evaluation's
    (sent,) = (record.run for record in records(first) if record.WhichOneof("record_type") == "run")
    assert {item.key: item.value_json for item in sent.config.update}["loop"].count('"wandb_project":"kites"')

    # the last checkpoint is lost: the run goes on from step 6, under the same id
    newest = curated / "trained" / "checkpoints" / f"step-{STEPS:07}"
    before = weights(curated)
    newest.rename(tmp_path_factory.mktemp("away") / newest.name)
    assert trained(curated, WANDB_MODE="offline").returncode == 0
    assert weights(curated) == before
    first, second = sorted(attempts(curated), key=lambda path: path.stat().st_mtime)
    assert [row["_step"] for row in rows(second)] == [7, 8]
    assert (
        first.name == second.name == f"run-{json.loads((curated / 'trained' / 'wandb.json').read_text())['id']}.wandb"
    )


@pytest.mark.trained
def test_without_a_key_one_line_says_what_to_do(curated: Path) -> None:
    pytest.importorskip("wandb")
    done = trained(curated, WANDB_API_KEY="", NETRC=str(curated / "none"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "or give WANDB_MODE=offline, and send the metrics later with `wandb sync`"
    )
    assert "[loop] wandb_project = 'kites': No API key configured" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_without_the_package_the_setting_is_refused_before_any_work(
    curated: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as where it is not installed
    assert cli.main(["train", written(curated, loop=LOOP), *more]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "altalign: [loop] wandb_project = 'kites': the package wandb is missing; `make setup EXTRAS=wandb`"
    )
    assert not (curated / "trained").exists()
