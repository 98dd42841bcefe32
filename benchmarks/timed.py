"""One thread, timed: the command line of the programs that `pages` and `images` compare, and their images.

Standard library alone, for the peers have nothing of ours.
"""

import argparse
import json
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Counts = dict[str, Any]
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".avif", ".bmp", ".tif", ".tiff")


def main(
    description: str | None,
    work: Callable[[list[Path]], Counts],
    *,
    counted: str,
    afterwards: Callable[[list[Path]], Counts] = lambda _: {},
) -> int:
    """Time `work` on the given files and print CPU and wall-clock seconds and counts, as one line of JSON; 0.

    Args:
        description: of the command.
        work: one pass over files; what it counted in them. A first pass is not timed, for kernels and libraries load
            on first use.
        counted: the count whose number a CPU second is printed too.
        afterwards: counts what `work` does not, when the time is taken.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--repeat", type=int, default=1, help="passes over all files")
    arguments = parser.parse_args()
    counts = work(arguments.paths)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(arguments.repeat):
        counts = work(arguments.paths)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    counts |= afterwards(arguments.paths)
    rate = counts[counted] * arguments.repeat / cpu
    print(json.dumps({"work_cpu_s": cpu, "work_s": wall, f"{counted}_per_cpu_s": rate, **counts}))
    return 0


class Place(NamedTuple):
    """Where the bytes of an image are, and the folder of its name."""

    path: str
    offset: int
    length: int
    group: str


def places(path: Path) -> Iterator[Place]:
    """Every image of a tar, in its order."""
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            if member.isfile() and member.name.lower().endswith(SUFFIXES):
                yield Place(str(path), member.offset_data, member.size, Path(member.name).parent.name)
