"""Metrics of a run, as files and as lines of a terminal."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from altalign.train.report.metrics import Metrics
from altalign.train.settings.training import TrainConfig

VALUES = {"loss": 5.25, "temperature": 0.5, "rate": 1e-3}


def config(folder: Path) -> TrainConfig:
    return TrainConfig.model_validate(
        {"run": {"folder": str(folder)}, "schedule": {"steps": 1000, "warmup_steps": 0}, "loop": {"global_batch": 64}}
    )


def of_file(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_that_goes_on_writes_anew_what_follows_its_checkpoint(tmp_path: Path) -> None:
    first = Metrics(config(tmp_path), first_step=0, console=Console(file=io.StringIO()))
    for step in (10, 20, 30):
        first.write(step, {**VALUES, "loss": step / 10})
    first.evaluated(30, {"retrieval/a": {"rsum": 7.0}})
    first.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "lo')  # a killed run's
    again = Metrics(config(tmp_path), first_step=20, console=Console(file=io.StringIO()))
    again.write(30, {**VALUES, "loss": 9.0})
    again.close()
    assert [(line["step"], line["loss"], line["samples_seen"]) for line in of_file(tmp_path)] == [
        (10, 1.0, 640),
        (20, 2.0, 1280),
        (30, 9.0, 1920),
    ]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_progress_is_one_line_of_a_terminal(tmp_path: Path, width: int) -> None:
    out = io.StringIO()
    metrics = Metrics(
        config(tmp_path), first_step=0, console=Console(file=out, width=width, force_terminal=True, color_system=None)
    )
    metrics.write(10, {**VALUES, "loss": 12345.0})
    metrics.write(20, VALUES)
    metrics.close()
    first, second, rest = out.getvalue().split("\r")
    assert (len(first), len(second), rest) == (width - 1, width - 1, "")
    assert first.startswith("step 10 of 1,000, ")
