"""The browse page's search by vectors beside faiss's exact index and clip-retrieval's, and the opening of a large run.

    python -m benchmarks.browse [--rows 10000000] [--pairs 10000000] [--rounds 3]

Rows are vectors of 512 dimensions. faiss's exact index takes 2 KB a row, so of more than a million it gets a million,
and its times count as many times as there are rows.
"""

import sys
from pathlib import Path

from benchmarks.browse_vectors import KINDS, SHARE
from benchmarks.harness import ALTALIGN, OURS, PEERS, ROOT, Program, command, interleave, last_json, ratio, summary
from benchmarks.processes import measure
from benchmarks.report import target, write

ROWS, PAIRS, ROUNDS = 1_000_000, 1_000_000, 3
AT_MOST = {"flat": 1_000_000, "autofaiss": 100_000}
NAMES = {"ours": "altalign", "flat": "faiss flat", "autofaiss": "clip-retrieval (autofaiss)"}
RUN = "altalign, a run"
PACKAGES = ("numba", "numpy", "duckdb", "pyarrow", "faiss-cpu")
TARGETS = {  # seconds, and bytes
    "first_rows_s": ("seconds to a run's first rows", 3),
    "facet_s": ("seconds of the slowest facet", 0.5),
    "what_if_s": ("seconds of a what-if over three rules", 1),
    "resident_bytes": ("bytes of memory", 1e9),
}


def compete(rows: int, pairs: int, rounds: int, folder: Path) -> None:
    """All rounds."""
    demo = folder / "browse-demo"
    if not (demo / "run" / "manifest.json").exists():
        demo.mkdir(parents=True, exist_ok=True)
        measure([*ALTALIGN, "demo", "demo-web"], demo)
        measure([*ALTALIGN, "curate", str(ROOT / "configs/demo.toml"), "--set", "run.folder='run'"], demo)
    programs = list[Program]()
    for way, name in NAMES.items():
        python, size = OURS if way == "ours" else PEERS, str(min(rows, AT_MOST.get(way, rows)))
        argv = [str(python), "-m", "benchmarks.browse_vectors", way, str(folder), size]
        programs.append(Program(name, argv, says=last_json))
    opens = [str(OURS), "-m", "benchmarks.browse_run", str(demo / "run"), str(folder), str(pairs)]
    done = interleave([*programs, Program(RUN, opens, says=last_json)], rounds)
    scale = rows / min(rows, AT_MOST["flat"])
    faster = {
        figure: {name: value * scale for name, value in ratio(done, figure, NAMES["flat"], NAMES["ours"]).items()}
        for kind in ("image", "text")
        for figure in (f"{kind}_ms", f"{kind}_cpu_ms")
    }
    figures = {program: {name: one["median"] for name, one in of.items()} for program, of in summary(done).items()}
    ours, run = figures[NAMES["ours"]], figures[RUN]
    targets = [
        target("of the memory of floats", ours["bytes_a_vector"] / 2048, at_most=0.15),
        *(target(f"of the ten nearest, {kind} queries", ours[f"{kind}_recall"], at_least=0.95) for kind in KINDS),
        *(
            target(f"times the speed of faiss's flat index, {kind} queries", faster[f"{kind}_ms"]["median"], at_least=8)
            for kind in ("image", "text")
        ),
        target(f"of a query's time, of {SHARE:.0%} of the rows", ours["text_filtered_ms"] / ours["text_ms"], at_most=1),
        target("of the time of reading the vectors, building", ours["build_s"] / ours["read_s"], at_most=2),
        *(target(f"{what}, {pairs:,} pairs", run[figure], at_most=most) for figure, (what, most) in TARGETS.items()),
    ]
    is_full = (rows, pairs) == (ROWS, PAIRS) and rounds >= ROUNDS
    facts = {"rows": rows, "pairs": pairs, "times_flat": faster}
    print(write("browse", done, targets, packages=PACKAGES, is_full=is_full, **facts))


if __name__ == "__main__":
    sys.exit(command(__doc__, compete, rows=ROWS, pairs=PAIRS, rounds=ROUNDS))
