"""Whole runs of `altalign curate`, of the two books that ship and of 100,000 images.

The images are generated, in mixed formats.

    python -m benchmarks.whole [--images 100000]

How many images a second, how much memory, how many cores are busy, and how long each stage takes.
"""

import json
import os
import shutil
import sys
from pathlib import Path

from benchmarks.harness import ALTALIGN, ROOT, Program, Round, command, interleave, scratch
from benchmarks.images import generated
from benchmarks.processes import Figures
from benchmarks.report import target, write

IMAGES, ROUNDS = 100_000, 3
BYTES_AT_MOST, CORES_AT_LEAST = 2e9, 0.9
CONFIG = """
[run]
folder = "run"

[[input]]
name = "images"
kind = "webdataset"
paths = ["{images}/*.tar"]
"""
PACKAGES = ("apache-beam", "pillow", "simplejpeg")


def compete(images: int, folder: Path) -> None:
    """Measure in a scratch folder."""
    with scratch(folder) as place:
        measure_all(images, folder, place)


def measure_all(images: int, folder: Path, place: Path) -> None:
    """The books three times, the images once: they are minutes of work, and have no peer."""
    config = place / "images.toml"
    config.write_text(CONFIG.format(images=generated("mixed", images, folder)), encoding="utf-8")
    books = interleave([curation("books", ROOT / "configs" / "handbook.toml", place / "books", ROOT)], ROUNDS)
    many = interleave([curation("images", config, place / "run", place)], 1, warm_up=False)
    figures = many[0]["images"]
    targets = [target("cores busy, of all", figures["cores_busy"] / (os.cpu_count() or 1), at_least=CORES_AT_LEAST)]
    if figures["peak_bytes"]:
        targets.append(target("peak memory in GB", figures["peak_bytes"] / 1e9, at_most=BYTES_AT_MOST / 1e9))
    done: list[Round] = [*books, *many]
    print(write("whole", done, targets, packages=PACKAGES, is_full=images == IMAGES, images=images))


def curation(name: str, config: Path, run: Path, folder: Path) -> Program:
    """A whole curation, from nothing to shards."""

    def says(_: str) -> Figures:
        ran, summary = (json.loads((run / file).read_text(encoding="utf-8")) for file in ("run.json", "summary.json"))
        seconds = {f"{stage}_s": facts["seconds"] for stage, facts in ran["stages"].items()}
        fetched = next(stage["received"] for stage in summary["stages"] if stage["stage"] == "image")
        work_s = sum(seconds.values())
        return {
            "work_s": work_s,
            "images_per_s": fetched / work_s,
            "fetched": fetched,
            "pairs": summary["pairs"],
            "shard_bytes": summary["bytes"],
            **seconds,
        }

    argv = [*ALTALIGN, "curate", str(config), "--set", f"run.folder={run}"]
    return Program(name, argv, folder, prepare=lambda: shutil.rmtree(run, ignore_errors=True), says=says)


if __name__ == "__main__":
    sys.exit(command(__doc__, compete, images=IMAGES))
