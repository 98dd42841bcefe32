"""A cluster of Spark and one of Flink on this machine, whose workers are killed, beside the embedded runner.

    python -m benchmarks.clusters [--rows 50000000] [--images 20000]

Text stages of the synthetic rows, and a whole curation of images in mixed formats. In each run on a cluster a Python
worker is killed in the middle of a unit of every step named below; dropped rows, counts and shards must have the bytes
of the embedded run. A cluster has two workers or slots, as the machine has cores, and is started before the clock.
"""

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import ALTALIGN, command, scratch
from benchmarks.images import generated as images_of
from benchmarks.processes import Figures, ProgramError, measure
from benchmarks.report import target, write
from benchmarks.rows import generated as rows_of
from benchmarks.text import CONFIG as OF_TEXT
from benchmarks.text import VOCABULARY_SIZE
from benchmarks.whole import CONFIG as OF_IMAGES
from tests.end_to_end import blows, clusters

ROWS, IMAGES = 50_000_000, 20_000
KILLED_IN = {"text": ["tables/units", "tables/merged", "judge/units"], "images": ["extract", "fetch/units", "write"]}
SAME = ("audit", "dropped", "shards", "counts.parquet", "tables")


def compete(rows: int, images: int, folder: Path) -> int:
    """Every engine once; 1 where files differ."""
    texts = OF_TEXT.format(rows=rows_of(rows, folder), vocabulary_size=VOCABULARY_SIZE)
    configs = {"text": texts, "images": OF_IMAGES.format(images=images_of("mixed", images, folder))}
    figures: dict[str, Figures] = {}
    embedded: dict[str, dict[str, str]] = {}
    differ = 0
    for engine in ("embedded", "spark", "flink"):
        for job, config in configs.items():
            with scratch(folder) as place, _cluster(engine, place, KILLED_IN[job]) as flags:
                (place / "config.toml").write_text(config, encoding="utf-8")
                argv = [*ALTALIGN, "curate", "config.toml", *(["--until", "judge"] if job == "text" else [])]
                begin = time.perf_counter()
                measured, _ = measure([*argv, "--set", f"engine.runner={engine}", "--", *flags], place)
                if left := blows.wanted(place / "blows") if flags else []:
                    raise ProgramError(f"{engine}, {job}: no worker was killed: {', '.join(left)}")
                found = _digests(place / "run")
                name = f"{job}, {engine}"
                # beside a command that sends work to a cluster the others are the cluster
                others = None if flags else measured["others_cores"]
                figures[name] = {"wall_s": measured["wall_s"], "others_cores": others, "files": len(found)}
                print(f"{name:<18} {time.perf_counter() - begin:8.1f} s   {len(found)} files", flush=True)
                differ += len(found.items() ^ embedded.setdefault(job, found).items())
    targets = [target("files that differ from the embedded run's", differ, at_most=0)]
    facts = {"rows": rows, "images": images, "killed_in": KILLED_IN}
    print(write("clusters", [figures], targets, is_full=(rows, images) == (ROWS, IMAGES), **facts))
    return bool(differ)


@contextmanager
def _cluster(engine: str, place: Path, killed_in: list[str]) -> Iterator[list[str]]:
    """Flags of a cluster whose workers will be killed in these steps; none of the embedded runner."""
    if engine == "embedded":
        yield []
        return
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # at which Spark's driver listens
    start = clusters.spark if engine == "spark" else clusters.flink
    with (
        clusters.worker_pool(place / "pool", blows.environ(place / "blows")) as pool,
        start(place / "cluster", pool) as cluster,
    ):
        blows.want(place / "blows", dict.fromkeys(killed_in, "SIGKILL"))
        yield cluster.flags


def _digests(run: Path) -> dict[str, str]:
    """The SHA-256 of all files that a run is about."""
    found = {}
    for name in SAME:
        for path in sorted([run / name, *(run / name).rglob("*")]):
            if path.is_file():
                with path.open("rb") as file:
                    found[str(path.relative_to(run))] = hashlib.file_digest(file, "sha256").hexdigest()
    shutil.rmtree(run)
    return found


if __name__ == "__main__":
    sys.exit(command(__doc__, compete, rows=ROWS, images=IMAGES))
