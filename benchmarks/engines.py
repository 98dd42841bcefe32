"""Text stages (`altalign curate --until judge`) on each engine of one machine, beside Spark SQL.

Spark SQL does the peers' part of the job on the same rows.

    make bench-engines [FLAGS='--rows 5000000 --rounds 1']

Start-up is apart: the same command on a thousand rows, which costs what starting an engine and its pipelines costs.
What every engine left is compared, by SHA-256 of each file.
"""

import argparse
import hashlib
import os
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import CACHE, ROOT, Program, Round, interleave, scratch
from benchmarks.processes import ProgramError
from benchmarks.report import target, write
from benchmarks.rows import MissingError, rows, script
from benchmarks.text import ours, peer

ROWS, ROUNDS = 5_000_000, 1
ROWS_OF_START_UP = 1_000
ENGINES = ("embedded", "prism", "spark", "flink")
CPU_OF_EMBEDDED_AT_MOST, SPARK_SQL_AT_LEAST = 1.5, 5.0
_NOT_OF_ENGINES = ("log", "work", "run.json")


def main() -> int:
    """Run all engines, compare what they left, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--folder",
        type=Path,
        default=CACHE,
        help="where rows are, or are put; what runs leave goes to a folder below it and is deleted",
    )
    parser.add_argument("--without-peer", action="store_true", help="leave Spark SQL out")
    arguments = parser.parse_args()
    os.environ.setdefault("ALTALIGN_PRISM", str(ROOT / ".cache" / "prism" / "prism"))
    try:
        return compete(
            arguments.rows, arguments.rounds, arguments.folder.absolute(), with_peer=not arguments.without_peer
        )
    except (MissingError, ProgramError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


def compete(count: int, rounds: int, folder: Path, *, with_peer: bool) -> int:
    """All rounds of this many rows; 1 where engines leave different bytes."""
    data, few = rows(count, folder), rows(ROWS_OF_START_UP, folder)
    digests: dict[str, str] = {}
    with scratch(folder) as place:
        programs = [_on(engine, data, place, digests) for engine in ENGINES]
        if with_peer:
            programs.append(peer("spark", script("peer_spark.py"), data, place, name="Spark SQL"))
        done = interleave(programs, rounds, warm_up=False)
        start_up = interleave(
            [_on(engine, few, place, {}, name=f"{engine} start-up") for engine in ENGINES], 1, warm_up=False
        )[0]
    done = [_with_start_up(each, start_up) for each in done]
    median = {name: statistics.median(each[name]["beside_start_up_cpu_s"] for each in done) for name in done[0]}
    targets = [
        target(
            f"CPU seconds beside start-up, {engine}, of those of embedded",
            median[engine] / median["embedded"],
            at_most=CPU_OF_EMBEDDED_AT_MOST,
        )
        for engine in ENGINES[1:]
    ]
    if with_peer:
        targets += [
            target(
                f"CPU seconds of Spark SQL, times those of {engine}",
                median["Spark SQL"] / median[engine],
                at_least=SPARK_SQL_AT_LEAST,
            )
            for engine in ENGINES
        ]
    targets.append(target("different trees of files that engines leave", len(set(digests.values())), at_most=1))
    print(write("engines", done, targets, is_full=count == ROWS and with_peer, rows=count, digests=digests))
    return int(len(set(digests.values())) > 1)


def _on(engine: str, data: Path, place: Path, digests: dict[str, str], *, name: str = "") -> Program:
    """The text stages on an engine; a digest of what it left is noted."""
    program = ours(name or engine, data, place, flags=("--set", f"engine.runner={engine}"))

    def says(output: str) -> dict[str, Any]:
        digests[engine] = digest(place / "run")
        return program.says(output)

    return Program(
        program.name, program.argv, place, prepare=lambda: shutil.rmtree(place / "run", ignore_errors=True), says=says
    )


def digest(run: Path) -> str:
    """SHA-256 over names and bytes of the files that are the same on every engine."""
    whole = hashlib.sha256()
    for path in sorted(
        path for path in run.rglob("*") if path.is_file() and path.relative_to(run).parts[0] not in _NOT_OF_ENGINES
    ):
        whole.update(str(path.relative_to(run)).encode() + b"\0")
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def _with_start_up(figures: Round, start_up: Round) -> Round:
    """CPU seconds and seconds of each program beside its start-up; a peer's own clock leaves its start out."""
    beside: Round = {}
    for name, found in figures.items():
        started = start_up.get(f"{name} start-up", {"cpu_s": None, "wall_s": None})
        beside[name] = found | {
            "start_up_cpu_s": started["cpu_s"],
            "start_up_s": started["wall_s"],
            "beside_start_up_cpu_s": found["work_cpu_s"] - (started["cpu_s"] or 0.0),
            "beside_start_up_s": found["wall_s"] - started["wall_s"] if started["wall_s"] else found["work_s"],
        }
    return beside


if __name__ == "__main__":
    sys.exit(main())
