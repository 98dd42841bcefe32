"""One thread over web archives, timed: the command line of `our_pages` and `peer_pages`.

Standard library alone, for the peer has nothing of ours.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

Counts = Mapping[str, int]
Counting = Callable[[list[Path]], Counts]


def main(description: str | None, read: Counting, *, afterwards: Counting = lambda _: {}) -> int:
    """Measure `read` and print CPU and wall-clock seconds and what was counted, as one line of JSON; 0.

    Args:
        description: of the command.
        read: reads archives; what it counted in them. A first pass is not timed, for kernels and libraries load on
            first use.
        afterwards: counts what `read` does not, when the time is taken.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", type=Path, nargs="+")
    parser.add_argument("--repeat", type=int, default=1, help="times over all archives")
    arguments = parser.parse_args()
    counts = read(arguments.archives)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(arguments.repeat):
        counts = read(arguments.archives)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    every = {**counts, **afterwards(arguments.archives)}
    print(
        json.dumps({"cpu_s": cpu, "wall_s": wall, **{name: count * arguments.repeat for name, count in every.items()}})
    )
    return 0
