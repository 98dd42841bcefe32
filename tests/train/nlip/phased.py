"""NLIP's phases in small; and, as a program, the same killed at many points and gone on with.

`python -m tests.train.nlip.phased FOLDER RANKS` trains FOLDER/whole, and FOLDER/in-parts, where a
process is killed at every point of `POINTS` in turn, and of ranks at those of the first training and of what is no
training. What is trained is a fork of the program each time, so that torch is imported once.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from altalign.settings.common import merged
from altalign.train.data import by_key, noise_estimates
from altalign.train.nlip import captions, noise, phases
from altalign.train.report import page
from altalign.train.run import checkpoints
from altalign.train.settings.training import TrainConfig
from altalign.train.step.learner import Learner
from tests.support.run_folders import pairs, write_run
from tests.warm import trainer

PHASES: list[dict[str, Any]] = [
    {"name": "warm-up"},
    {"name": "estimate", "does": "noise"},
    {
        "name": "noise-aware",
        "settings": {
            "run": {"start": "phase:warm-up"},
            "noise": {"estimates": "phase:warm-up", "smoothing": 0.5},
        },
    },
    {
        "name": "captioning",
        "settings": {
            "run": {"start": "phase:noise-aware"},
            "image_tower": {"token_drop": 0.0},
            "loss": {"weight": 0.0},
            "reconstruction": {"weight": 0.0},
        },
    },
    {"name": "captions", "does": "captions"},
    {
        "name": "concept-enhanced",
        "settings": {
            "run": {"start": "phase:noise-aware"},
            "noise": {"estimates": "phase:warm-up", "smoothing": 0.5, "captions": "phase:captioning"},
        },
    },
]


def config(tmp_path: Path, folder: str) -> TrainConfig:
    of = pairs(24)
    if not (tmp_path / "curated").exists():
        write_run(tmp_path / "curated", of)
        keys = by_key.numbers_of([pair.key for pair in of])  # so few losses fall into no two groups
        eps = np.linspace(0, 1, len(of), dtype=np.float32)
        noise_estimates.write(str(tmp_path / "eps.parquet"), keys, eps, eps)
    *others, last = PHASES
    known = {"noise": {"estimates": str(tmp_path / "eps.parquet")}}
    return TrainConfig.from_values(
        {
            "run": {"folder": str(tmp_path / folder)},
            "data": {"runs": [str(tmp_path / "curated")], "resize_px": 36, "crop_px": 32, "workers": 0},
            "tokenizer": {"vocabulary_size": 60, "tokens_at_most": 10},
            "image_tower": {
                "architecture": "vit_ti16", "width": 0.34, "depth": 0.1, "positions_px": 32, "embedding_width": 16,
                "token_drop": 0.5,
            },
            "text_tower": {"architecture": "bart", "layers": 1, "width": 16, "heads": 2},
            "loss": {"label_smoothing": 0.0, "directions": "mean"},
            "reconstruction": {"weight": 1.0, "blocks": 1, "width": 64},
            "captioner": {"weight": 1.0, "layers": 1, "tokens_at_most": 12},
            "optimizer": {"name": "adamw"},
            "schedule": {"steps": 3, "warmup_steps": 0},
            "loop": {"global_batch": 8, "chunk": 4, "precision": "float32", "device": "cpu", "checkpoint_every": 1},
            "phases": [*others, {**last, "settings": merged(last["settings"], known)}],
        },
        where="x",
    )  # fmt: skip


Point = tuple[Any, str, int]  # a module or class, the name of a function, and the number of the call that is a kill
_OF_TRAINING: list[Point] = [
    (Learner, "step", 2),  # after the first checkpoint
    (checkpoints, "save_file", 3),  # within the second
    (page, "html", 1),  # trained, and not reported
]
POINTS: list[tuple[str, list[Point]]] = [
    ("warm-up", _OF_TRAINING),
    ("estimate", [(noise, "losses_of", 2), (noise_estimates, "write", 1), (page, "html", 1)]),
    ("noise-aware", _OF_TRAINING),
    ("captioning", _OF_TRAINING),
    ("captions", [(captions.Captions, "table", 2), (by_key.pq, "ParquetWriter", 1)]),
    ("concept-enhanced", _OF_TRAINING),
]


def in_small_parts() -> None:
    """Files of parts after every batch."""
    noise._BATCHES_OF_A_PART, captions._PART = 1, 8  # pyright: ignore[reportPrivateUsage]


def killed_at(point: Point) -> None:
    """From here on the process ends at this point, as by `kill -9`."""
    owner, name, at = point
    real: Callable[..., Any] = getattr(owner, name)
    calls: list[int] = []

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)

    setattr(owner, name, call)


def trained(values: TrainConfig, until: str, ranks: int, *, point: Point | None = None, victim: int = 0) -> list[int]:
    """Train to the end of a phase in so many processes, of which one may be killed; gives how each has ended."""
    sys.stdout.flush()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = []
    for rank in range(ranks):
        if child := os.fork():
            children.append(child)
            continue
        code = 1
        try:
            torch.set_num_threads(1)  # by one thread, for the first time in a fork: threads of a backward race for it
            os.environ.update({**world, "RANK": str(rank)})
            if point is not None and rank == victim:
                killed_at(point)
            code = phases.train(values, until=until)
        except BaseException as error:  # a fork has no business with what is above
            sys.stderr.write(f"{until} {point} {rank}: {type(error).__name__}: {error}\n")
        finally:
            os._exit(code)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def main(arguments: Sequence[str]) -> None:
    folder, ranks = Path(arguments[0]), int(arguments[1])
    torch.set_num_threads(1)
    trainer.warm()
    in_small_parts()
    whole, in_parts = config(folder, "whole"), config(folder, "in-parts")
    assert trained(whole, "concept-enhanced", ranks) == [0] * ranks
    for phase, points in POINTS:
        # trainings later than the first are killed in one process alone: ranks make no difference between phases
        is_as_before = ranks > 1 and points is _OF_TRAINING and phase != POINTS[0][0]
        for number, point in enumerate(() if is_as_before else points):
            # what only the first rank does, or does twice, is for it to be killed at
            victim = ranks - 1 if point[:2] == (Learner, "step") else 0
            codes = trained(in_parts, phase, ranks, point=point, victim=victim)
            assert codes[victim] == -signal.SIGKILL, (phase, number, codes)
            # the others notice it where they next wait for the victim, or have nothing left to do
        assert trained(in_parts, phase, ranks) == [0] * ranks, phase


if __name__ == "__main__":
    main(sys.argv[1:])
