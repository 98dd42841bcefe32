"""Web archive to (page URL, image URL, alt-text) beside a plain loop over fastwarc and selectolax.

The figure is pages a CPU second in one thread.

    python -m benchmarks.pages [--rounds 11] [--archive FILE ...]

The archives are the two books that ship with the repository, several times over; others can be named.
"""

import sys
from pathlib import Path

from benchmarks.harness import OURS, PEERS, ROOT, Program, command, interleave, last_json, ratio
from benchmarks.report import target, write

ROUNDS, REPEAT = 11, 10  # one round of a second says little on a machine that others share
TIMES_AT_LEAST = 1.0
PROGRAMS = {
    "altalign": (str(OURS), "-m", "benchmarks.ours", "pages"),
    "plain loop": (str(PEERS), "-m", "benchmarks.peer_pages"),
}
PACKAGES = ("numba", "fastwarc", "selectolax")


def compete(rounds: int, repeat: int, archive: list[str], folder: Path) -> None:  # noqa: ARG001 - nothing is kept
    """Run, write the results."""
    archives = [Path(path) for path in archive] or sorted((ROOT / "examples" / "handbook").glob("*.warc.gz"))
    done = interleave([program(name, archives, repeat) for name in PROGRAMS], rounds)
    faster = ratio(done, "pages_per_cpu_s", "altalign", "plain loop")
    targets = [target("pages a CPU second, times the plain loop's", faster["median"], at_least=TIMES_AT_LEAST)]
    is_full = not archive and repeat == REPEAT and rounds >= ROUNDS
    facts = {"repeat": repeat, "times_plain_loop": faster}
    print(write("pages", done, targets, packages=PACKAGES, is_full=is_full, **facts))


def program(name: str, archives: list[Path], repeat: int) -> Program:
    """One of the two, on these archives."""
    return Program(name, [*PROGRAMS[name], *map(str, archives), "--repeat", str(repeat)], says=last_json)


if __name__ == "__main__":
    sys.exit(command(__doc__, compete, rounds=ROUNDS, repeat=REPEAT, archive=[]))
