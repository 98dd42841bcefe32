"""What the experiment on data filtering trains on: a clean part, and a pool of which half has captions of others.

A small encoder learns from the clean part alone. It scores the pool, and the better half of that is selected, as
`altalign score` and `altalign select` do it for a user. Sets of clip art need the table of `shared/data` beside the
checkout.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq

from altalign import storage
from altalign.settings.common import merged
from experiments import queue
from experiments.data import Pair, command, set_of
from experiments.nlip import SHUFFLED, with_shuffled
from experiments.plan import Job
from experiments.zerovl import TEST_IMAGES, clip_art, drawn

NOISY = 0.5  # of the pool
SCENES = 4_000
CLEAN = 0.25  # of all pairs
KINDS = ("scenes", "clip-art")


def parted(kind: str) -> tuple[list[Pair], list[Pair]]:
    """The clean part, and the pairs of the pool as they are before any is shuffled."""
    pairs = list(drawn(SCENES) if kind == "scenes" else clip_art(is_test=False))
    clean = {*Random(f"clean {kind}").sample(range(len(pairs)), round(CLEAN * len(pairs)))}
    return [pairs[n] for n in sorted(clean)], [pair for n, pair in enumerate(pairs) if n not in clean]


def _pool(kind: str) -> dict[str, list[Pair]]:
    return with_shuffled(parted(kind)[1], NOISY)


def _selected(kind: str, seed: int, folder: Path) -> None:
    """Train the encoder on the clean part, score the pool with it, and select: what a user would type."""
    data = folder.parent
    pool, encoder = data / f"{kind}-pool", data.parent / "encoders" / f"{kind}-{seed}"
    _train(kind, seed, encoder, str(data / f"{kind}-clean"))
    scores = data.parent / "encoders" / f"{kind}-{seed}.toml"
    name = f"similarity_{seed}"
    said = f'[[score]]\nname = "{name}"\nkind = "similarity"\nmodel = "run:{encoder}"\n'
    storage.write_bytes(str(scores), said.encode())
    command("score", str(pool), "--with", str(scores))
    command("select", str(pool), str(folder), "--top", f"{name}={1 - NOISY}")


def _train(kind: str, seed: int, folder: Path, clean: str) -> None:
    from altalign.train import loop
    from altalign.train.settings.training import TrainConfig

    of = {"run": {"folder": str(folder), "seed": seed}, "data": {"runs": [clean]}, "evaluation": {"retrieval": []}}
    loop.train(TrainConfig.from_values(merged(queue.read("filtering").base, of), where=f"encoder of {kind}"))


def _test(kind: str) -> dict[str, list[Pair]]:
    return {"test": list(drawn(TEST_IMAGES, is_test=True) if kind == "scenes" else clip_art(is_test=True))}


SETS: dict[str, Callable[[Path], None]] = {}
for _kind in KINDS:
    SETS |= {
        f"{_kind}-clean": set_of(lambda kind=_kind: {"clean": parted(kind)[0]}),
        f"{_kind}-pool": set_of(partial(_pool, _kind)),
        f"{_kind}-true": set_of(lambda kind=_kind: {"true": _pool(kind)["true"]}),
        f"test-{_kind}": set_of(partial(_test, _kind)),
        **{f"{_kind}-selected-{seed}": partial(_selected, _kind, seed) for seed in range(10)},
    }

VARIANTS: dict[str, Any] = {}


def measured(job: Job, _run_folder: Path) -> dict[str, float]:
    """The share of a run's pairs of the pool that have their own caption."""
    sources = [
        source
        for name in job.sets
        if "clean" not in name and not name.startswith("test")
        for path in sorted(Path("data", name, "shards").glob("*.parquet"))
        for source in pq.read_table(path, columns=["source"])["source"].to_pylist()
    ]
    return {"true": sum(source != SHUFFLED for source in sources) / len(sources)} if sources else {}
