"""Metrics of a training run: in `metrics.jsonl`, TensorBoard's events, Weights & Biases (`wandb`), on the terminal.

The environment of Weights & Biases says where they go: `WANDB_API_KEY`, `WANDB_ENTITY`, `WANDB_BASE_URL`; with
`WANDB_MODE=offline` they stay in RUN/wandb until `wandb sync`. No source code is sent, nothing of git, and nothing of
what is printed.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from importlib import import_module
from typing import Any
from uuid import uuid4

import torch
from rich.console import Console

from altalign import storage, terminal
from altalign.errors import AltalignError, check_package, one_line
from altalign.train.run import object_store_sync, training_folder
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import TrainConfig
from altalign.train.step import flops
from altalign.train.step.flops import Work

LINE_EVERY_S = 30.0
_ON_TERMINAL_EVERY_S = 1.0
_SHOWN = ("loss", "temperature", "samples_per_s")
_CPU = torch.device("cpu")
_WANDB = {"console": "off", "silent": True, "disable_git": True, "disable_job_creation": True}


class Metrics:
    """Appends a line every `log_every` steps; a run that goes on from a checkpoint writes what follows it anew."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        first_step: int,
        console: Console,
        work: Work | None = None,
        device: torch.device = _CPU,
    ):
        from torch.utils.tensorboard import SummaryWriter  # a second, which --dry-run need not wait for

        self._path = training_folder.local(config, "metrics.jsonl")
        self._steps, self._pairs = config.schedule.steps, config.loop.global_batch
        before = [line for line in read(self._path) if line["step"] <= first_step]
        # the evaluation after the last step is made again by a command that finds nothing else to do
        kept = [json.dumps(line) for line in before if "loss" in line or line["step"] < self._steps]
        storage.write_bytes(self._path, "".join(f"{line}\n" for line in kept).encode())
        self._events = SummaryWriter(training_folder.local(config, "tensorboard"), purge_step=first_step + 1)
        self._wandb = _opened_wandb(config) if config.loop.wandb_project else None
        self._run, self._sent = config.run.folder, dict[str, storage.Stamp]()
        self._console, self._work, self._device = console, work, device
        self._is_timed, self._printed_at = False, time.monotonic()
        self._shown = dict[str, float]()  # of the last line
        self._time_from(first_step)

    def _time_from(self, step: int) -> None:
        self._begin = self._last = time.monotonic()
        self._first_step = self._last_step = step

    def write(self, step: int, values: Mapping[str, float], *, waited_s: float = 0.0) -> None:
        """A line of metrics after `step` steps, with pairs a second, arithmetic, and the share of time waited."""
        now = time.monotonic()
        line: dict[str, float] = {"step": step, "samples_seen": step * self._pairs, **values}
        if self._is_timed:
            passed = max(1e-9, now - self._last)
            speed = (step - self._last_step) * self._pairs / passed
            line |= {"samples_per_s": round(speed, 1), "data_wait": round(min(1.0, waited_s / passed), 4)}
            line |= self._work.at(speed) if self._work else {}
        line["memory_bytes"] = most_memory(self._device)
        self._last, self._last_step = now, step
        self._append(line)
        self._shown = {name: line[name] for name in _SHOWN if name in line}
        if self._console.is_terminal or now - self._printed_at >= LINE_EVERY_S or step == self._steps:
            self._print(step)

    def passed(self, step: int) -> None:
        """A step of which no line is written is done: a terminal is told of the first, and of one a second."""
        is_due = not self._is_timed or time.monotonic() - self._printed_at >= _ON_TERMINAL_EVERY_S
        if self._console.is_terminal and is_due:
            self._print(step)

    def began(self, step: int) -> None:
        """The first step of this attempt is done: only what follows is timed, for that one starts and compiles much."""
        self._is_timed = True
        self._time_from(step)

    def evaluated(self, step: int, metrics: Mapping[str, Mapping[str, float]]) -> None:
        """The metrics of an evaluation after `step` steps."""
        flat = {f"{name}/{key}": value for name, values in metrics.items() for key, value in values.items()}
        self._append({"step": step, **flat})
        self._last = time.monotonic()  # the next line's speed is that of training

    def published(self) -> None:
        """Write out buffered lines, also to the store where the run is in one. Any thread may call it."""
        self._events.flush()
        object_store_sync.publish_growing(self._run, self._sent)

    def close(self, *, failed: bool = False) -> None:
        """Write out buffered lines, as `published`; of a run that has failed as far as its store can be reached."""
        self._events.close()
        if self._wandb:
            self._wandb.finish(exit_code=int(failed))
        with suppress(AltalignError) if failed else nullcontext():
            object_store_sync.publish_growing(self._run, self._sent)

    def _append(self, line: Mapping[str, Any]) -> None:
        with storage.growing(self._path) as file:
            file.write(f"{json.dumps(line)}\n".encode())
        values = {name: value for name, value in line.items() if name != "step"}
        for name, value in values.items():
            self._events.add_scalar(name, value, line["step"])
        if self._wandb:
            self._wandb.log(values, step=line["step"])

    def _print(self, step: int) -> None:
        """Print how far it is, with the time left at the pace of this attempt, and the last line of metrics."""
        now, line = time.monotonic(), self._shown
        self._printed_at, parts = now, [f"step {step:,} of {self._steps:,}"]
        if self._is_timed and step > self._first_step:
            seconds = (self._steps - step) * (now - self._begin) / (step - self._first_step)
            parts.append(f"{timedelta(seconds=round(seconds))} left")
        parts += [f"{line['samples_per_s']:,.0f} samples/s"] if "samples_per_s" in line else []
        parts += [f"{name} {line[name]:.4f}" for name in ("loss", "temperature") if name in line]
        text = ", ".join(parts)
        if self._console.is_terminal and step < self._steps:  # one line, written over
            room = self._console.width - 1
            self._console.print(text[:room].ljust(room), soft_wrap=True, end="\r")
        else:
            self._console.print(text, soft_wrap=True)


class Unwritten:
    """The metrics of a rank that writes none: every method of `Metrics` does nothing."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


@contextmanager
def opened(config: TrainConfig, ranks: Ranks, *, first_step: int, vocabulary: int) -> Iterator[Metrics | Unwritten]:
    """Metrics that are written out when the block ends; of rank 0 alone."""
    if not ranks.is_first:
        yield Unwritten()
        return
    work = None
    if not config.classification.train:
        name = torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else ""
        work = Work(flops.of_a_pair(config, vocabulary=vocabulary), ranks.ranks, flops.peak_of(name))
    metrics = Metrics(config, first_step=first_step, console=terminal.stderr(), work=work, device=ranks.device)
    try:
        yield metrics
    except BaseException:
        metrics.close(failed=True)
        raise
    metrics.close()


def check_wandb(config: TrainConfig) -> None:
    """Raise UsageError where a project is given and the package is missing."""
    if config.loop.wandb_project:
        check_package("wandb", f"[loop] wandb_project = {config.loop.wandb_project!r}", extra="wandb")


def _opened_wandb(config: TrainConfig) -> Any:
    """The package's own run, with the id that RUN/wandb.json keeps however often training is stopped and goes on."""
    library: Any = import_module("wandb")  # takes seconds
    place, project = training_folder.path(config, "wandb.json"), config.loop.wandb_project
    if not storage.exists(place):
        storage.write_json(place, {"id": uuid4().hex[:16]})
    try:
        return library.init(
            project=project,
            id=storage.read_json(place)["id"],
            resume="allow",
            name=storage.name(config.run.folder),
            dir=training_folder.local(config),
            config=config.model_dump(mode="json"),
            settings=_WANDB,
        )
    except library.Error as error:
        advice = "or give WANDB_MODE=offline, and send the metrics later with `wandb sync`"
        raise AltalignError(f"[loop] wandb_project = {project!r}: {one_line(error).rstrip('.')}; {advice}") from None


def most_memory(device: torch.device) -> int:
    """The most bytes that torch has taken of a GPU; on a CPU those that this process has held."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)  # tensors of CUDA graphs do not count as allocated
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def read(path: str) -> list[dict[str, Any]]:
    """The lines of a metrics file, without a last line that a killed run left incomplete."""
    lines = list[dict[str, Any]]()
    for line in storage.read_bytes(path).decode(errors="replace").splitlines() if storage.exists(path) else ():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and isinstance(value.get("step"), int):
            lines.append(value)
    return lines
