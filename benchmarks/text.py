"""Text stages (`altalign curate --until judge`) beside polars and duckdb.

The peers do their part of the same job on the same rows.

    python -m benchmarks.text [--rows 5000000] [--rounds 3] [--peers polars duckdb]

Ours does more than they: it groups survivors by image, drops repeated pairs, and writes keys, reasons and measured
values of every dropped row. CPU seconds of ours are of the whole process; those of a peer end with its last step, its
totals left out. duckdb needs 12 GB at 25 M rows.
"""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import ALTALIGN, PEERS, Program, command, interleave, last_json, ratio, scratch
from benchmarks.processes import Figures
from benchmarks.report import target, write
from benchmarks.rows import generated, script
from benchmarks.verdicts import compare

VOCABULARY_SIZE = 1_000_000
ROWS, ROUNDS = 5_000_000, 3
CPU_OF_POLARS_AT_MOST = {5_000_000: 0.60, 25_000_000: 0.50}
BYTES_AT_MOST = 0.8e9
CONFIG = """
[run]
folder = "run"

[[input]]
kind = "table"
paths = ["{rows}/*.parquet"]
caption_column = "text"

[text]
vocabulary_size = {vocabulary_size}
"""
PACKAGES = ("numba", "pyarrow", "polars", "duckdb")


def compete(rows: int, rounds: int, peers: Sequence[str], folder: Path) -> int:
    """All rounds of this many rows; 1 where the verdicts differ."""
    scripts = {name: script(f"peer_{name}.py") for name in peers}
    data = generated(rows, folder)
    with scratch(folder) as place:
        done = interleave(
            [ours(data, place), *(peer(name, path, data, place) for name, path in scripts.items())], rounds
        )
        verdicts = compare(place / "run", place / f"{peers[-1]}.parquet")
    by_polars = ratio(done, "work_cpu_s", "altalign", "polars")
    targets = [
        target(
            f"CPU seconds, of those of polars, {rows:,} rows",
            by_polars["median"],
            at_most=CPU_OF_POLARS_AT_MOST.get(rows, 1.0),
        )
    ]
    if all(peak := [r["altalign"]["peak_bytes"] for r in done]):
        targets.append(target(f"peak memory in GB, {rows:,} rows", max(peak) / 1e9, at_most=BYTES_AT_MOST / 1e9))
    targets.append(
        target(f"verdicts that differ from {peers[-1]}'s, of {verdicts['rows']:,} rows", verdicts["differ"], at_most=0)
    )
    of_peers = {name: ratio(done, "work_cpu_s", "altalign", name) for name in peers}
    facts = {"rows": rows, "vocabulary_size": VOCABULARY_SIZE, "cpu_of_peers": of_peers, "verdicts": verdicts}
    print(write("text", done, targets, packages=PACKAGES, is_full=rows == ROWS and rounds >= ROUNDS, **facts))
    return bool(verdicts["differ"])


def ours(data: Path, place: Path) -> Program:
    """The text stages of altalign; its run is in `run` of the place."""
    config, run = place / "altalign.toml", place / "run"
    config.write_text(CONFIG.format(rows=data, vocabulary_size=VOCABULARY_SIZE), encoding="utf-8")

    def says(_: str) -> Figures:
        stages = json.loads((run / "run.json").read_text(encoding="utf-8"))["stages"]
        work_s = sum(stage["seconds"] for stage in stages.values())
        seconds = {f"{stage}_s": facts["seconds"] for stage, facts in stages.items()}
        return {"work_s": work_s, "rows_per_s": _count(data) / work_s, **seconds}

    argv = [*ALTALIGN, "curate", config.name, "--until", "judge"]
    return Program("altalign", argv, place, prepare=lambda: shutil.rmtree(run, ignore_errors=True), says=says)


def peer(engine: str, path: Path, data: Path, place: Path) -> Program:
    """A peer's script with all cores; its verdicts are in ENGINE.parquet of the place."""

    def says(output: str) -> Figures:
        found = last_json(output)
        return {"work_s": found["wall_s"], "work_cpu_s": found["cpu_s"], "rows_per_s": _count(data) / found["wall_s"]}

    options = ["--ties", "keep", "--mode", "hash", "--k", str(VOCABULARY_SIZE), "--threads", str(os.cpu_count())]
    return Program(engine, [str(PEERS), str(path), str(data), f"{engine}.parquet", *options], place, says=says)


def _count(data: Path) -> int:
    return int(data.name.rpartition("-")[2])


if __name__ == "__main__":
    sys.exit(command(__doc__, compete, rows=ROWS, rounds=ROUNDS, peers=["polars", "duckdb"]))
