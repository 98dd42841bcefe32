"""Web archive to (page URL, image URL, alt-text) beside a plain loop over fastwarc and selectolax.

The figure is pages a CPU second in one thread.

    python -m benchmarks.pages [--rounds 11] [--archive FILE ...]

The archives are the two books that ship with the repository, several times over; others can be named.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.harness import CACHE, OURS, PEERS, ROOT, Program, interleave, last_json, ratio
from benchmarks.processes import ProgramError
from benchmarks.report import target, write

ROUNDS, REPEAT = 11, 10  # one round of a second says little on a machine that others share
TIMES_AT_LEAST = 1.0
PROGRAMS = {
    "altalign": (str(OURS), "-m", "benchmarks.our_pages"),
    "plain loop": (str(PEERS), "-m", "benchmarks.peer_pages"),
}
PACKAGES = ("numba", "fastwarc", "selectolax")


def main() -> int:
    """Run, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--repeat", type=int, default=REPEAT, help="times over the archives in one run")
    parser.add_argument("--archive", type=Path, nargs="+", help="other archives than the books")
    parser.add_argument(
        "--folder", type=Path, default=CACHE, help="taken for the sake of the other parts; nothing is written"
    )
    arguments = parser.parse_args()
    archives = arguments.archive or sorted((ROOT / "examples" / "handbook").glob("*.warc.gz"))
    try:
        done = interleave([program(name, archives, arguments.repeat) for name in PROGRAMS], arguments.rounds)
    except ProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    faster = ratio(done, "pages_per_cpu_s", "altalign", "plain loop")
    targets = [target("pages a CPU second, times the plain loop's", faster["median"], at_least=TIMES_AT_LEAST)]
    is_full = not arguments.archive and arguments.repeat == REPEAT and arguments.rounds >= ROUNDS
    print(
        write(
            "pages", done, targets, packages=PACKAGES, is_full=is_full, repeat=arguments.repeat, times_plain_loop=faster
        )
    )
    return 0


def program(name: str, archives: list[Path], repeat: int) -> Program:
    """One of the two, on these archives."""
    return Program(name, [*PROGRAMS[name], *map(str, archives), "--repeat", str(repeat)], says=last_json)


if __name__ == "__main__":
    sys.exit(main())
