"""A curation of 100 billion candidates whose units' work is faked (`benchmarks.scale_run`): what everything else takes.

It is begun, killed when half of the units of `tables` are counted, continued to the end of `judge`, and `tables` is run
anew. Then the same of fewer units in an S3 store on this machine, and one thread merges a partition.

    python -m benchmarks.scale [--units 200000] [--units-in-store 10000]
"""

import os
import shlex
import sys
import time
from pathlib import Path

from benchmarks.harness import OURS, ROOT, Program, Round, command, interleave, last_json, scratch
from benchmarks.processes import Figures
from benchmarks.report import target, write
from benchmarks.scale_run import STANDS_FOR
from tests.object_stores.servers import versitygw

UNITS, UNITS_IN_STORE = 200_000, 10_000
FIRST_S_AT_MOST, MEMORY_GB_AT_MOST, ROWS_A_FILE_AT_LEAST = 60.0, 2.0, 20_000
ROWS_OF_A_UNIT = 500_000
GATEWAY = Path(os.environ.get("ALTALIGN_VERSITYGW", ROOT / ".cache" / "versitygw" / "versitygw"))
# files of a fetch unit, of a web fetch and a search for test images: docs/concepts/scale.md
FILES_OF_A_FETCH_UNIT = 12


def compete(units: int, units_in_store: int, folder: Path) -> None:
    """Run all, write the results."""
    with scratch(folder) as place:
        rounds, files = called(place, "run", units)
        merge = Program("merge", [*of_run(place, str(place), units), "--merge"], says=last_json)
        rounds |= interleave([merge], 1, warm_up=False)[0]
    if GATEWAY.exists():
        with scratch(folder) as place, versitygw(str(GATEWAY), place) as server:
            os.environ.update(server.environment, ALTALIGN_CACHE=str(place / "cache"))
            server.make_bucket("scale")
            in_store, _ = called(place, "s3://scale/run", units_in_store, " in a store")
            rounds |= in_store
    targets = [
        target(f"seconds to the first unit, {name}", figures["first_s"], at_most=FIRST_S_AT_MOST)
        for name, figures in rounds.items()
        if name.startswith(("continued", "tables anew"))
    ]
    peak = max(figures["peak_bytes"] or 0 for name, figures in rounds.items() if name != "merge")
    targets.append(target("GB of memory of the command", peak / 1e9, at_most=MEMORY_GB_AT_MOST))
    thread = rounds["merge"]["merge_bytes"] / 1e9
    targets.append(target("GB of a thread that merges", thread, at_most=MEMORY_GB_AT_MOST))
    every = files["once"] + STANDS_FOR * files["for_many"] + FILES_OF_A_FETCH_UNIT * rounds["continued"]["fetch_units"]
    rows = units * ROWS_OF_A_UNIT
    targets.append(target("candidates a file", rows / every, at_least=ROWS_A_FILE_AT_LEAST))
    is_full = units == UNITS and units_in_store == UNITS_IN_STORE
    facts = {"units": units, "units_in_store": units_in_store, "rows": rows, "files": {**files, "every": every}}
    print(write("scale", [rounds], targets, is_full=is_full, environments=(OURS,), **facts))


def of_run(place: Path, run: str, units: int) -> list[str]:
    """A call of `benchmarks.scale_run`."""
    argv = ["env", "-C", str(place), f"PYTHONPATH={ROOT}", sys.executable, "-m", "benchmarks.scale_run"]
    return [*argv, run, f"--units={units}"]


def called(place: Path, run: str, units: int, where: str = "") -> tuple[Round, dict[str, int]]:
    """The calls of a run, one after the other, with the seconds to the first unit that each works on; and its files."""
    (place / "input").mkdir()
    for number in range(units // STANDS_FOR):
        (place / "input" / f"{number:06d}.parquet").write_bytes(b"-")
    rounds, files = Round(), dict[str, int]()
    calls = {
        "begun": ["--killed-at", units // 2],
        "continued": [],
        "tables anew": ["--rerun=tables", "--killed-at=100"],
    }
    for name, options in calls.items():
        first = place / "first"
        first.unlink(missing_ok=True)
        line = shlex.join([*of_run(place, run, units), "--first", str(first), *map(str, options)])
        ends = f"SCALE_BEGUN_S={time.time()} {line}" + ("; true" if options else "")
        says = (lambda _: Figures()) if options else last_json
        [done] = interleave([Program(name + where, ["sh", "-c", ends], says=says)], 1, warm_up=False)
        done[name + where]["first_s"] = float(first.read_text(encoding="utf-8"))
        rounds |= done
        if not options and not where:
            files = counted(place / run)
    return rounds, files


def counted(run: Path) -> dict[str, int]:
    """How many files a run has: that are there once in a run of this size, and those of units that stand for many."""
    names = [path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()]
    stand = ("work/extract/marks/", "work/judge/units/", "dropped/judge/")
    for_many = sum(name.startswith(stand) for name in names)
    marks = sum("/marks/" in name for name in names)
    return {"once": len(names) - for_many, "for_many": for_many, "marks": marks}


if __name__ == "__main__":
    sys.exit(command(__doc__, compete, units=UNITS, units_in_store=UNITS_IN_STORE))
