"""Times the text stages (`altalign curate --until judge`) on synthetic captions: rows/s, CPU seconds, peak memory.

    python -m benchmarks.text_stage [--rows 5000000] [--rounds 3]

The rows come from the generator of the shared bench folder beside the checkout, once; medians and ranges of whole processes,
start-up included, go to benchmarks/results/text_stage.json with the machine's load.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import apache_beam
import numba
import numpy as np
import pyarrow as pa

ROOT = Path(__file__).parents[1]
GENERATOR = ROOT.parent / "shared" / "bench" / "gen.py"
RESULTS = ROOT / "benchmarks" / "results" / "text_stage.json"
CONFIG = """
[run]
folder = "run"

[[input]]
kind = "table"
paths = ["rows/*.parquet"]
caption_column = "text"

[text]
vocabulary_size = 1_000_000
"""


def main() -> int:
    """Generate, run, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where rows and runs go; rows that are there already are used (default: a temporary folder)")
    arguments = parser.parse_args()
    if not GENERATOR.is_file():
        sys.stderr.write(f"{GENERATOR}: not there; the benchmark needs the generator of the shared bench folder\n")
        return 1
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = folder / f"rows-{arguments.rows}"
        if not rows.is_dir():
            subprocess.run([sys.executable, str(GENERATOR), str(rows), str(arguments.rows), "20"], check=True)
        (folder / "config.toml").write_text(CONFIG.replace("rows/", f"{rows.name}/"), encoding="utf-8")
        rounds = [once(folder, arguments.rows) for _ in range(arguments.rounds + 1)][1:]  # the first warms page cache and kernels
    report(arguments.rows, rounds)
    return 0


def once(folder: Path, rows: int) -> dict[str, float]:
    """One run in a process of its own."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "altalign.cli", "curate", "config.toml", "--until", "judge"]
    subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    stages = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))["stages"]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = sum(stage["seconds"] for stage in stages.values())
    peak = after.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"wall_s": wall, "stages_s": seconds, "rows_per_s": rows / seconds, "cpu_s": cpu, "peak_bytes": peak, "load": os.getloadavg()[0]}


def report(rows: int, rounds: list[dict[str, float]]) -> None:
    """Print medians and ranges; write them with the versions."""
    figures = {
        name: {"median": statistics.median(r[name] for r in rounds), "least": min(r[name] for r in rounds), "most": max(r[name] for r in rounds)}
        for name in rounds[0]
    }
    print(f"text stages, {rows:,} rows, {len(rounds)} rounds: median (range)")
    for name, figure in figures.items():
        print(f"  {name:<12} {figure['median']:>16,.1f}  ({figure['least']:,.1f} to {figure['most']:,.1f})")
    versions = {
        "python": sys.version.split()[0],
        "apache_beam": apache_beam.__version__,
        "numba": numba.__version__,
        "numpy": np.__version__,
        "pyarrow": pa.__version__,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps({"rows": rows, "rounds": len(rounds), "cores": os.cpu_count(), **figures, "versions": versions}, indent=2) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    sys.exit(main())
