"""What the experiment on NLIP trains on: pairs of which a known share has the caption of another pair.

Shuffled pairs are a source of their own, so that it is known of each key whether it is one. Sets of clip art need the
table of `shared/data` beside the checkout. The captioner learns from other scenes, none of them shuffled; so does the
model that finds the concepts of images, but for one arm.
"""

import contextlib
import json
import shutil
import tomllib
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from scipy.stats import rankdata

from altalign.demo.scenes import COLOURS, SHAPES
from altalign.settings.common import merged
from altalign.train import loop
from altalign.train.data import noise_estimates
from altalign.train.data.captions import is_swapped
from altalign.train.nlip import concepts, phases
from altalign.train.settings.training import TrainConfig
from experiments import queue
from experiments.data import Pair, set_of
from experiments.plan import Job
from experiments.zerovl import SETS as OF_ZEROVL
from experiments.zerovl import TEST_IMAGES, clip_art, drawn

SCENES, CAPTIONED = 4_000, 2_000
NOUNS = [*COLOURS, *SHAPES, *(f"{shape}es" if shape.endswith("s") else f"{shape}s" for shape in SHAPES)]
SHUFFLED = "shuffled"  # the source of those pairs
WARM_UP = "warm-up"  # the phase that arms share


def with_shuffled(pairs: Iterable[Pair], share: float) -> dict[str, list[Pair]]:
    """A share of the pairs, chosen at random, get each other's captions in a circle; the others stay as they are."""
    of_all = list(pairs)
    chosen = Random(f"shuffled {share}").sample(range(len(of_all)), round(share * len(of_all)))
    captions = {place: of_all[other][1] for place, other in zip(chosen, [*chosen[1:], *chosen[:1]], strict=True)}
    moved = {place: caption for place, caption in captions.items() if caption != of_all[place][1]}
    return {
        "true": [pair for place, pair in enumerate(of_all) if place not in moved],
        SHUFFLED: [(of_all[place][0], caption) for place, caption in moved.items()],
    }


def _concepts(of: str) -> Callable[[Path], None]:
    """The nouns of the shuffled and the captioned scenes, which are made before, by a model of the set `of`."""

    def made(folder: Path) -> None:
        runs = {name: str(folder.parent / name) for name in ("scenes-20", "captioned-scenes")}
        with TemporaryDirectory(dir=folder.parent) as temporary:
            words, model = Path(temporary, "nouns.txt"), Path(temporary, "model")
            words.write_text("\n".join(NOUNS), encoding="utf-8")
            whole = merged(queue.read("nlip").base, {"run": {"folder": str(model)}, "data": {"runs": [runs[of]]}})
            config = TrainConfig.from_values(whole, where="concepts")
            loop.train(phases.of_phase(config, WARM_UP))
            concepts.retrieve(
                list(runs.values()),
                str(folder / "found"),
                model=str(model / "phases" / WARM_UP),
                texts=[],
                lists=[str(words)],
                texts_at_least=0,
                prompt="picture of",
                top=3,
            )

    return made


SETS: dict[str, Callable[[Path], None]] = {
    "scenes-20": set_of(lambda: with_shuffled(drawn(SCENES), 0.2)),
    "scenes-40": set_of(lambda: with_shuffled(drawn(SCENES), 0.4)),
    "clip-art-20": set_of(lambda: with_shuffled(clip_art(is_test=False), 0.2)),
    "clip-art-40": set_of(lambda: with_shuffled(clip_art(is_test=False), 0.4)),
    "captioned-scenes": set_of(lambda: {"captioned": list(drawn(CAPTIONED, name="captioned"))}),
    "scenes-20-concepts": _concepts("captioned-scenes"),
    "scenes-20-own-concepts": _concepts("scenes-20"),
    "clothes": OF_ZEROVL["clothes"],
    "test-scenes": set_of(lambda: {"scenes": list(drawn(TEST_IMAGES, is_test=True))}),
    "test-clip-art": set_of(lambda: {"clip art": list(clip_art(is_test=True))}),
}


VARIANTS: dict[str, Any] = {}


def before(job: Job, run_folder: Path) -> None:
    """Bring the warm-up that another arm of the same pairs and seed has gone through."""
    if (kept := kept_at(job)).is_dir():
        shutil.copytree(kept, run_folder / "phases" / WARM_UP)
        (run_folder / "config.toml").touch()  # by which a folder is that of a run


def kept_at(job: Job) -> Path:
    """Where the warm-up of a run is kept for others, by all that it depends on."""
    (phase,) = (phase for phase in job.settings["phases"] if phase["name"] == WARM_UP)
    whole = {name: section for name, section in job.settings.items() if name != "phases"}
    said = json.dumps([merged(whole, phase["settings"]), job.seed], sort_keys=True)
    return Path("kept", sha256(said.encode()).hexdigest()[:16])


def measured(job: Job, run_folder: Path) -> dict[str, float]:
    """How well the noise of a run's first phase tells the shuffled pairs from the true ones, and which it replaces."""
    warm_up = run_folder / "phases" / WARM_UP
    if not (kept := kept_at(job)).is_dir():
        partial = kept.with_name(f"{kept.name}-{job.name}")
        shutil.copytree(warm_up, partial)
        with contextlib.suppress(OSError):  # another arm was faster
            partial.rename(kept)
    place = warm_up / noise_estimates.FILE
    if not place.is_file():
        return {}
    table = pq.read_table(place)
    is_shuffled = np.isin(table["key"].to_numpy(), list(_shuffled(run_folder)))
    loss, eps = table["loss"].to_numpy(), table["eps"].to_numpy()
    return {
        "auc": auc(eps, is_shuffled),
        "auc_of_loss": auc(loss, is_shuffled),
        "eps_of_shuffled": float(eps[is_shuffled].mean()),
        "eps_of_true": float(eps[~is_shuffled].mean()),
        **replaced(queue.last_phase(run_folder), [str(key) for key in table["key"].to_pylist()], eps, is_shuffled),
    }


def replaced(
    last: Path, keys: Sequence[str], eps: npt.NDArray[np.float32], is_shuffled: npt.NDArray[np.bool_]
) -> dict[str, float]:
    """Of the visits of all pairs in a phase those that see a written caption, in percent; none where nobody does.

    They are drawn again, as training draws them, over the epochs that the phase has begun.
    """
    settings = tomllib.loads((last / "config.toml").read_text())
    if not settings["noise"]["captions"]:
        return {}
    epochs = range(-(-settings["schedule"]["steps"] * settings["loop"]["global_batch"] // len(keys)))
    seed = settings["run"]["seed"]
    of_pairs = [
        [is_swapped(one, seed=seed, epoch=epoch, key=key) for epoch in epochs]
        for one, key in zip(eps.tolist(), keys, strict=True)
    ]
    drawn = np.array(of_pairs)
    if not drawn.any():
        return {"replaced_of_shuffled": 0.0, "replaced_of_true": 0.0}
    return {
        "shuffled_of_replaced": 100 * float(drawn[is_shuffled].sum() / drawn.sum()),
        "replaced_of_shuffled": 100 * float(drawn[is_shuffled].mean()),
        "replaced_of_true": 100 * float(drawn[~is_shuffled].mean()),
    }


def _shuffled(run_folder: Path) -> set[str]:
    """The keys of the shuffled pairs that a run was trained on."""
    runs = tomllib.loads((run_folder / "config.toml").read_text())["data"]["runs"]
    shards = (path for run in runs for path in Path(run, "shards").glob("*.parquet"))
    tables = (pq.read_table(path, columns=["key", "source"]).to_pylist() for path in shards)
    return {row["key"] for rows in tables for row in rows if row["source"] == SHUFFLED}


def auc(scores: npt.NDArray[np.floating], is_positive: npt.NDArray[np.bool_]) -> float:
    """The area under the ROC curve: how often a positive has the higher score; a tie counts half."""
    ranks, positives = rankdata(scores), int(is_positive.sum())
    above = ranks[is_positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(scores) - positives)))
