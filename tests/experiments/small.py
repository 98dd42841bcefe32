"""A small experiment, for tests of the queue: what it trains on, and a variant that ends its process once."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.data import Absent
from experiments.plan import Experiment
from tests.support.run_folders import pairs, write_run

EXPERIMENT = Experiment.model_validate(
    {
        "title": "Small",
        "about": "Nothing.",
        "seeds": [0, 1],
        "train": ["kites"],
        "tests": ["others"],
        "measures": {"rsum": "RSUM"},
        "base": {
            "data": {"resize_px": 32, "crop_px": 32, "workers": 0},
            "tokenizer": {"vocabulary_size": 60, "tokens_at_most": 8},
            "image_tower": {"architecture": "vit_ti16", "width": 0.34, "depth": 0.1, "positions_px": 32},
            "text_tower": {"layers": 1, "width": 16, "heads": 2, "dropout": 0.0},
            "loss": {"temperature": 0.1},
            "optimizer": {"name": "adamw"},
            "schedule": {"steps": 4, "warmup_steps": 1},
            "loop": {"global_batch": 8, "chunk": 8, "precision": "float32", "log_every": 1},
        },
        "arms": {
            "base": {"about": "base"},
            "killed": {"about": "killed once", "replaces": "base", "variant": "killed_once"},
            "again": {"about": "the same again", "replaces": "base"},
            "diverging": {"about": "a rate too high", "settings": {"schedule": {"peak": 1e30}}},
            "skipped": {"about": "of a set that is not here", "replaces": "base", "train": ["far away"]},
        },
        "sections": [{"title": "All", "about": "-", "arms": ["base", "killed", "again", "diverging", "skipped"]}],
    }
)


def _kites(folder: Path) -> None:
    write_run(folder, pairs(40))


def _others(folder: Path) -> None:
    write_run(folder, pairs(10, first=100))


def _far_away(_: Path) -> None:
    raise Absent("it is far away")


@contextmanager
def killed_once() -> Iterator[None]:
    """End the process as `kill -9` would, the first time."""
    mark = Path("killed")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    yield


SETS = {"kites": _kites, "others": _others, "far away": _far_away}
VARIANTS = {"killed_once": killed_once}
