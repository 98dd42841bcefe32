"""Memory of nearest neighbours and retrieval among a million features: the most that a process has, all in all.

    python -m benchmarks.eval_memory [--features 1000000] [--rounds 1]

Features are random, float32, of 512 components; 1,000 of them are queries (of retrieval images), the others what is
searched (captions, which then search the images). Linux only.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional

from altalign.eval import knn, retrieval
from benchmarks.harness import CACHE, READERS, Program, interleave, last_json
from benchmarks.processes import ProgramError
from benchmarks.report import WITH_TORCH, target, write

FEATURES, QUERIES, WIDTH, CLASSES, ROUNDS = 1_000_000, 1_000, 512, 1_000, 1
TASKS = ("knn", "retrieval")
GB_AT_MOST = 4.0


def main() -> int:
    """Run both tasks, write the results; or one, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, default=FEATURES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--one", choices=TASKS, help="one task, in this process")
    parser.add_argument("--queries", type=int, default=QUERIES)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--folder", type=Path, help="taken for the sake of the other parts; nothing is written")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(figures(arguments.one, arguments.features, arguments.queries, arguments.width)))
        return 0
    try:
        compete(arguments.features, arguments.rounds)
    except ProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def compete(features: int, rounds: int) -> None:
    """All rounds."""
    CACHE.mkdir(parents=True, exist_ok=True)
    done = interleave([_program(task, features) for task in TASKS], rounds, warm_up=False)
    most = {task: max(run[task]["peak_bytes"] for run in done) / 1e9 for task in TASKS}
    targets = [target(f"GB of {task} with {features:,} features", most[task], at_most=GB_AT_MOST) for task in TASKS]
    facts = {"features": features, "queries": QUERIES, "width": WIDTH, "torch": torch.__version__}
    is_full = features == FEATURES and rounds >= ROUNDS
    print(write("eval_memory", done, targets, environments=WITH_TORCH, is_full=is_full, **facts))


def _program(task: str, features: int) -> Program:
    command = (str(READERS), "-m", "benchmarks.eval_memory", "--one", task, "--features", str(features))
    return Program(task, command, says=last_json)


def figures(task: str, features: int, queries: int, width: int) -> dict[str, float]:
    """The most memory of this process, what it had before the task, and the task's seconds."""
    generator = torch.Generator().manual_seed(0)
    of = torch.randn(features, width, generator=generator)
    functional.normalize(of, dim=1, out=of)
    searching, searched = of[:queries], of[queries:]
    before, begin = _bytes("VmRSS"), time.perf_counter()
    if task == "knn":
        labels = torch.arange(features) % CLASSES
        knn.neighbours(searching, searched, labels[:queries], labels[queries:])
    else:
        retrieval.ranks(searching, searched, torch.arange(len(searched)) % queries)
    return {"work_s": time.perf_counter() - begin, "peak_bytes": _bytes("VmHWM"), "before_bytes": before}


def _bytes(line: str) -> int:
    """Not what `getrusage` tells, which begins with that of the process that started this one."""
    return int(Path("/proc/self/status").read_text().split(f"{line}:")[1].split()[0]) << 10


if __name__ == "__main__":
    sys.exit(main())
