"""Writes metrics of a training run to `metrics.jsonl` and TensorBoard's events, and shows some on the terminal."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console

from altalign import storage, terminal
from altalign.train import training_folder
from altalign.train.settings import TrainConfig

LINE_EVERY_S = 30.0


class Metrics:
    """Appends a line every `log_every` steps; a run that goes on from a checkpoint writes what follows it anew."""

    def __init__(self, config: TrainConfig, *, first_step: int, console: Console):
        from torch.utils.tensorboard import SummaryWriter  # a second, which --dry-run need not wait for

        self._path = training_folder.path(config, "metrics.jsonl")
        self._steps, self._pairs = config.schedule.steps, config.loop.global_batch
        # the evaluation after the last step is made again by a command that finds nothing else to do
        kept = [
            line
            for line in _lines(self._path)
            if line["step"] <= first_step and ("loss" in line or line["step"] < self._steps)
        ]
        storage.write_bytes(self._path, "".join(map(_json, kept)).encode())
        self._events = SummaryWriter(training_folder.path(config, "tensorboard"), purge_step=first_step + 1)
        self._console = console
        self._begin = self._last = time.monotonic()
        self._first_step = self._last_step = first_step
        self._said_at = self._begin

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """A line of metrics after `step` steps, with samples seen and samples a second since the last."""
        now = time.monotonic()
        speed = (step - self._last_step) * self._pairs / max(1e-9, now - self._last)
        self._last, self._last_step = now, step
        line = {"step": step, "samples_seen": step * self._pairs, **values, "samples_per_s": round(speed, 1)}
        self._append(line)
        self._say(line)

    def evaluated(self, step: int, metrics: Mapping[str, Mapping[str, float]]) -> None:
        """The metrics of an evaluation after `step` steps."""
        self._append(
            {
                "step": step,
                **{f"{name}/{key}": value for name, values in metrics.items() for key, value in values.items()},
            }
        )
        self._last = time.monotonic()  # the next line's speed is that of training

    def close(self) -> None:
        """Write out what is held."""
        self._events.close()

    def _append(self, line: Mapping[str, Any]) -> None:
        with storage.growing(self._path) as file:
            file.write(_json(line).encode())
        for name, value in line.items():
            if name != "step":
                self._events.add_scalar(name, value, line["step"])

    def _say(self, line: Mapping[str, Any]) -> None:
        """A line now and then, with the time left as the steps of this attempt took it."""
        now, step = time.monotonic(), line["step"]
        if not self._console.is_terminal and now - self._said_at < LINE_EVERY_S and step < self._steps:
            return
        self._said_at = now
        left = timedelta(seconds=round((self._steps - step) * (now - self._begin) / max(1, step - self._first_step)))
        text = (
            f"step {step:,} of {self._steps:,}, {left} left, {line['samples_per_s']:,.0f} samples/s, "
            f"loss {line['loss']:.4f}, temperature {line['temperature']:.4f}"
        )
        if self._console.is_terminal and step < self._steps:  # one line, written over
            room = self._console.width - 1
            self._console.print(text[:room].ljust(room), soft_wrap=True, end="\r")
        else:
            self._console.print(text, soft_wrap=True)


class Unwritten:
    """Metrics of a rank that writes none."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Nothing."""

    def evaluated(self, step: int, metrics: Mapping[str, Mapping[str, float]]) -> None:
        """Nothing."""


@contextmanager
def opened(config: TrainConfig, *, first_step: int, is_first: bool) -> Iterator[Metrics | Unwritten]:
    """Metrics that are written out when the block ends; of rank 0 alone."""
    if not is_first:
        yield Unwritten()
        return
    metrics = Metrics(config, first_step=first_step, console=terminal.stderr())
    try:
        yield metrics
    finally:
        metrics.close()


def _lines(path: str) -> list[dict[str, Any]]:
    """The lines of metrics of a file, without what is none: a killed run may have left a part of the last."""
    if not storage.exists(path):
        return []
    found = []
    for line in storage.read_bytes(path).decode(errors="replace").splitlines(keepends=True):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and isinstance(value.get("step"), int):
            found.append(value)
    return found


def _json(line: Mapping[str, Any]) -> str:
    return json.dumps(line) + "\n"
