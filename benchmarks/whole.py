"""Whole runs of `altalign curate`, of the two books that ship and of 100,000 images.

The images are generated, in mixed formats. Beside them the same images are curated by altalign as it was before images
were decided where they are found (the commit `BEFORE`; nothing where git does not have it).

    python -m benchmarks.whole [--images 100000]

How many images a second, how much memory, how many bytes written, how many cores are busy, how long each stage takes.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import ALTALIGN, OURS, ROOT, Program, Round, command, interleave, ratio, scratch
from benchmarks.images import generated
from benchmarks.processes import Figures, measure
from benchmarks.report import target, write

IMAGES, FEW, ROUNDS = 100_000, 500, 3
BYTES_AT_MOST, CORES_AT_LEAST = 2e9, 0.95
BEFORE, OF_BEFORE_AT_MOST = "1d16d37c", {"cpu_s": 0.70, "written_bytes": 0.55}
CONFIG = """
[run]
folder = "run"

[[input]]
name = "images"
kind = "webdataset"
paths = ["{images}/*.tar"]
"""
OLD = "images, before"
PACKAGES = ("apache-beam", "pillow", "simplejpeg")


def compete(images: int, folder: Path) -> None:
    """Measure in a scratch folder."""
    with scratch(folder) as place:
        measure_all(images, folder, place)


def measure_all(images: int, folder: Path, place: Path) -> None:
    """The books three times, the images once: they are minutes of work, and have no peer."""
    config, few = place / "images.toml", place / "few.toml"
    for path, number in ((config, images), (few, FEW)):
        path.write_text(CONFIG.format(images=generated("mixed", number, folder)), encoding="utf-8")
    books = interleave([curation("books", ROOT / "configs" / "handbook.toml", place / "books", ROOT)], ROUNDS)
    programs, before = [curation("images", config, place / "run", place)], as_before(place / "before")
    if before:
        measure(curation("", few, place / "few", place, before).argv, place)  # compiles its kernels
        programs.append(curation(OLD, config, place / "old", place, before))
    many = interleave(programs, 1, warm_up=False)
    figures = many[0]["images"]
    targets = [target("cores busy, of all", figures["cores_busy"] / (os.cpu_count() or 1), at_least=CORES_AT_LEAST)]
    if figures["peak_bytes"]:
        targets.append(target("peak memory in GB", figures["peak_bytes"] / 1e9, at_most=BYTES_AT_MOST / 1e9))
    for figure, most in OF_BEFORE_AT_MOST.items() if before else ():
        targets.append(target(f"{figure}, of {OLD}", ratio(many, figure, "images", OLD)["median"], at_most=most))
    done: list[Round] = [*books, *many]
    print(write("whole", done, targets, packages=PACKAGES, is_full=images == IMAGES, images=images))


def as_before(place: Path) -> list[str]:
    """The command of altalign as it was at `BEFORE`, with today's packages; empty where git does not have it."""
    place.mkdir()
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", BEFORE], capture_output=True, check=False)
    if archive.returncode:
        return []
    subprocess.run(["tar", "-x", "-C", str(place)], input=archive.stdout, check=True)
    return ["env", f"PYTHONPATH={place}", str(OURS), "-m", "altalign"]


def curation(name: str, config: Path, run: Path, folder: Path, altalign: Sequence[str] = ALTALIGN) -> Program:
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

    argv = [*altalign, "curate", str(config), "--set", f"run.folder={run}"]
    return Program(name, argv, folder, prepare=lambda: shutil.rmtree(run, ignore_errors=True), says=says)


if __name__ == "__main__":
    sys.exit(command(__doc__, compete, images=IMAGES))
